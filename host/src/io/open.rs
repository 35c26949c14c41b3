//! Opening files: their bytes are read into memory or mapped.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use crate::error::{Error, Result};
use crate::names::named;

/// Whether the bytes of a file are read into memory or mapped.
///
/// # When mapping is safe
/// A mapping always shows the current bytes of the file, even if they changed after the library checked them. Mapping
/// is safe as long as the bytes of the file do not change:
/// - If the file is truncated, the system ends the program (SIGBUS) when it reads a page that no longer exists. The
///   same happens if the disk or a network file system fails.
/// - If another program writes to the file, the searched data changes after the checks, and the library guarantees
///   nothing.
/// - Removing the file, or replacing it by renaming another file to its name, is harmless. The writers of this library
///   do only that.
///
/// Data that was read does not depend on the file. It takes memory for the whole file; a mapping takes only the pages
/// that are used, and the system frees them if memory is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Open {
    /// Reads files of up to [`Open::READ_BYTES`] and maps larger ones.
    #[default]
    Auto,
    /// Reads the file into memory.
    Read,
    /// Maps the file into memory.
    Map,
}

impl Open {
    /// The largest file that [`Open::Auto`] reads: 64 MiB, for which every machine has memory. Reading costs one copy;
    /// mapping is faster for larger files and for files of which only a part is used.
    pub const READ_BYTES: u64 = 64 << 20;
    /// All ways, in the order of their names on the command line.
    pub const ALL: [Open; 3] = [Self::Auto, Self::Read, Self::Map];

    /// Name on the command line: `auto`, `read`, `map`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Read => "read",
            Self::Map => "map",
        }
    }

    /// Whether a file of `bytes` bytes is mapped.
    pub(super) const fn maps(self, bytes: u64) -> bool {
        match self {
            Self::Auto => bytes > Self::READ_BYTES,
            Self::Read => false,
            Self::Map => true,
        }
    }
}

named!(Open, name, "a way to open a file");

/// The bytes of a file, mapped or read. They start at a page of memory either way.
#[derive(Debug)]
pub(crate) struct FileBytes {
    /// The mapping of the file, or anonymous memory with its bytes.
    map: Mmap,
    mapped: bool,
}

impl FileBytes {
    /// A copy of `bytes` in memory that starts at a page.
    pub fn copied(bytes: &[u8]) -> io::Result<Arc<Self>> {
        let mut map = MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        Ok(Arc::new(Self { map: map.make_read_only()?, mapped: false }))
    }

    /// Whether the bytes are those of a mapped file, which other programs can change.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    fn read(mut file: &File, bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut map = MmapMut::map_anon(len)?;
        file.read_exact(&mut map)?;
        Ok(Self { map: map.make_read_only()?, mapped: false })
    }

    fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only, and the documentation of `Open::Map` requires that the file does not
        // change. Shapes and offsets are copied out of the header once, so no bound depends on bytes read twice.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Self { map, mapped: true })
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Opens a regular file. Returns it with its length in bytes.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64)> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    // Checked before opening, because opening a pipe without a writer would block forever.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    Ok((file, bytes))
}

/// The bytes of a file; `None` if it is empty.
pub(crate) fn open(path: &Path, how: Open) -> Result<Option<Arc<FileBytes>>> {
    open_first(path, how, |_| None)
}

/// As [`open`], but reads only a part of the file if `needed` returns a number of bytes. The argument of `needed` is
/// the first eight bytes of the file, or fewer if the file is shorter.
pub(crate) fn open_first(
    path: &Path,
    how: Open,
    needed: impl FnOnce(&[u8]) -> Option<u64>,
) -> Result<Option<Arc<FileBytes>>> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let (file, bytes) = open_regular(path)?;
    if bytes == 0 {
        return Ok(None);
    }
    let opened = || {
        let mut head = [0; 8];
        let head = &mut head[..bytes.min(8) as usize];
        (&file).read_exact(head)?;
        let bytes = needed(head).map_or(bytes, |needed| bytes.min(needed));
        if how.maps(bytes) {
            return FileBytes::map(&file);
        }
        (&file).rewind()?;
        FileBytes::read(&file, bytes)
    };
    opened().map(|bytes| Some(Arc::new(bytes))).map_err(failed)
}
