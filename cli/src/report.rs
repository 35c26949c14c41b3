//! Output of the subcommands: lines of text or one JSON object, and failures. No function panics if a pipe breaks.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

/// Version of the JSON that the program prints and writes: the field `schema` of every object, and the schema in
/// `docs/warpann.schema.json`. It grows when a field is renamed, removed or changes its type, not when a field is
/// added.
pub const SCHEMA: u32 = 1;

/// The failure of a subcommand.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An error of the library.
    #[error("{0}")]
    Library(#[from] warpann::Error),
    /// Arguments or files that contradict each other.
    #[error("{0}")]
    Message(String),
    /// The format of standard input or output is unknown.
    #[error("{stream} has no extension that names its format; name it by {option}")]
    NoFormat {
        /// `standard input` or `standard output`.
        stream: &'static str,
        /// The option that names the format.
        option: &'static str,
    },
    /// An option names a format that the output cannot have.
    #[error("{option} is {format}; the formats of this output are {known}")]
    WrongFormat {
        /// The option that names the format.
        option: &'static str,
        /// The format that was passed.
        format: &'static str,
        /// The formats that the output can have.
        known: &'static str,
    },
    /// An option that only a search in an index has.
    #[error("{option} needs --index: indexes support it (warpann build makes them), exact search over --base does not")]
    NeedsIndex {
        /// The option that was passed.
        option: &'static str,
    },
    /// An option or a command that the kind of the index does not have.
    #[error("{option} is for {known}, not for an index of kind {kind}")]
    OtherKind {
        /// The option or the command.
        option: &'static str,
        /// The kinds that have it.
        known: &'static str,
        /// The kind of the index.
        kind: String,
    },
    /// A file of vectors is not the base of an index.
    #[error(
        "{}: vector {row} is not the vector with id {row} in {}; a graph needs an index whose ids are the numbers of the vectors in the base",
        base.display(), index.display()
    )]
    OtherBase {
        /// The file of vectors.
        base: PathBuf,
        /// The index file, which `--index` names.
        index: PathBuf,
        /// The first row of the file that differs.
        row: usize,
    },
    /// The command line is wrong. The exit code is 2.
    #[error("{0}")]
    Usage(String),
    /// Two back ends, or two searches, have different results.
    #[error("{message}")]
    Difference {
        message: String,
        /// The report of the comparison as JSON, up to the difference.
        report: serde_json::Value,
    },
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(std::io::Error),
    /// Standard error cannot be written.
    #[error("standard error: {0}")]
    Report(std::io::Error),
    /// A failure that rank 0 has printed.
    #[cfg(feature = "mpi")]
    #[error("a rank failed")]
    Told,
}

impl Failure {
    /// A difference that `report` describes.
    pub fn difference(message: String, report: &impl Serialize) -> Self {
        match serde_json::to_value(report) {
            Ok(report) => Self::Difference { message, report },
            Err(error) => Self::Message(format!("{message}; the report cannot be JSON: {error}")),
        }
    }

    /// The identifier of the failure in JSON. It stays the same in later versions; the message may change.
    fn kind(&self) -> &'static str {
        match self {
            Self::Library(error) => error.kind(),
            Self::Message(_) => "invalid_input",
            Self::NoFormat { .. } => "no_format",
            Self::WrongFormat { .. } => "wrong_format",
            Self::NeedsIndex { .. } => "needs_index",
            Self::OtherKind { .. } => "other_kind",
            Self::OtherBase { .. } => "other_base",
            Self::Usage(_) => "usage",
            Self::Difference { .. } => "difference",
            Self::Output(_) | Self::Report(_) => "output",
            #[cfg(feature = "mpi")]
            Self::Told => "rank_failed",
        }
    }

    /// The fields of the failure's JSON object.
    pub fn fields(&self) -> Failed<'_> {
        let report = match self {
            Self::Difference { report, .. } => Some(report),
            _ => None,
        };
        Failed { report, error: ErrorFields { kind: self.kind(), message: self.to_string() } }
    }
}

/// Result of a subcommand.
pub type Outcome<T = ()> = Result<T, Failure>;

/// The fields of every JSON object of the program, in front of the fields of its command.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    /// The command, such as `bench ivf`; none if the command line names none.
    command: Option<&'a str>,
    #[serde(flatten)]
    fields: T,
}

/// The fields of a failure.
#[derive(Serialize)]
pub struct Failed<'a> {
    /// The report of the command, if there is one.
    #[serde(flatten)]
    report: Option<&'a serde_json::Value>,
    error: ErrorFields,
}

#[derive(Serialize)]
struct ErrorFields {
    kind: &'static str,
    message: String,
}

