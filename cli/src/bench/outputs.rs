//! The files that `bench` and `chart` write under the name of `--out`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use warpann::io;

use crate::report::{Failure, Out, Outcome};
use crate::streams::{Stdin, check_files};

/// `name` with `extension` appended, even if `name` contains dots.
pub fn named(name: &Path, extension: &str) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(".");
    file.push(extension);
    file.into()
}

/// As [`check_files`], for the outputs NAME.EXTENSION of the option `--out NAME` and `updated`, an input that the
/// command replaces. A folder that is missing or cannot be written is reported under NAME, because the files have names
/// that the user did not give.
pub fn check_outputs<'a, const N: usize>(
    stdin: Stdin,
    inputs: impl IntoIterator<Item = &'a Path>,
    name: Option<&Path>,
    extensions: [&str; N],
    updated: Option<&Path>,
) -> Outcome {
    // NAME itself is not written, so it may be a folder.
    if let Some(name) = name.filter(|name| !name.is_dir()) {
        io::check_files([] as [&Path; 0], [name])?;
    }
    let outputs: Vec<PathBuf> =
        name.iter().flat_map(|name| extensions.map(|extension| named(name, extension))).collect();
    check_files(stdin, inputs, updated.into_iter().chain(outputs.iter().map(PathBuf::as_path)))
}

/// Writes the object of the command, as [`Out::object`] prints it, as indented JSON.
pub fn write_json(path: &Path, object: &impl Serialize, out: &Out) -> Outcome {
    let text = out.pretty(object).map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?;
    Ok(io::write_file(path, text.as_bytes())?)
}
