//! Outputs: the checks of output files before a call, and the writing of files.
//!
//! # Temporary files
//! A file is written under another name in its folder and takes its name when it is complete and on the disk. The other
//! name is `.warpann-HASH-N.part`: HASH is the XXH64 of the file's name, and N is the first number from 0 that no
//! active writer uses; an active writer holds a lock on the temporary file. If a process is killed, its temporary file
//! remains until the next writer of the same name removes it. So the number of remaining files is at most the number of
//! writers of one file that were killed at the same time. On a file system without locks, such files stay.
//!
//! A file that is replaced keeps its permissions and, as far as the process may set them, its owner and group. The
//! temporary file has them before the first byte is written.
//!
//! # Locks
//! A writer replaces a whole file, so of two programs that load, change and save one file at the same time one would
//! lose its change. [`lock_file`] makes the second wait for the first. The lock of a file is a lock on
//! `.warpann-HASH.lock` in its folder, and not on the file itself, because the writer replaces the file, and because
//! some systems let no one else read a locked file.
//!
//! A link is followed: its target is replaced, and the link stays. A pipe or a character device is written, not
//! replaced. Its bytes come from a file in the system's temporary folder, because writers seek.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use super::checksum::xxh64;
use crate::error::{Error, FileDefect, Result};
use crate::{Stage, Watch};

/// Largest number of links to follow from one path, equal to the limit of Linux.
const MOST_LINKS: usize = 40;
/// Largest number of processes that can write one file at the same time.
const MOST_WRITERS: usize = 1000;
/// Largest number of attempts to open a file that other processes remove in the meantime.
const MOST_ATTEMPTS: usize = 100;

/// The kind of file at the path of an output.
pub(crate) enum Destination {
    /// A regular file that exists or will be made. The path does not end in a link.
    File(PathBuf),
    /// A pipe or a character device.
    Stream,
}

impl Destination {
    /// Finds the file to which `path` leads.
    ///
    /// # Errors
    /// Errors of the system; `IsADirectory`; `InvalidInput` if the file cannot be written, such as a block device.
    pub fn of(path: &Path) -> io::Result<Self> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if is_stream(&found) => return Ok(Self::Stream),
            Ok(found) if found.is_file() => {}
            Ok(_) => return Err(invalid("neither a regular file nor a pipe nor a character device")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            match std::fs::read_link(&path) {
                Ok(next) => path = folder_of(&path).join(next),
                // Not a link, or no such file.
                Err(_) => return Ok(Self::File(path)),
            }
        }
        Err(invalid("too many links"))
    }
}

/// Checks the outputs of a call before any work. It refuses an output that is the same file as an input or another
/// output, by any path or link, an output that is a folder, and an output whose folder is missing or not writable.
/// O(inputs · outputs).
///
/// It makes and removes a temporary file in the folder of every output. It does not open pipes and character devices,
/// and several outputs may go to one device, such as the null device. It ignores inputs that do not exist; their
/// readers report them.
///
/// # Errors
/// [`Error::BadFile`] for an output that is the same file as another; [`Error::Io`] with the output that cannot be
/// written.
pub fn check_files<I: AsRef<Path>, O: AsRef<Path>>(
    inputs: impl IntoIterator<Item = I>,
    outputs: impl IntoIterator<Item = O>,
) -> Result<()> {
    let known = |path: I| Some((path.as_ref().to_owned(), Identity::of(path.as_ref()).ok()??));
    let mut known: Vec<(PathBuf, Identity)> = inputs.into_iter().filter_map(known).collect();
    let outputs: Vec<O> = outputs.into_iter().collect();
    for path in outputs.iter().map(AsRef::as_ref) {
        let Some(identity) = Identity::of(path).map_err(|source| failed(path, source))? else { continue };
        if let Some((other, _)) = known.iter().find(|(_, known)| *known == identity) {
            let defect = FileDefect::SameFile { other: other.clone() };
            return Err(Error::BadFile { path: path.to_owned(), defect });
        }
        known.push((path.to_owned(), identity));
    }
    outputs.iter().map(AsRef::as_ref).try_for_each(|path| {
        let made = Destination::of(path).and_then(|destination| match destination {
            Destination::File(target) => Temporary::new(&target).map(drop),
            Destination::Stream => Ok(()),
        });
        made.map_err(|source| failed(path, source))
    })
}

