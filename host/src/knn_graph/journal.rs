//! The files of a run that can be interrupted: the rows so far, and the journal that accounts for them.
//!
//! `NAME.part` holds the rows in the form of `NAME`. The journal is text. The first line describes the computation;
//! each other line describes a finished batch: the number of rows up to the end of the batch, and checksums (XXH64) of
//! the batch's bytes in each file.
//!
//! ```text
//! warpann-knn-graph version=1 rows=1000 dim=8 element=f32 k=10 metric=l2 base=5d.. index=exact ids=ibin distances=none sum=77..
//! 400 90b1.. 0000.. sum=0c..
//! 1000 11e3.. 0000.. sum=f2..
//! ```
//!
//! The sum of a line covers the line and the sum of the line before, so a changed or moved line is detected. A batch is
//! valid if its line is valid and the bytes have the checksums of the line. Rows are written before their line, and all
//! bytes after the last valid batch are cut off, so a run may stop at any point. If a power failure loses a line, only
//! the batch of that line and later ones are lost.
//!
//! At the end each `NAME.part` is renamed to `NAME`, and then the journal is removed. A run that stops in between
//! leaves `NAME` and the journal; the next run accepts such a file if all checksums agree. Bytes are on the disk before
//! a file is renamed, and new names are on the disk before the journal is removed.
//!
//! Journal and parts are locked while a run works. A run renames a part or removes a journal only if the path still
//! leads to the file that the run has locked. So another run cannot use the same files, even if a file was removed or
//! replaced.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::index::KnnIndex;
use crate::Element;
use crate::error::{Error, FileDefect, Result};
use crate::io::checksum::{of_bytes, xxh64};
use crate::io::{Destination, Format, check_files, folder_of, is_at, known, layout, open_locked, sync_folder};

/// The first word of a journal.
const MAGIC: &str = "warpann-knn-graph";
const VERSION: u32 = 1;

