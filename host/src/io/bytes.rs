//! Headers and values in the bytes of files: checks of sizes, and copies of values to memory.

use super::checksum::xxh64;
use crate::element::ElementType;
use crate::error::FileDefect;

/// A matrix of consecutive rows in a file. Its size has been checked against the size of the file.
pub(super) struct Flat {
    pub rows: usize,
    pub dim: usize,
    /// Offset of the first value in bytes.
    pub at: usize,
    pub element: ElementType,
}

/// The size of a file with `rows · dim` elements after `header` bytes. An error if the number overflows.
pub(super) fn extent(rows: u64, dim: u64, size: usize, header: usize) -> Result<u64, FileDefect> {
    rows.checked_mul(dim)
        .and_then(|count| count.checked_mul(size as u64))
        .and_then(|bytes| bytes.checked_add(header as u64))
        .filter(|&bytes| bytes <= isize::MAX as u64)
        .ok_or(FileDefect::TooLarge { rows, dim })
}

/// Compares the size of a file with the size that its header requires.
pub(crate) fn check_size(expected: u64, actual: u64) -> Result<(), FileDefect> {
    match actual.cmp(&expected) {
        std::cmp::Ordering::Less => Err(FileDefect::Truncated { expected, actual }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(FileDefect::Oversized { expected, actual }),
    }
}

/// The header of N bytes in the first bytes of a file: `magic`, then `version` as u32, and in the last 8 bytes the
/// XXH64 of those before. `other` says what a file with another magic is.
pub(crate) fn checked_header<'a, const N: usize>(
    bytes: &'a [u8],
    magic: &[u8; 8],
    version: u32,
    other: &'static str,
) -> Result<&'a [u8; N], FileDefect> {
    if !bytes.starts_with(magic) {
        return Err(FileDefect::BadHeader(other));
    }
    let Some(header) = bytes.first_chunk::<N>() else {
        return Err(FileDefect::Truncated { expected: N as u64, actual: bytes.len() as u64 });
    };
    // The version is checked before the checksum, because another version may have the checksum elsewhere.
    let found = bytemuck::pod_read_unaligned::<u32>(&header[8..12]);
    if found != version {
        return Err(FileDefect::Version { found, known: version });
    }
    let (before, sum) = header.split_at(N - 8);
    if bytemuck::pod_read_unaligned::<u64>(sum) != xxh64(before) {
        return Err(FileDefect::Checksum { section: "header" });
    }
    Ok(header)
}

/// An empty vector with room for `rows · dim` values, or an error if memory is short.
pub(super) fn reserve<T>(rows: usize, dim: usize) -> Result<Vec<T>, FileDefect> {
    let too_large = FileDefect::TooLarge { rows: rows as u64, dim: dim as u64 };
    let Some(len) = rows.checked_mul(dim) else { return Err(too_large) };
    let mut values = Vec::new();
    match values.try_reserve_exact(len) {
        Ok(()) => Ok(values),
        Err(_) => Err(too_large),
    }
}

/// Copies values from bytes of any alignment.
pub(super) fn decode<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Result<Vec<T>, FileDefect> {
    let mut values = reserve(bytes.len() / size_of::<T>(), 1)?;
    append(&mut values, bytes);
    Ok(values)
}

/// Appends the values in `bytes`, which may have any alignment; aligned bytes are copied at once.
pub(super) fn append<T: bytemuck::AnyBitPattern>(values: &mut Vec<T>, bytes: &[u8]) {
    match bytemuck::try_cast_slice(bytes) {
        Ok(aligned) => values.extend_from_slice(aligned),
        Err(_) => values.extend(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>)),
    }
}

/// The u32 at byte `at`. The caller has checked that it exists.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytemuck::pod_read_unaligned(&bytes[at..at + 4])
}
