//! Progress on standard error: the step at which a command works, its elapsed time and an estimate of the time left.
//!
//! A step is shown only if standard error is a terminal, and neither with `--json` nor with `--quiet`.

use std::borrow::Cow;
use std::fmt::Write;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use warpann::{Progress, Stage, Watch};

/// Whether the command line forbids progress.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Time between two drawings of a step that a thread redraws.
const TICK: Duration = Duration::from_millis(200);

/// Shows no progress from now on.
pub fn hide() {
    HIDDEN.store(true, Ordering::Relaxed);
}

/// Whether a person sees progress.
pub fn watched() -> bool {
    !HIDDEN.load(Ordering::Relaxed) && std::io::stderr().is_terminal()
}

/// A step of a command, which is shown until it is dropped.
pub struct Step {
    bar: Option<ProgressBar>,
}

impl Step {
    /// A step of unknown length. It shows name and elapsed time.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self::shown(name.into(), None, true)
    }

    /// A step of `total` units, such as `queries`. It shows name, units done, elapsed time and the estimated time left.
    pub fn of(name: impl Into<Cow<'static, str>>, total: usize, unit: &str) -> Self {
        Self::shown(name.into(), Some((total, unit)), true)
    }

    /// As [`of`](Self::of), but without a thread that redraws the step, because the work is a measurement. Only `at`
    /// redraws it.
    pub fn measured(name: impl Into<Cow<'static, str>>, total: usize, unit: &str) -> Self {
        Self::shown(name.into(), Some((total, unit)), false)
    }

    fn shown(name: Cow<'static, str>, total: Option<(usize, &str)>, ticks: bool) -> Self {
        let bar = watched().then(|| {
            let bar = bar(ProgressDrawTarget::stderr(), name, total);
            bar.tick();
            if ticks {
                bar.enable_steady_tick(TICK);
            }
            bar
        });
        Self { bar }
    }

    /// Sets the number of units that are done.
    pub fn at(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    /// Adds to the number of units that are done.
    pub fn advance(&self, units: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(units as u64);
        }
    }

    /// Calls `print`, which prints lines, while the step is not on the terminal.
    pub fn aside<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows a step of unknown length while `work` runs.
pub fn spinning<R>(name: impl Into<Cow<'static, str>>, work: impl FnOnce() -> R) -> R {
    let _step = Step::new(name);
    work()
}

/// Shows the stages of a long call of the library, `work`, while it runs: under `name`, and from the second stage on
/// with the name of the stage.
pub fn staged<R>(name: impl Into<Cow<'static, str>>, work: impl FnOnce(&Watch<'_>) -> R) -> R {
    let name = name.into();
    if !watched() {
        // Without a watch some calls need less memory.
        return work(&Watch::none());
    }
    let mut first = None;
    let mut shown: (Option<Stage>, Step) = (None, Step::new(name.clone()));
    let watch = Watch::new(|Progress { stage, done, total, .. }| {
        if shown.0 != Some(stage) {
            let own = *first.get_or_insert(stage) == stage;
            let title = if own { name.clone() } else { format!("{name}, {stage}").into() };
            // The old step leaves the terminal before the new one is drawn.
            shown = (None, Step { bar: None });
            shown = (Some(stage), Step::of(title, total as usize, stage.unit()));
        }
        shown.1.at(done as usize);
        ControlFlow::Continue(())
    });
    work(&watch)
}

fn bar(target: ProgressDrawTarget, name: Cow<'static, str>, total: Option<(usize, &str)>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total.map(|(total, _)| total as u64), target);
    let template = match total {
        None => "{spinner} {msg}, {elapsed_precise} elapsed".to_owned(),
        Some((_, unit)) => {
            format!("{{msg}} {{bar:30}} {{pos}} of {{len}} {unit}, {{elapsed_precise}} elapsed, {{left}}")
        }
    };
    let left = |state: &ProgressState, text: &mut dyn Write| {
        // Before the first unit is done there is nothing to estimate from. Writing to a string cannot fail.
        let _ = match state.pos() {
            0 => text.write_str("no estimate yet"),
            _ => write!(text, "{} left", indicatif::FormattedDuration(state.eta())),
        };
    };
    match ProgressStyle::with_template(&template) {
        Ok(style) => bar.with_style(style.with_key("left", left)).with_message(name),
        // No template of this function is wrong; a bar in the default style would do.
        Err(_) => bar.with_message(name),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal of 120 columns that keeps everything written to it.
    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<String>>);

    impl TermLike for Kept {
        fn width(&self) -> u16 {
            120
        }

        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> std::io::Result<()> {
            self.write_str(line)
        }

        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> std::io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The text of a step after `units` are done.
    fn drawn(total: Option<(usize, &str)>, units: u64) -> String {
        let terminal = Kept::default();
        let bar = bar(ProgressDrawTarget::term_like(Box::new(terminal.clone())), "training 64 lists".into(), total);
        bar.set_position(units);
        bar.force_draw();
        let text = terminal.0.lock().unwrap();
        text.clone()
    }

    #[test]
    fn a_step_shows_name_time_and_estimate() {
        let text = drawn(None, 0);
        assert!(text.contains("training 64 lists, 00:00:00 elapsed"), "{text}");
        let text = drawn(Some((8, "iterations")), 0);
        assert!(text.contains(" 0 of 8 iterations, 00:00:00 elapsed, no estimate yet"), "{text}");
        let text = drawn(Some((8, "iterations")), 3);
        assert!(text.contains("training 64 lists") && text.contains(" 3 of 8 iterations"), "{text}");
        assert!(text.contains(" left"), "{text}");
    }
}
