//! The files of an input: a file, a folder, or a pattern.

use std::path::{Path, PathBuf};

use warpann::Error;

use crate::report::{Failure, Outcome};

/// The files of an input, at least one.
pub fn files(path: &Path) -> Outcome<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (folder, pattern) = match path.is_dir() {
        true => (path, "*.parquet"),
        // A file whose name has such a character is itself.
        false if name.contains(['*', '?']) && !path.exists() => (path.parent().unwrap_or(Path::new("")), name),
        false => return Ok(vec![path.to_owned()]),
    };
    let failed = |source| Failure::from(Error::Io { path: folder.to_owned(), source });
    let listed = if folder == Path::new("") { Path::new(".") } else { folder };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(listed).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // Programs that write folders hide files with other content behind these.
        let hidden = |name: &str| name.starts_with(['.', '_']);
        if name.to_str().is_some_and(|name| !hidden(name) && matches(pattern, name)) {
            found.push(folder.join(name));
        }
    }
    found.sort_unstable();
    match found.is_empty() {
        true => Err(Failure::Message(format!("{}: no file {pattern} is there", path.display()))),
        false => Ok(found),
    }
}

/// Whether a name is one of a pattern, in which `*` is any text and `?` any character. Letters count as they are.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // The last `*` so far, and the characters of the name that it does not stand for.
    let (mut at, mut here, mut star) = (0, 0, None);
    while here < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(&character) if character == '?' || character == name[here] => {
                at += 1;
                here += 1;
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (at, here) = (place + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|&character| character == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet::is_parquet;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in [
            ("*.parquet", "a.parquet"),
            ("part-?.parquet", "part-1.parquet"),
            ("*a*b*", "xxaxxaxbx"),
            ("*", ""),
            ("a", "a"),
            ("*.parquet", "ä.parquet"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.parquet", "a.parquet.crc"),
            ("part-?.parquet", "part-12.parquet"),
            ("a*b", "ab "),
            ("?", ""),
            ("a", "A"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn folders_and_patterns_are_their_files_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.parquet", "a.parquet", "c.PARQUET", "_d.parquet", ".e.parquet", "f.csv", "a.parquet.crc"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names = |path: &Path| -> Vec<String> {
            let files = files(path).unwrap();
            files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(folder.path()), ["a.parquet", "b.parquet"]);
        assert_eq!(names(&folder.path().join("?.parq*t")), ["a.parquet", "b.parquet"]);
        assert_eq!(names(&folder.path().join("b.parquet")), ["b.parquet"]);
        let message = files(&folder.path().join("x*.parquet")).unwrap_err().to_string();
        assert!(message.ends_with("no file x*.parquet is there"), "{message}");
        assert!(is_parquet(folder.path()) && is_parquet(Path::new("x.Parquet")) && !is_parquet(Path::new("x.npy")));
    }
}
