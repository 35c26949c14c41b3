//! Tests of the crate's host functions and definitions, which need no launch.
//!
//! They stand in a program of their own and not beside the code: as unit tests they would compile every kernel a second
//! time, 39 s of CPU.

mod bounds;
mod keys;
mod morton;
mod tolerance;
mod warp_select;
mod windows;

/// Cargo does not run tests in `src` (`[lib] test = false`), so there must be none.
#[test]
fn no_test_stands_where_cargo_does_not_run_it() {
    fn check(folder: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let count = |path: std::path::PathBuf| {
            if path.is_dir() {
                return check(&path);
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for mark in ["#[cfg(test)]", "#[test]"] {
                assert!(!text.contains(mark), "{} has {mark}; move the test to kernels-rs/tests/units", path.display());
            }
            1
        };
        entries.map(count).sum()
    }
    let files = check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(files > 40, "{files} files");
}
