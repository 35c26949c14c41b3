//! fbin, u8bin, i8bin, ibin and big-ann ground truth: u32 rows, u32 columns, then the values.

use super::ids::{GroundTruth, IdMatrix};
use super::{Flat, check_size, decode, extent, reserve, u32_at};
use crate::NONE;
use crate::element::ElementType;
use crate::error::FileDefect;

/// Bytes of the header.
const HEADER: usize = 8;

/// Rows and columns of the header; rows without columns are refused.
fn header(bytes: &[u8]) -> Result<(u64, u64), FileDefect> {
    if bytes.len() < HEADER {
        return Err(FileDefect::Truncated { expected: HEADER as u64, actual: bytes.len() as u64 });
    }
    let (rows, columns) = (u32_at(bytes, 0), u32_at(bytes, 4));
    if rows > 0 && columns == 0 {
        return Err(FileDefect::BadDimension(0));
    }
    Ok((rows.into(), columns.into()))
}

/// The matrix of an fbin, u8bin or i8bin file; with `first` its first rows, whatever follows them.
pub(super) fn flat(bytes: &[u8], element: ElementType, first: Option<usize>) -> Result<Flat, FileDefect> {
    let (stated, dim) = header(bytes)?;
    let rows = first.map_or(stated, |first| stated.min(first as u64));
    let end = extent(rows, dim, element.size(), HEADER)?;
    let whole = first.and_then(|_| bytes.get(..usize::try_from(end).unwrap_or(usize::MAX)));
    check_size(end, whole.unwrap_or(bytes))?;
    Ok(Flat { rows: rows as usize, dim: dim as usize, at: HEADER, element })
}

/// ibin, or ids followed by as many distances if the file is exactly that long.
pub(super) fn ids(bytes: &[u8]) -> Result<GroundTruth, FileDefect> {
    let (rows, k) = header(bytes)?;
    let ids_end = extent(rows, k, 4, HEADER)?;
    let both_end = extent(rows, k, 8, HEADER)?;
    let actual = bytes.len() as u64;
    let with_distances = actual == both_end && both_end != ids_end;
    if !with_distances {
        // Between the two sizes the distances are cut short; past the second the file is too long for either.
        check_size(if actual > ids_end { both_end } else { ids_end }, bytes)?;
    }
    let (rows, k, ids_end) = (rows as usize, k as usize, ids_end as usize);
    let mut ids = reserve(rows, k)?;
    ids.extend(bytes[HEADER..ids_end].chunks_exact(4).map(|id| match bytemuck::pod_read_unaligned::<u32>(id) {
        u32::MAX => NONE,
        id => u64::from(id),
    }));
    let distances = if with_distances { Some(decode(&bytes[ids_end..])?) } else { None };
    Ok(GroundTruth { ids: IdMatrix { rows, k, ids }, distances })
}
