//! Progress on standard error, if standard error is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;

/// Whether a person can see progress: standard error is a terminal.
pub fn watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Shows a spinner while `work` runs.
pub fn spinning<R>(message: String, work: impl FnOnce() -> R) -> R {
    let spinner = watched().then(|| {
        let spinner = ProgressBar::new_spinner().with_message(message);
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    });
    let result = work();
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    result
}