/// The description of a run: two runs with the same recipe make the same files.
pub(super) struct Recipe {
    rows: usize,
    k: usize,
    /// Names and values, without the formats of the files.
    words: Vec<(&'static str, String)>,
}

impl Recipe {
    /// Describes a run. It reads the whole base and the whole index for checksums: O(bytes), in parallel.
    pub fn new<T: Element>(index: &impl KnnIndex<T>, base: &[T], rows: usize, k: usize) -> Result<Self> {
        let base = format!("{:016x}", of_bytes(bytemuck::cast_slice(base)));
        let words = vec![
            ("version", VERSION.to_string()),
            ("rows", rows.to_string()),
            ("dim", index.dim().to_string()),
            ("element", T::TYPE.name().to_owned()),
            ("k", k.to_string()),
            ("metric", index.metric().name().to_owned()),
            ("base", base),
            ("index", index.identity()?),
        ];
        Ok(Self { rows, k, words })
    }
}

/// See [`super::KnnGraph::check_paths`].
pub(super) fn check_paths(out: &Path, distances: Option<&Path>) -> Result<()> {
    ids_format(out)?;
    distances.map(distances_format).transpose()?;
    check_files([] as [&Path; 0], outputs(out, distances)?)
}

/// See [`super::KnnGraph::outputs`].
pub(super) fn outputs(out: &Path, distances: Option<&Path>) -> Result<Vec<PathBuf>> {
    let target = regular(out)?;
    let mut all = vec![out.to_owned(), beside(&target, ".part"), beside(&target, ".journal")];
    if let Some(distances) = distances {
        all.extend([distances.to_owned(), beside(&regular(distances)?, ".part")]);
    }
    Ok(all)
}

/// The file to which `path` leads. It must be a regular file or must not exist yet.
fn regular(path: &Path) -> Result<PathBuf> {
    match Destination::of(path).map_err(|source| failed(path, source))? {
        Destination::File(target) => Ok(target),
        Destination::Stream => {
            let reason = "a graph needs a regular file, so that an interrupted run can resume";
            Err(failed(path, io::Error::new(io::ErrorKind::InvalidInput, reason)))
        }
    }
}

fn ids_format(path: &Path) -> Result<Format> {
    known(path, |format| matches!(format, Format::Ibin | Format::Npy), "ibin, npy")
}

fn distances_format(path: &Path) -> Result<Format> {
    known(path, |format| matches!(format, Format::Fbin | Format::Npy), "fbin, npy")
}

/// The open files of a run.
pub(super) struct Files {
    journal: File,
    journal_path: PathBuf,
    ids: Part,
    distances: Option<Part>,
    /// Rows that are kept.
    rows: usize,
    /// The checksum of the last line.
    sum: u64,
}

impl Files {
    /// Locks the journal, and takes over the batches whose checksums agree with the files.
    pub fn open(recipe: &Recipe, out: &Path, distances: Option<&Path>, restart: bool) -> Result<Self> {
        let ids_format = ids_format(out)?;
        let distances_format = distances.map(distances_format).transpose()?;
        let mut words = recipe.words.clone();
        words.push(("ids", ids_format.extension().to_owned()));
        words.push(("distances", distances_format.map_or("none", Format::extension).to_owned()));
        let words: Vec<String> = words.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let head = format!("{MAGIC} {}", words.join(" "));

        let out = &regular(out)?;
        let journal_path = beside(out, ".journal");
        let mut journal = open_locked(&journal_path).map_err(|source| failed(&journal_path, source))?;
        let mut text = Vec::new();
        journal.read_to_end(&mut text).map_err(|source| failed(&journal_path, source))?;
        // A journal without a line is new.
        let mut lines = Lines::new(if restart { &[] } else { &text });
        if !lines.text.is_empty() {
            check_head(lines.next().as_deref(), &head, &journal_path)?;
        }
        let resumes = lines.read > 0;
        // Until here nothing has been written.
        let mut ids = Part::open(out, ids_format, recipe, "<u4", resumes)?;
        let mut distances = match (distances, distances_format) {
            (Some(path), Some(format)) => Some(Part::open(&regular(path)?, format, recipe, "<f4", resumes)?),
            _ => None,
        };
        let start = (0, lines.read, lines.sum);
        let (mut rows, mut end, mut sum) = start;
        while let Some(batch) = lines.next().and_then(|line| Batch::parse(&line)) {
            let agrees = |part: &mut Part, sum: u64| Ok(part.sum(rows, batch.end)? == Some(sum));
            let ascends = batch.end > rows && batch.end <= recipe.rows;
            if !ascends
                || !agrees(&mut ids, batch.ids)?
                || !distances.as_mut().map_or(Ok(true), |part| agrees(part, batch.distances))?
            {
                break;
            }
            (rows, end, sum) = (batch.end, lines.read, lines.sum);
        }
        let mut ours = true;
        for part in [&mut ids].into_iter().chain(&mut distances) {
            ours &= !part.named || (rows == recipe.rows && part.is_whole(rows)?);
        }
        if !ours {
            // A file with one of the final names belongs to another run. It stays until the new file is complete.
            (rows, end, sum) = start;
        }
        for part in [&mut ids].into_iter().chain(&mut distances) {
            if !ours {
                part.start_over()?;
            }
            part.cut(rows)?;
        }
        let cut = journal.set_len(end as u64).and_then(|()| journal.seek(SeekFrom::End(0)));
        cut.map_err(|source| failed(&journal_path, source))?;
        let mut files = Self { journal, journal_path, ids, distances, rows, sum };
        if end == 0 {
            files.line(&head)?;
        }
        Ok(files)
    }