/// The identity of a file: equal for two paths of the same file, also if the file does not exist yet.
#[derive(Debug, PartialEq)]
struct Identity {
    /// The file, or its folder if the file does not exist.
    at: FileId,
    /// The name of a file that does not exist.
    name: Option<OsString>,
}

impl Identity {
    /// The identity of the file at `path`; none for a character device, to which several outputs may go.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        if let Destination::File(target) = Destination::of(path)? {
            return match FileId::of(&target) {
                Ok(at) => Ok(Some(Self { at, name: None })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let name =
                        target.file_name().ok_or_else(|| invalid("the path does not end in a file name"))?.to_owned();
                    Ok(Some(Self { at: FileId::of(folder_of(&target))?, name: Some(name) }))
                }
                Err(error) => Err(error),
            };
        }
        let pipe = !is_device(&std::fs::metadata(path)?);
        pipe.then(|| Ok(Self { at: FileId::of(path)?, name: None })).transpose()
    }
}

/// The device and the inode number of a file.
#[cfg(unix)]
#[derive(Debug, PartialEq)]
struct FileId(u64, u64);

#[cfg(unix)]
impl FileId {
    fn of(path: &Path) -> io::Result<Self> {
        std::fs::metadata(path).map(|found| Self::from(&found))
    }
}

#[cfg(unix)]
impl From<&std::fs::Metadata> for FileId {
    fn from(found: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(found.dev(), found.ino())
    }
}

/// The path without links. Two hard links to one file are not recognised as the same file.
#[cfg(not(unix))]
#[derive(Debug, PartialEq)]
struct FileId(PathBuf);

#[cfg(not(unix))]
impl FileId {
    fn of(path: &Path) -> io::Result<Self> {
        std::fs::canonicalize(path).map(Self)
    }
}

#[cfg(unix)]
fn is_device(found: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_char_device(&found.file_type())
}

#[cfg(unix)]
fn is_stream(found: &std::fs::Metadata) -> bool {
    is_device(found) || std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type())
}

#[cfg(not(unix))]
fn is_device(_: &std::fs::Metadata) -> bool {
    false
}

#[cfg(not(unix))]
fn is_stream(_: &std::fs::Metadata) -> bool {
    false
}

/// Number of bytes that are written between two calls of a watch.
const WATCHED_BYTES: usize = 8 << 20;

/// A file whose writing is watched.
pub(crate) struct Watched<'f, 'w> {
    file: &'f mut File,
    watch: &'f Watch<'w>,
    done: usize,
    total: usize,
    /// Whether the watch has cancelled. A buffer in front of the file writes its rest when it is dropped.
    cancelled: bool,
}

impl<'f, 'w> Watched<'f, 'w> {
    /// Writes to `file`, to which `total` bytes will be written.
    pub(crate) fn new(file: &'f mut File, watch: &'f Watch<'w>, total: usize) -> Self {
        Self { file, watch, done: 0, total, cancelled: false }
    }
}

/// A write fails if the watch cancels; [`failed`] makes [`Error::Cancelled`] of this failure.
impl Write for Watched<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cancelled {
            return Err(io::Error::other(Error::Cancelled));
        }
        let written = self.file.write(&bytes[..bytes.len().min(WATCHED_BYTES)])?;
        let before = self.done;
        self.done += written;
        // Small writes are not worth a call each.
        if self.done / WATCHED_BYTES > before / WATCHED_BYTES || self.done == self.total {
            let reported = self.watch.report(Stage::Saving, self.done, self.total);
            self.cancelled = reported.is_err();
            reported.map_err(io::Error::other)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Replaces `path` by a file with the bytes that `write` writes. The file gets the name when it is complete and on the
/// disk. After a failure the old file is unchanged and there is no temporary file. A pipe or a device gets the bytes
/// when they are complete.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let replaced = || match Destination::of(path)? {
        Destination::File(target) => {
            let mut temporary = Temporary::new(&target)?;
            write(&mut temporary.file)?;
            temporary.persist(&target)
        }
        Destination::Stream => {
            let mut file = unnamed()?;
            write(&mut file)?;
            file.rewind()?;
            let mut out = OpenOptions::new().write(true).open(path)?;
            io::copy(&mut file, &mut out).map(drop)
        }
    };
    replaced().map_err(|source| failed(path, source))
}

