//! Checks of what callers give, for every index.

use crate::parallel::{Loop, ParallelSlice};
use crate::{Element, Error, Input, Result};

/// Rows one index can hold: row numbers are u32 inside, and all ones means "no row".
pub const MAX_ROWS: u64 = u32::MAX as u64;

/// Components that a vector can have: 32-bit numbers count them, rounded up, inside kernels. Devices may hold less.
pub const MAX_COMPONENTS: usize = i32::MAX as usize;

/// Values that are checked together: the place of a bad one is looked up only on failure.
const CHUNK: usize = 1024;

/// That vectors can have `dim` components.
pub(crate) fn check_dim(dim: usize) -> Result<()> {
    match dim {
        0 => Err(Error::ZeroDimension),
        1..=MAX_COMPONENTS => Ok(()),
        _ => Err(Error::TooManyDimensions { what: "the library", dim, limit: MAX_COMPONENTS }),
    }
}

/// That `asked` rows are not more than `limit`.
pub(crate) fn check_rows(asked: u64, limit: u64) -> Result<()> {
    if asked > limit { Err(Error::TooManyRows { asked, limit }) } else { Ok(()) }
}

/// That `ids` and `distances` hold a slot for each of `k` neighbours of `count` queries.
pub(crate) fn check_results(count: usize, k: usize, ids: &[u64], distances: &[f32]) -> Result<()> {
    let Some(slots) = count.checked_mul(k) else { return Err(Error::ResultTooLarge { queries: count, k }) };
    for len in [ids.len(), distances.len()] {
        if len != slots {
            return Err(Error::WrongResultLength { expected: slots, actual: len });
        }
    }
    Ok(())
}

/// Number of vectors in `rows`, once they are known to be whole.
pub(crate) fn check_whole<T>(rows: &[T], dim: usize) -> Result<usize> {
    if rows.len().is_multiple_of(dim) {
        Ok(rows.len() / dim)
    } else {
        Err(Error::RaggedVectors { len: rows.len(), dim })
    }
}

/// Number of vectors in `rows`, once they are known to be whole and finite; `input` is what the caller calls them.
pub(crate) fn check_vectors<T: Element>(rows: &[T], dim: usize, input: Input) -> Result<usize> {
    let count = check_whole(rows, dim)?;
    // The place is looked up only on failure.
    let bad = if rows.len() <= 256 * CHUNK {
        rows.chunks(CHUNK).position(|values| !T::all_finite(values))
    } else {
        rows.par_chunks(CHUNK).with_min_len(256).position_first(|values| !T::all_finite(values))
    };
    if let Some(chunk) = bad {
        for (at, value) in rows.iter().enumerate().skip(chunk * CHUNK) {
            if !value.is_finite() {
                return Err(Error::NotFinite { input, row: at / dim, column: at % dim, value: value.to_f32() });
            }
        }
    }
    Ok(count)
}

/// That f32 holds what was computed from each row of a caller's vectors; `derived` says what that is.
pub(crate) fn check_derived(rows: &[f32], dim: usize, derived: &'static str) -> Result<()> {
    check_vectors(rows, dim, Input::Vectors).map(drop).map_err(|error| match error {
        Error::NotFinite { row, column, .. } => Error::Overflow { derived, row, column },
        other => other,
    })
}