    /// Rows that are kept.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends the rows up to row `end`, and then their line in the journal.
    pub fn keep(&mut self, end: usize, ids: &[u32], distances: &[f32]) -> Result<()> {
        let (ids, distances) = (bytemuck::cast_slice(ids), bytemuck::cast_slice(distances));
        self.ids.append(ids)?;
        let mut batch = Batch { end, ids: xxh64(ids), distances: 0 };
        if let Some(part) = &mut self.distances {
            part.append(distances)?;
            batch.distances = xxh64(distances);
        }
        self.line(&batch.text())?;
        self.rows = end;
        Ok(())
    }

    /// Renames the files to their final names and removes the journal.
    pub fn finish(self) -> Result<()> {
        let Self { journal, journal_path, ids, distances, .. } = self;
        let parts: Vec<Part> = distances.into_iter().chain([ids]).collect();
        parts.iter().try_for_each(Part::sync)?;
        parts.iter().try_for_each(Part::give_name)?;
        // If the journal was removed or replaced, the file that is there now does not belong to this run.
        if !is_at(&journal, &journal_path) {
            return Ok(());
        }
        std::fs::remove_file(&journal_path).map_err(|source| failed(&journal_path, source))
    }

    fn line(&mut self, line: &str) -> Result<()> {
        self.sum = chained(self.sum, line);
        let text = format!("{line} sum={:016x}\n", self.sum);
        self.journal.write_all(text.as_bytes()).map_err(|source| failed(&self.journal_path, source))
    }
}

/// One of the output files, before it is complete.
struct Part {
    path: PathBuf,
    part: PathBuf,
    file: File,
    /// Whether the file already has its final name, from a run that stopped in [`Files::finish`]. Such a file is not
    /// written.
    named: bool,
    header: Vec<u8>,
    row_bytes: usize,
}

impl Part {
    fn open(path: &Path, format: Format, recipe: &Recipe, descr: &str, resumes: bool) -> Result<Self> {
        // The formats have no bytes in front of rows; ids and distances take four bytes each.
        let (header, _) = layout(path, format, recipe.rows, recipe.k, descr)?;
        let part = beside(path, ".part");
        let row_bytes = recipe.k.saturating_mul(4);
        let named = resumes && !part.exists() && path.is_file();
        let opened = if named { File::open(path) } else { open_locked(&part) };
        let file = opened.map_err(|source| failed(&part, source))?;
        Ok(Self { path: path.to_owned(), part, file, named, header, row_bytes })
    }

    /// Opens a new part without rows. A file that already has its final name stays unchanged.
    fn start_over(&mut self) -> Result<()> {
        if self.named {
            self.file = open_locked(&self.part).map_err(|source| failed(&self.part, source))?;
            self.named = false;
        }
        Ok(())
    }

    /// Whether the file has the expected header and ends after `rows` rows.
    fn is_whole(&mut self, rows: usize) -> Result<bool> {
        let mut read = || -> io::Result<bool> {
            if self.file.metadata()?.len() != self.at(rows) {
                return Ok(false);
            }
            let mut header = vec![0; self.header.len()];
            self.file.seek(SeekFrom::Start(0))?;
            (&self.file).read_exact(&mut header)?;
            Ok(header == self.header)
        };
        read().map_err(|source| failed(&self.path, source))
    }

    /// Offset of row `row` in the file, in bytes.
    fn at(&self, row: usize) -> u64 {
        (self.header.len() as u64).saturating_add((row as u64).saturating_mul(self.row_bytes as u64))
    }

    /// The checksum of the rows from `first` to `end`; none if the file is too short.
    fn sum(&mut self, first: usize, end: usize) -> Result<Option<u64>> {
        let (from, to) = (self.at(first), self.at(end));
        let mut read = || -> io::Result<Option<u64>> {
            if self.file.metadata()?.len() < to {
                return Ok(None);
            }
            self.file.seek(SeekFrom::Start(from))?;
            // Reads at most to the end of the file.
            let mut bytes = Vec::new();
            (&self.file).take(to - from).read_to_end(&mut bytes)?;
            Ok(Some(xxh64(&bytes)))
        };
        read().map_err(|source| failed(&self.part, source))
    }

