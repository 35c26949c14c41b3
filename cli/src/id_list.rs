//! Ids in text files (`.txt`): an id or a range such as `100-199` in each line.

use std::path::Path;

use warpann::io::IdMatrix;
use warpann::{Error, FileDefect};

use crate::report::{Failure, Outcome};

/// Whether a path has the extension of a text.
pub fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"))
}

/// The first and the last id of each line that is not empty, in the order of the file. An id alone is both.
pub fn ranges(path: &Path) -> Outcome<Vec<(u64, u64)>> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    // Some editors begin UTF-8 with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut all = Vec::new();
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        if line.is_empty() {
            continue;
        }
        let (first, last) = line.split_once('-').unwrap_or((line, line));
        let range = first.trim().parse::<u64>().ok().zip(last.trim().parse::<u64>().ok());
        let Some(range) = range.filter(|(first, last)| first <= last) else {
            let message = format!("{}: line {number} is neither an id nor a range such as 100-199", path.display());
            return Err(Failure::Message(message));
        };
        all.push(range);
    }
    Ok(all)
}

/// All ids, in the order of the file, one in each row.
pub fn ids(path: &Path) -> Outcome<IdMatrix> {
    let ranges = ranges(path)?;
    let rows: u128 = ranges.iter().map(|&(first, last)| u128::from(last - first) + 1).sum();
    let mut ids = Vec::new();
    if usize::try_from(rows).ok().and_then(|rows| ids.try_reserve_exact(rows).ok()).is_none() {
        let defect = FileDefect::TooLarge { rows: u64::try_from(rows).unwrap_or(u64::MAX), dim: 1 };
        return Err(Error::BadFile { path: path.to_owned(), defect }.into());
    }
    ids.extend(ranges.into_iter().flat_map(|(first, last)| first..=last));
    Ok(IdMatrix { rows: ids.len(), k: 1, ids })
}
