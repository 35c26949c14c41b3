//! Owned memory, or a part of a file, which is copied when it changes.

use std::ops::Range;
use std::sync::Arc;

use crate::io::FileBytes;
use crate::shared::catch_up;
use crate::{Error, Result, host_memory};

/// Bytes that start at a multiple of 8, so that they can be read as components or ids.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// The first `len` bytes of the words.
    Owned { words: Vec<u64>, len: usize },
    /// A part of a file: within the file, and aligned as the caller of [`Bytes::of_file`] required.
    File { bytes: Arc<FileBytes>, range: Range<usize> },
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::Owned { words: Vec::new(), len: 0 }
    }
}

impl Bytes {
    /// The bytes `range` of a file; `None` unless the file has them and they start at a multiple of `align`.
    pub(crate) fn of_file(bytes: &Arc<FileBytes>, range: Range<usize>, align: usize) -> Option<Bytes> {
        let start = bytes.get(range.clone())?.as_ptr();
        start.addr().is_multiple_of(align).then(|| Bytes::File { bytes: Arc::clone(bytes), range })
    }

    /// A copy of some bytes.
    pub(crate) fn owned(bytes: &[u8]) -> Result<Bytes> {
        Bytes::with_more(bytes, 0)
    }

    /// The bytes as a slice.
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Owned { words, len } => &bytemuck::cast_slice(words)[..*len],
            Bytes::File { bytes, range } => &bytes[range.clone()],
        }
    }

    /// Whether the bytes are owned memory.
    pub(super) fn is_owned(&self) -> bool {
        matches!(self, Bytes::Owned { .. })
    }

    /// Makes the bytes owned, with room for `more` further bytes.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        match self {
            Bytes::Owned { words, len } => {
                let refused = |_| Error::OutOfHostMemory { asked: *len as u64 + more as u64 };
                words.try_reserve((*len + more).div_ceil(8).saturating_sub(words.len())).map_err(refused)
            }
            Bytes::File { .. } => {
                *self = self.copied(more)?;
                Ok(())
            }
        }
    }

    /// An owned copy, with room for `more` further bytes.
    pub(super) fn copied(&self, more: usize) -> Result<Bytes> {
        Bytes::with_more(self.get(), more)
    }

    /// A copy of `bytes`, with room for `more` further bytes.
    fn with_more(bytes: &[u8], more: usize) -> Result<Bytes> {
        let len = bytes.len();
        let mut words = host_memory::with_room((len + more).div_ceil(8))?;
        words.resize(len.div_ceil(8), 0);
        bytemuck::cast_slice_mut(&mut words)[..len].copy_from_slice(bytes);
        Ok(Bytes::Owned { words, len })
    }

    /// Makes these words of 8 bytes equal to `current`, which has other ones at the places `rows`, and at no others.
    pub(super) fn catch_up(&mut self, current: &Bytes, rows: &[u32]) -> Result<()> {
        let Bytes::Owned { words, len } = self else {
            *self = current.copied(0)?;
            return Ok(());
        };
        catch_up(words, bytemuck::cast_slice(current.get()), rows, 1)?;
        *len = current.get().len();
        Ok(())
    }

    /// Appends `count` rows of `bytes` bytes: `row(i)` is row i. Call [`Bytes::reserve`] for all of them first.
    pub(super) fn append<'a>(&mut self, bytes: usize, count: usize, row: impl Fn(usize) -> &'a [u8]) {
        if let Bytes::Owned { words, len } = self {
            let start = *len;
            *len += bytes * count;
            words.resize(len.div_ceil(8), 0);
            let to = &mut bytemuck::cast_slice_mut::<_, u8>(words)[start..*len];
            for (at, to) in to.chunks_exact_mut(bytes).enumerate() {
                to.copy_from_slice(row(at));
            }
        }
    }

    /// Removes the row of `bytes` bytes at `place`; the last row takes its place. Call [`Bytes::reserve`] first.
    pub(super) fn swap_remove(&mut self, bytes: usize, place: usize) {
        if let Bytes::Owned { words, len } = self {
            *len -= bytes;
            let all: &mut [u8] = bytemuck::cast_slice_mut(words);
            all.copy_within(*len..*len + bytes, place * bytes);
            words.truncate(len.div_ceil(8));
        }
    }

    /// Replaces the bytes from `start` on. Call [`Bytes::reserve`] first.
    pub(super) fn replace(&mut self, start: usize, bytes: &[u8]) {
        if let Bytes::Owned { words, .. } = self {
            bytemuck::cast_slice_mut(words)[start..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}
