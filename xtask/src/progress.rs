//! A count of finished steps on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines if standard error is a file or a pipe: often enough to show that the command is working, with
/// few lines in a log.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Counts steps: in one line that is rewritten on a terminal, else in a line every ten seconds.
pub struct Progress {
    what: &'static str,
    steps: usize,
    terminal: bool,
    state: Mutex<State>,
}

struct State {
    done: usize,
    shown: Instant,
}

impl Progress {
    /// A counter for `steps` steps, shown as "`what` 3 of 7".
    pub fn new(what: &'static str, steps: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what, steps, terminal, state: Mutex::new(State { done: 0, shown: Instant::now() }) }
    }

    /// Counts one more step.
    pub fn step(&self) {
        if let Some(text) = self.next(Instant::now()) {
            write(&text);
        }
    }

    /// Removes the line from a terminal.
    pub fn end(&self) {
        if self.terminal {
            write("\r\x1b[K");
        }
    }

    /// Counts a step that ends at `now`. Returns the line to print, if it is time for one.
    fn next(&self, now: Instant) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += 1;
        let line = format!("{} {} of {}", self.what, state.done, self.steps);
        if self.terminal {
            return Some(format!("\r{line}"));
        }
        let due = now.duration_since(state.shown) >= BETWEEN_LINES;
        due.then(|| {
            state.shown = now;
            format!("{line}\n")
        })
    }
}

/// Writes to standard error and ignores a failure to do so.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_every_step_and_a_file_one_in_ten_seconds() {
        let start = Instant::now();
        let state = || Mutex::new(State { done: 0, shown: start });
        let terminal = Progress { what: "assembled", steps: 9, terminal: true, state: state() };
        assert_eq!(terminal.next(start).as_deref(), Some("\rassembled 1 of 9"));
        assert_eq!(terminal.next(start).as_deref(), Some("\rassembled 2 of 9"));

        let file = Progress { terminal: false, state: state(), ..terminal };
        let after = |seconds| file.next(start + Duration::from_secs(seconds));
        assert_eq!((after(1), after(9)), (None, None));
        assert_eq!(after(10).as_deref(), Some("assembled 3 of 9\n"));
        assert_eq!(after(19), None);
        assert_eq!(after(21).as_deref(), Some("assembled 5 of 9\n"));
    }
}