    /// Cuts the file after the header and the first `rows` rows, and seeks to the end. A file with its final name is
    /// already complete.
    fn cut(&mut self, rows: usize) -> Result<()> {
        if self.named {
            return Ok(());
        }
        let end = self.at(rows);
        let mut write = || -> io::Result<()> {
            self.file.set_len(end)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&self.header)?;
            self.file.seek(SeekFrom::Start(end)).map(drop)
        };
        write().map_err(|source| failed(&self.part, source))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| failed(&self.part, source))
    }

    /// Waits until all bytes are on the disk.
    fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|source| failed(&self.part, source))
    }

    /// Renames the part to its final name, and waits until the name is on the disk.
    fn give_name(&self) -> Result<()> {
        if !self.named {
            if !is_at(&self.file, &self.part) {
                let reason = "the file was removed or replaced during this run";
                return Err(failed(&self.part, io::Error::new(io::ErrorKind::NotFound, reason)));
            }
            std::fs::rename(&self.part, &self.path).map_err(|source| failed(&self.path, source))?;
        }
        sync_folder(folder_of(&self.path)).map_err(|source| failed(&self.path, source))
    }
}

/// A batch whose rows are written.
struct Batch {
    /// Number of rows up to the end of the batch.
    end: usize,
    /// Checksum of the bytes of the batch's ids.
    ids: u64,
    /// Checksum of the bytes of the batch's distances; 0 if there is no file of distances.
    distances: u64,
}

impl Batch {
    fn text(&self) -> String {
        format!("{} {:016x} {:016x}", self.end, self.ids, self.distances)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let end = words.next()?.parse().ok()?;
        let mut sum = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Self { end, ids: sum()?, distances: sum()? })
    }
}

/// The lines of a journal up to the first damaged line, without their checksums.
struct Lines<'a> {
    text: &'a [u8],
    /// Number of bytes of the lines so far.
    read: usize,
    /// The checksum of the last line.
    sum: u64,
}

impl<'a> Lines<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, read: 0, sum: 0 }
    }
}

impl Iterator for Lines<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let rest = &self.text[self.read..];
        let length = rest.iter().position(|&byte| byte == b'\n')?;
        let (line, stated) = std::str::from_utf8(&rest[..length]).ok()?.rsplit_once(" sum=")?;
        let sum = chained(self.sum, line);
        if stated != format!("{sum:016x}") {
            return None;
        }
        self.read += length + 1;
        self.sum = sum;
        Some(line.to_owned())
    }
}

/// The checksum of a line; `before` is the checksum of the line before it.
fn chained(before: u64, line: &str) -> u64 {
    xxh64(&[&before.to_le_bytes(), line.as_bytes()].concat())
}

/// Checks that the first line of a journal, if there is one, is `head`.
fn check_head(found: Option<&str>, head: &str, path: &Path) -> Result<()> {
    const NAMES: [&str; 10] = ["version", "rows", "dim", "element", "k", "metric", "base", "index", "ids", "distances"];
    if found == Some(head) {
        return Ok(());
    }
    let value = |line: &str, name: &str| {
        let of =
            |word: &str| word.split_once('=').filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
        line.split(' ').find_map(of).unwrap_or_default()
    };
    let found = found.filter(|found| found.split(' ').next() == Some(MAGIC));
    let difference = found.and_then(|found| {
        let what = NAMES.into_iter().find(|name| value(found, name) != value(head, name))?;
        Some(FileDefect::OtherRun { what, there: value(found, what), here: value(head, what) })
    });
    let damaged = FileDefect::BadHeader("not the journal of a graph, or damaged; restart to discard it");
    Err(Error::BadFile { path: path.to_owned(), defect: difference.unwrap_or(damaged) })
}

/// `path` with `suffix` appended to the file name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
