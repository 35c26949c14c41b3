//! Where outputs go: which files a call may write, and how a file gets its bytes and its name.
//!
//! # Temporary files
//! A file is written under another name in its folder and takes its name when it is complete and on the disk. The other name is
//! `.warpann-HASH-N.part`: HASH is the XXH64 of the file's name, and N is the first number from 0 that no writer at work holds, which
//! a lock on the file tells. A process that is killed leaves the file; the next writer of the same name removes it. So at most as many
//! are left as writers of one file were killed at once. A file system without locks cannot tell them apart: there they stay.
//!
//! A link is followed: the file where it leads is replaced, and the link stays. A pipe or a character device is not replaced but
//! written, from a file in the system's folder for temporary ones, because writers seek.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};

use super::checksum::xxh64;
use crate::error::{Error, Result};

/// Links from one path to the next that are followed, as many as Linux follows.
const MOST_LINKS: usize = 40;
/// Processes that can write one file at the same time.
const MOST_WRITERS: usize = 1000;
/// How often a file is opened anew that another process has removed in the meantime.
const MOST_ATTEMPTS: usize = 100;

/// What stands, or will stand, at the path of an output.
pub(crate) enum Destination {
    /// A regular file, or none yet; the path names it without a link at its end.
    File(PathBuf),
    /// A pipe or a character device.
    Stream,
}

impl Destination {
    /// What `path` leads to.
    ///
    /// # Errors
    /// The system's; `IsADirectory`; `InvalidInput` if it is nothing that can be written, such as a block device.
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
                // Not a link, or not there.
                Err(_) => return Ok(Self::File(path)),
            }
        }
        Err(invalid("too many links"))
    }
}

/// Refuses, before any work, what would make the outputs of a call fail or overwrite each other or the inputs: an output that is the
/// same file as another one, by whatever path or link, a folder in its place, and a folder that is missing or in which no file can be
/// made. O(inputs · outputs).
///
/// A temporary file is made and removed in the folder of every output. Pipes and character devices are not opened, and several
/// outputs may go to one device, such as the null device. Inputs that cannot be found are left to their readers.
///
/// # Errors
/// [`Error::SameFile`]; [`Error::Io`] with the output that cannot be written.
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
            return Err(Error::SameFile { path: path.to_owned(), other: other.clone() });
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

/// Equal for two paths of the same file, also of one that is not there yet.
#[derive(Debug, PartialEq)]
struct Identity {
    /// The file; of one that is not there, its folder.
    at: FileId,
    /// The name of a file that is not there.
    name: Option<OsString>,
}

impl Identity {
    /// None for a character device, which many may write at once.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        if let Destination::File(target) = Destination::of(path)? {
            return match FileId::of(&target) {
                Ok(at) => Ok(Some(Self { at, name: None })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let name = target.file_name().ok_or_else(|| invalid("no name of a file"))?.to_owned();
                    Ok(Some(Self { at: FileId::of(folder_of(&target))?, name: Some(name) }))
                }
                Err(error) => Err(error),
            };
        }
        let pipe = !is_device(&std::fs::metadata(path)?);
        pipe.then(|| Ok(Self { at: FileId::of(path)?, name: None })).transpose()
    }
}

/// Device and number of a file.
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

/// The path without links: two names of one file are not recognised.
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

/// Makes `path` a file of what `write` writes, which takes the name when it is complete and on the disk. A failure leaves what was
/// there, and no temporary file. To a pipe or a device the bytes are written when they are complete.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let replaced = || match Destination::of(path)? {
        Destination::File(target) => {
            let mut temporary = Temporary::new(&target)?;
            write(&mut temporary.file)?;
            temporary.persist(&target)
        }
        Destination::Stream => {
            let mut file = tempfile::tempfile()?;
            write(&mut file)?;
            file.rewind()?;
            let mut out = OpenOptions::new().write(true).open(path)?;
            io::copy(&mut file, &mut out).map(drop)
        }
    };
    replaced().map_err(|source| failed(path, source))
}

/// Writes a file of any bytes as the writers of this module do: all of it, or nothing. O(bytes).
///
/// # Errors
/// [`Error::Io`].
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    replace(path.as_ref(), |file| io::Write::write_all(file, bytes))
}

/// A file on its way to a name; dropped before it has it, it is removed.
struct Temporary {
    path: PathBuf,
    /// Locked, so that no other writer takes it for one that a killed process left.
    file: File,
    named: bool,
}

impl Temporary {
    /// A new file in the folder of `target`.
    fn new(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or_else(|| invalid("no name of a file"))?;
        let hash = xxh64(name.as_encoded_bytes());
        for number in 0..MOST_WRITERS {
            let path = folder_of(target).join(format!(".warpann-{hash:016x}-{number}.part"));
            if let Some(file) = take(&path)? {
                return Ok(Self { path, file, named: false });
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "too many temporary files of this name are in its folder"))
    }

    fn persist(mut self, target: &Path) -> io::Result<()> {
        // First the bytes, then the name: after a power failure the name stands for all of them or for the old file.
        self.file.sync_all()?;
        std::fs::rename(&self.path, target)?;
        self.named = true;
        sync_folder(folder_of(target))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.named {
            // Still locked. If it cannot be removed, the next writer of the name does.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A new file at `path`, locked. `None` if another process is at work there, or if what is there is not to be removed.
fn take(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..MOST_ATTEMPTS {
        match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Ok(file) => {
                // Until it is locked, another writer may take it for one that is left, and remove it.
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

/// Opens a file to read and write, makes it if it is not there, and keeps other processes out until it is closed: the file that is
/// locked is the one that has the name.
///
/// # Errors
/// The system's; `WouldBlock` if another process has it.
pub(crate) fn open_locked(path: &Path) -> io::Result<File> {
    for _ in 0..MOST_ATTEMPTS {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock(&file)?;
        // Between the opening and the lock another process may have removed or replaced it.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Locks a file until it is closed; false where the file system has no locks.
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

/// Whether `path` leads to this very file.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|file| FileId::of(path).is_ok_and(|there| there == FileId::from(&file)))
}

/// Whether `path` leads to a file: where files have no numbers, an open one cannot be replaced.
#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, path: &Path) -> bool {
    path.is_file()
}

/// Makes the names in a folder last, as `sync_all` does the bytes of a file.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    // Only Unix opens folders.
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder that may be written but not read, or a file system that has no such call.
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

/// The folder that a path names a file in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
