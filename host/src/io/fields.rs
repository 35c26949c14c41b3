//! The fields of files of other programs: read one after the other, without an alignment.

use bytemuck::AnyBitPattern;

use super::bytes::check_size;
use crate::error::FileDefect;

/// The fields of a file, one after the other: little-endian, of any alignment.
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Fields { bytes, at: 0 }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`FileDefect::Truncated`].
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FileDefect> {
        let (actual, expected) = (self.bytes.len() as u64, (self.at as u64).saturating_add(len as u64));
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or(FileDefect::Truncated { expected, actual })?;
        self.at += len;
        Ok(taken)
    }

    pub(crate) fn get<V: AnyBitPattern>(&mut self) -> Result<V, FileDefect> {
        self.take(size_of::<V>()).map(bytemuck::pod_read_unaligned)
    }

    /// A number that must fit in memory.
    pub(crate) fn size(&mut self) -> Result<usize, FileDefect> {
        let size: u64 = self.get()?;
        usize::try_from(size).map_err(|_| FileDefect::TooLarge { rows: size, dim: 1 })
    }

    /// The bytes of `count` values of so many bytes.
    pub(crate) fn values(&mut self, count: usize, bytes: usize) -> Result<&'a [u8], FileDefect> {
        // A number beyond the address space is beyond the file.
        self.take(count.saturating_mul(bytes))
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// [`FileDefect::Oversized`].
    pub(crate) fn finish(&self) -> Result<(), FileDefect> {
        check_size(self.at as u64, self.bytes.len() as u64)
    }
}

/// The values in bytes, whose number is a multiple of their size.
pub(crate) fn values<V: AnyBitPattern>(bytes: &[u8]) -> impl ExactSizeIterator<Item = V> + '_ {
    bytes.chunks_exact(size_of::<V>()).map(bytemuck::pod_read_unaligned)
}

/// A copy of the values in bytes.
///
/// # Errors
/// [`FileDefect::TooLarge`] if there is no memory for it.
pub(crate) fn copied<V: AnyBitPattern>(bytes: &[u8]) -> Result<Vec<V>, FileDefect> {
    let values = values::<V>(bytes);
    let mut copy = room(values.len(), 1)?;
    copy.extend(values);
    Ok(copy)
}

/// An empty vector with room for `rows` · `dim` values.
///
/// # Errors
/// [`FileDefect::TooLarge`] if there is no memory for it.
pub(crate) fn room<V>(rows: usize, dim: usize) -> Result<Vec<V>, FileDefect> {
    let mut values = Vec::new();
    let reserved = rows.checked_mul(dim).map(|count| values.try_reserve_exact(count));
    match reserved {
        Some(Ok(())) => Ok(values),
        _ => Err(FileDefect::TooLarge { rows: rows as u64, dim: dim as u64 }),
    }
}

/// A dimension, which is at least 1.
pub(crate) fn dimension(dim: i64) -> Result<usize, FileDefect> {
    let positive = usize::try_from(dim).ok().filter(|&dim| dim > 0 && i32::try_from(dim).is_ok());
    positive.ok_or(FileDefect::BadDimension(dim))
}
