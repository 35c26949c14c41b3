//! fbin, u8bin, i8bin, ibin and big-ann ground truth: u32 rows, u32 columns, then the values.

use super::bytes::{Flat, check_size, decode, extent, reserve, u32_at};
use super::ids::{GroundTruth, IdMatrix};
use crate::NONE;
use crate::element::ElementType;
use crate::error::FileDefect;
use crate::neighbors::RangeNeighbors;

/// Size of the header in bytes.
const HEADER: usize = 8;

/// Reads rows and columns from the header. Rows without columns are an error.
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

/// The matrix of an fbin, u8bin or i8bin file. With `first`, only its first rows; the bytes behind them are not
/// checked.
pub(super) fn flat(bytes: &[u8], element: ElementType, first: Option<usize>) -> Result<Flat, FileDefect> {
    let (stated, dim) = header(bytes)?;
    let rows = first.map_or(stated, |first| stated.min(first as u64));
    let end = extent(rows, dim, element.size(), HEADER)?;
    let whole = first.and_then(|_| bytes.get(..usize::try_from(end).unwrap_or(usize::MAX)));
    check_size(end, whole.unwrap_or(bytes).len() as u64)?;
    Ok(Flat { rows: rows as usize, dim: dim as usize, at: HEADER, element })
}

/// The ids of an ibin file, and the distances if the file has exactly the size of ids and distances.
pub(super) fn ids(bytes: &[u8]) -> Result<GroundTruth, FileDefect> {
    let (rows, k) = header(bytes)?;
    let ids_end = extent(rows, k, 4, HEADER)?;
    let both_end = extent(rows, k, 8, HEADER)?;
    let actual = bytes.len() as u64;
    let with_distances = actual == both_end && both_end != ids_end;
    if !with_distances {
        // A size between the two means that distances are missing; a larger size than both means that the file is too
        // long.
        check_size(if actual > ids_end { both_end } else { ids_end }, bytes.len() as u64)?;
    }
    let (rows, k, ids_end) = (rows as usize, k as usize, ids_end as usize);
    let mut ids = reserve(rows, k)?;
    ids.extend(wide_ids(&bytes[HEADER..ids_end]));
    let distances = if with_distances { Some(decode(&bytes[ids_end..])?) } else { None };
    Ok(GroundTruth { ids: IdMatrix { rows, k, ids }, distances })
}

/// The u32 ids in `bytes` as u64, with all ones as `NONE`.
fn wide_ids(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(4).map(|id| match bytemuck::pod_read_unaligned::<u32>(id) {
        u32::MAX => NONE,
        id => u64::from(id),
    })
}

/// Reads big-ann ground truth of a range search: u32 number of queries, u32 number of results, then the number of
/// results of each query, then ids and distances of all results.
pub(super) fn ranges(bytes: &[u8]) -> Result<RangeNeighbors, FileDefect> {
    if bytes.len() < HEADER {
        return Err(FileDefect::Truncated { expected: HEADER as u64, actual: bytes.len() as u64 });
    }
    let (queries, results) = (u32_at(bytes, 0), u32_at(bytes, 4));
    check_size(HEADER as u64 + 4 * u64::from(queries) + 8 * u64::from(results), bytes.len() as u64)?;
    let (queries, results) = (queries as usize, results as usize);
    let (counts, found) = bytes[HEADER..].split_at(4 * queries);
    let mut offsets = reserve(queries + 1, 1)?;
    let mut end = 0usize;
    offsets.push(end);
    for count in counts.chunks_exact(4) {
        end = end.saturating_add(bytemuck::pod_read_unaligned::<u32>(count) as usize);
        offsets.push(end);
    }
    if end != results {
        return Err(FileDefect::BadHeader("the numbers of results do not add up to their total"));
    }
    let mut ids = reserve(results, 1)?;
    ids.extend(wide_ids(&found[..4 * results]));
    Ok(RangeNeighbors { offsets, ids, distances: decode(&found[4 * results..])? })
}