/// Standard output, as text or JSON; or standard error, if the command writes data to standard output.
pub struct Out {
    json: bool,
    aside: bool,
    command: Option<String>,
}

impl Out {
    /// Prints lines, or JSON if `json`. `command` is the command of the objects.
    pub fn new(json: bool, command: Option<String>) -> Self {
        Self { json, aside: false, command }
    }

    /// The same output, but on standard error if `data` is written to standard output.
    pub fn aside(self, data: bool) -> Self {
        Self { aside: data, ..self }
    }

    /// Prints a line; nothing with `--json`.
    pub fn line(&self, line: impl fmt::Display) -> Outcome {
        if self.json {
            return Ok(());
        }
        self.print(format_args!("{line}\n"))
    }

    /// Prints a name and its value, aligned; nothing with `--json`.
    pub fn field(&self, name: &str, value: impl fmt::Display) -> Outcome {
        self.line(format_args!("{name:<12} {value}"))
    }

    /// Prints the JSON object; nothing without `--json`. A command that succeeds calls this once.
    pub fn object(&self, object: &impl Serialize) -> Outcome {
        if !self.json {
            return Ok(());
        }
        let text =
            serde_json::to_string(&self.document(object)).map_err(|error| Failure::Message(error.to_string()))?;
        self.print(format_args!("{text}\n"))
    }

    /// The object as indented JSON, for a file.
    pub fn pretty(&self, object: &impl Serialize) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(&self.document(object))? + "\n")
    }

    /// Prints `error: MESSAGE` on standard error and then, with `--json`, the error as the command's object.
    pub fn fail(&self, failure: &Failure) {
        complain(format_args!("error: {failure}"));
        // If the object cannot be written, the line on standard error remains.
        let _ = self.object(&failure.fields());
    }

    fn document<T>(&self, fields: T) -> Document<'_, T> {
        Document { schema: SCHEMA, command: self.command.as_deref(), fields }
    }

    fn print(&self, text: fmt::Arguments<'_>) -> Outcome {
        if self.aside {
            let mut stderr = std::io::stderr().lock();
            return stderr.write_fmt(text).map_err(Failure::Report);
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_fmt(text).and_then(|()| stdout.flush()).map_err(Failure::Output)
    }
}

/// Prints a line on standard error, and ignores a failure to do so.
pub fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A number of bytes as text, in the largest binary unit in which it is at least 1.
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut size = count as f64;
    let mut name = "bytes";
    for unit in units {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        name = unit;
    }
    if name == "bytes" { format!("{count} bytes") } else { format!("{size:.1} {name}") }
}

/// Parses a number of bytes: digits, then nothing or one of K, M, G, T (powers of 1024), with or without `iB`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" if unit.is_empty() => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("expected a number of bytes, such as 1073741824, 1G or 1GiB".into()),
    };
    let count: u64 = digits.parse().map_err(|_| "expected a number of bytes that fits 64 bits".to_owned())?;
    count.checked_mul(1 << shift).ok_or_else(|| "the number of bytes does not fit 64 bits".into())
}

/// Parses a number that is not 0.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_kind_of_failure() {
        let failed = || std::io::Error::other("failed");
        let all = [
            Failure::Message(String::new()),
            Failure::NoFormat { stream: "standard input", option: "--format" },
            Failure::WrongFormat { option: "--out-format", format: "bin", known: "npy" },
            Failure::NeedsIndex { option: "--filter" },
            Failure::OtherKind { option: "--probes", known: "inverted files", kind: "graph".into() },
            Failure::OtherBase { base: "base.fbin".into(), index: "x.ivf".into(), row: 3 },
            Failure::Usage(String::new()),
            Failure::difference(String::new(), &()),
            Failure::Output(failed()),
            Failure::Report(failed()),
        ];
        let page = include_str!("../../docs/JSON.md").split("\n## Errors\n").nth(1).unwrap();
        let errors = page.split("\n## ").next().unwrap();
        for failure in all {
            let kind = failure.kind();
            assert_eq!(errors.matches(&format!("\n| `{kind}` |")).count(), 1, "{kind}");
        }
    }

    #[test]
    fn bytes_are_parsed_and_printed() {
        for (text, count) in [("0", 0), ("17", 17), ("2K", 2048), ("2KiB", 2048), ("3M", 3 << 20), ("1TiB", 1 << 40)] {
            assert_eq!(parse_bytes(text), Ok(count));
        }
        for text in ["", "K", "iB", "1iB", "1k", "-1", "1.5G", "99999999999999999999", "99999999999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(1 << 50), "1024.0 TiB");
    }
}
