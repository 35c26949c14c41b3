//! The formats fvecs, bvecs and ivecs: each row is an i32 dimension, followed by the values.

use super::bytes::{append, reserve, u32_at};
use super::ids::{GroundTruth, IdMatrix};
use super::vectors::{Vectors, data_of};
use crate::NONE;
use crate::element::Element;
use crate::error::FileDefect;

/// Rows and dimension of a file with values of `size` bytes; every row's dimension is compared with the first's.
/// O(rows).
fn shape(bytes: &[u8], size: usize) -> Result<(usize, usize), FileDefect> {
    let actual = bytes.len() as u64;
    let (mut rows, mut first, mut at) = (0usize, 0usize, 0usize);
    while at < bytes.len() {
        if bytes.len() - at < 4 {
            return Err(FileDefect::Truncated { expected: at as u64 + 4, actual });
        }
        let stated = u32_at(bytes, at) as i32;
        if rows == 0 {
            if stated <= 0 {
                return Err(FileDefect::BadDimension(stated.into()));
            }
            first = stated as usize;
        } else if usize::try_from(stated) != Ok(first) {
            return Err(FileDefect::UnevenRows { row: rows as u64, expected: first as u64, actual: stated.into() });
        }
        // At most 4 + 2^31 · 4 bytes behind bytes that are in memory, so 64 bits do not overflow.
        let end = at as u64 + 4 + first as u64 * size as u64;
        if end > actual {
            return Err(FileDefect::Truncated { expected: end, actual });
        }
        at = end as usize;
        rows += 1;
    }
    Ok((rows, first))
}

/// The bytes of each row's values.
fn payloads(bytes: &[u8], dim: usize, size: usize) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(4 + dim * size).map(|row| &row[4..])
}

/// Reads an fvecs or bvecs file, depending on `T`. With `first`, only the first rows; the bytes behind them are not
/// checked.
pub(super) fn vectors<T: Element>(bytes: &[u8], first: Option<usize>) -> Result<Vectors, FileDefect> {
    let size = size_of::<T>();
    let bytes = match first {
        Some(rows) if bytes.len() >= 4 => {
            // `shape` refuses impossible dimensions.
            let row_bytes = (u32_at(bytes, 0) as usize).saturating_mul(size).saturating_add(4);
            &bytes[..bytes.len().min(rows.saturating_mul(row_bytes))]
        }
        _ => bytes,
    };
    let (rows, dim) = shape(bytes, size)?;
    let mut values: Vec<T> = reserve(rows, dim)?;
    for row in payloads(bytes, dim, size) {
        append(&mut values, row);
    }
    Ok(Vectors::from_parts(rows, dim, data_of(values)))
}

/// Reads the ids of an ivecs file.
pub(super) fn ids(bytes: &[u8]) -> Result<GroundTruth, FileDefect> {
    let (rows, k) = shape(bytes, 4)?;
    let mut ids = reserve(rows, k)?;
    for (row, payload) in payloads(bytes, k, 4).enumerate() {
        for (column, value) in payload.chunks_exact(4).map(bytemuck::pod_read_unaligned::<i32>).enumerate() {
            ids.push(match value {
                -1 => NONE,
                value => u64::try_from(value).map_err(|_| FileDefect::BadId {
                    row: row as u64,
                    column: column as u64,
                    id: value.into(),
                })?,
            });
        }
    }
    Ok(GroundTruth { ids: IdMatrix { rows, k, ids }, distances: None })
}