/// Makes a file without a name in the system's temporary folder. The system removes the file when it is closed. Only
/// this user may read it.
#[cfg(unix)]
fn unnamed() -> io::Result<File> {
    use std::hash::{BuildHasher, RandomState};

    for _ in 0..MOST_ATTEMPTS {
        // The standard library seeds each state at random, so other programs cannot take the name in advance. If a file
        // of the name exists nevertheless, or a link, `create_new` does not open it.
        let path = std::env::temp_dir()
            .join(format!(".warpann-{:016x}.part", RandomState::new().hash_one(std::process::id())));
        match new_file(true).open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Outputs are pipes or character devices on Unix only ([`is_stream`]).
#[cfg(not(unix))]
fn unnamed() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes `bytes` to a file as the writers of this module do: completely, or not at all. O(bytes).
///
/// # Errors
/// [`Error::Io`] if the file cannot be written.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    replace(path.as_ref(), |file| io::Write::write_all(file, bytes))
}

/// As [`write_file`], but `write` writes the bytes. If `write` fails, the old file stays.
///
/// # Errors
/// [`Error::Io`] if the file cannot be written, and with the error that `write` returns.
pub fn write_file_with(path: impl AsRef<Path>, write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<()> {
    replace(path.as_ref(), |file| {
        let mut out = io::BufWriter::new(file);
        write(&mut out)?;
        io::Write::flush(&mut out)
    })
}

/// A temporary file. If it is dropped before it gets its final name, it is removed.
struct Temporary {
    path: PathBuf,
    /// The file is locked, so that other writers do not take it for the file of a killed process.
    file: File,
    named: bool,
}

impl Temporary {
    /// Makes a temporary file in the folder of `target`, with the access of the file there.
    fn new(target: &Path) -> io::Result<Self> {
        let old = std::fs::metadata(target).ok();
        for number in 0..MOST_WRITERS {
            let path = hidden(target, &format!("-{number}.part"))?;
            if let Some(file) = take(&path, old.is_some())? {
                let made = Self { path, file, named: false };
                old.map_or(Ok(()), |old| keep_access(&made.file, &old))?;
                return Ok(made);
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "the folder contains too many temporary files of this name"))
    }

    fn persist(mut self, target: &Path) -> io::Result<()> {
        // First the bytes, then the name: after a power failure the name leads to the complete new file or to the old
        // one.
        self.file.sync_all()?;
        std::fs::rename(&self.path, target)?;
        self.named = true;
        sync_folder(folder_of(target))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.named {
            // The file is still locked. If it cannot be removed, the next writer of the name removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The path of a file that belongs to `target`: `.warpann-HASH` and `suffix` in the same folder.
fn hidden(target: &Path, suffix: &str) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or_else(|| invalid("the path does not end in a file name"))?;
    Ok(folder_of(target).join(format!(".warpann-{:016x}{suffix}", xxh64(name.as_encoded_bytes()))))
}

/// Gives a new file the permissions of the file that it will replace, and the owner and the group, as far as the
/// process may set them.
#[cfg(unix)]
fn keep_access(file: &File, old: &std::fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};

    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) && fchown(file, Some(old.uid()), Some(old.gid())).is_err() {
        // Only root may give a file to another owner. The group may be one of the process's; if it is not, it stays
        // that of new files.
        let _ = fchown(file, None, Some(old.gid()));
    }
    if new.mode() == old.mode() { Ok(()) } else { file.set_permissions(old.permissions()) }
}

/// Other systems take the access of a new file from its folder.
#[cfg(not(unix))]
fn keep_access(_: &File, _: &std::fs::Metadata) -> io::Result<()> {
    Ok(())
}

/// How a new file is opened. Only this user may open a `private` file.
fn new_file(private: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if private { 0o600 } else { 0o666 });
    // Other systems take the access of a new file from its folder.
    #[cfg(not(unix))]
    let _ = private;
    options
}

/// Makes a locked file at `path`. `None` if another process uses the file there, or if the file there cannot be
/// removed.
fn take(path: &Path, private: bool) -> io::Result<Option<File>> {
    for _ in 0..MOST_ATTEMPTS {
        match new_file(private).open(path) {
            Ok(file) => {
                // Before it is locked, another writer may take it for the file of a killed process and remove it.
                if lock(&file).is_ok() && is_at(&file, path) {
                    return Ok(Some(file));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
                    return Ok(None);
                }
                let Ok(left) = OpenOptions::new().write(true).open(path) else { return Ok(None) };
                if !matches!(lock(&left), Ok(true)) {
                    return Ok(None);
                }
                if is_at(&left, path) && std::fs::remove_file(path).is_err() {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The right to change a file. Only one value of one process has it at a time; dropping the value gives it up.
#[derive(Debug)]
pub struct FileLock {
    /// The file that is locked, `.warpann-HASH.lock`.
    path: PathBuf,
    /// Locked until it is closed.
    _file: File,
}

/// Takes the lock of the file at `path`, which need not exist. While another process or value holds it, calls `wait`
/// once and waits. The system releases the lock of a process that ends, however it ends.
///
/// A program that loads an index, changes it and saves it under the same name holds the lock meanwhile, or changes of
/// programs that do the same at the same time are lost. The program `warpann` does so. Loading and saving do not take
/// the lock: they need none, since a file is replaced as a whole. Two values for one file in one thread wait for each
/// other without end. On a file system without locks nothing is locked.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be written, or `path` leads to something other than a file.
///
/// ```
/// use warpann::{Device, GraphIndex, io};
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("x.graph");
/// # GraphIndex::<f32>::builder(2).device(Device::Cpu).build()?.save(&path)?;
/// let lock = io::lock_file(&path, || eprintln!("another program changes the index: waiting"))?;
/// let mut index = GraphIndex::<f32>::load(&path, Device::Cpu, None)?;
/// index.add(&[1.0, 2.0])?;
/// index.save(&path)?;
/// drop(lock);
/// # Ok::<(), warpann::Error>(())
/// ```
pub fn lock_file(path: impl AsRef<Path>, wait: impl FnOnce()) -> Result<FileLock> {
    let path = path.as_ref();
    let locked = || match Destination::of(path)? {
        Destination::File(target) => FileLock::take(hidden(&target, ".lock")?, wait),
        Destination::Stream => Err(invalid("only a regular file can be locked")),
    };
    locked().map_err(|source| failed(path, source))
}

impl FileLock {
    fn take(path: PathBuf, wait: impl FnOnce()) -> io::Result<Self> {
        let mut wait = Some(wait);
        loop {
            let made = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = match made {
                // Of another user.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(&path)?,
                made => made?,
            };
            match lock(&file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(wait) = wait.take() {
                        wait();
                    }
                    match file.lock() {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        locked => locked?,
                    }
                }
                locked => drop(locked?),
            }
            // The process that had the lock has removed the file, and others may have made and locked a new one.
            if is_at(&file, &path) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // The file is still locked. If it cannot be removed, it stays and the next process locks it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens a file to read and write, or makes it, and locks it until it is closed. On return, `path` leads to the locked
/// file.
///
/// # Errors
/// Errors of the system; `WouldBlock` if another process has locked the file.
pub(crate) fn open_locked(path: &Path) -> io::Result<File> {
    for _ in 0..MOST_ATTEMPTS {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock(&file)?;
        // Between opening and locking, another process may have removed or replaced the file.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Locks a file until it is closed. Returns false if the file system has no locks.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another run is at work on this file"))
        }
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether `path` leads to the open file `file`.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|file| FileId::of(path).is_ok_and(|there| there == FileId::from(&file)))
}

/// Whether `path` leads to a file. On systems without inode numbers, an open file cannot be replaced.
#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, path: &Path) -> bool {
    path.is_file()
}

/// Writes the names in a folder to the disk, as `sync_all` writes the bytes of a file.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    // Only Unix can open folders.
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // The folder may be written but not read, or the file system does not support the call.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// The folder that contains the file of a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

fn failed(path: &Path, source: io::Error) -> Error {
    match source.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Error::Cancelled) => Error::Cancelled,
        _ => Error::Io { path: path.to_owned(), source },
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_without_a_name_is_read_back_and_private() {
        let mut files = [unnamed().unwrap(), unnamed().unwrap()];
        for (file, text) in files.iter_mut().zip(["first", "second"]) {
            file.write_all(text.as_bytes()).unwrap();
            let found = file.metadata().unwrap();
            assert_eq!((found.nlink(), found.mode() & 0o777, found.len()), (0, 0o600, text.len() as u64));
        }
        for (file, expected) in files.iter_mut().zip(["first", "second"]) {
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, expected);
        }
    }
}
