//! Checks of arguments, for all indexes.

use crate::parallel::{Loop, ParallelSlice};
use crate::{Element, Error, Input, Result};

/// Largest number of rows of an index: row numbers are u32 internally, and `u32::MAX` means "no row".
pub const MAX_ROWS: u64 = u32::MAX as u64;

/// Largest dimension of vectors: kernels count components in 32-bit numbers, rounded up. Device memory may limit it
/// further.
pub const MAX_COMPONENTS: usize = i32::MAX as usize;

/// Number of values that are checked together. The place of a bad value is computed only after a check failed.
const CHUNK: usize = 1024;

/// Checks that vectors can have `dim` components.
pub(crate) fn check_dim(dim: usize) -> Result<()> {
    match dim {
        0 => Err(Error::Zero { what: "dimension" }),
        1..=MAX_COMPONENTS => Ok(()),
        _ => Err(Error::TooMany { what: "dimensions", asked: dim as u64, limit: MAX_COMPONENTS as u64 }),
    }
}

/// Checks that the number called `what` is within a range.
pub(crate) fn check_range(what: &'static str, value: usize, (least, most): (usize, usize)) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::OutOfRange { what, value: value as u64, least: least as u64, most: most as u64 })
}

/// Checks that `asked` rows are at most `limit`.
pub(crate) fn check_rows(asked: u64, limit: u64) -> Result<()> {
    if asked > limit { Err(Error::TooMany { what: "rows", asked, limit }) } else { Ok(()) }
}

/// Checks that `parts` parts called `by` divide the number called `what`, which is not 0.
pub(crate) fn check_divisible(what: &'static str, number: usize, by: &'static str, parts: usize) -> Result<()> {
    let divisible = number > 0 && parts > 0 && number.is_multiple_of(parts);
    if divisible { Ok(()) } else { Err(Error::NotDivisible { what, number, by, parts }) }
}

/// Checks that a radius is a number; it may be infinite.
pub(crate) fn check_radius(radius: f32) -> Result<()> {
    let refused = Error::BadNumber { what: "radius", value: radius.into(), least: f64::NEG_INFINITY };
    if radius.is_nan() { Err(refused) } else { Ok(()) }
}

/// Checks that an array of what is called `what` has `expected` places.
pub(crate) fn check_length(what: &'static str, expected: usize, actual: usize) -> Result<()> {
    if actual == expected { Ok(()) } else { Err(Error::WrongLength { what, expected, actual }) }
}

/// Checks that `ids` and `distances` have `k` slots for each of `count` queries.
pub(crate) fn check_results(count: usize, k: usize, ids: &[u64], distances: &[f32]) -> Result<()> {
    let Some(slots) = count.checked_mul(k) else { return Err(Error::ResultTooLarge { queries: count, k }) };
    [ids.len(), distances.len()].into_iter().try_for_each(|len| check_length("results", slots, len))
}

/// Checks that `rows` is a whole number of vectors, and returns that number.
pub(crate) fn check_whole<T>(rows: &[T], dim: usize) -> Result<usize> {
    check_multiple("components", rows.len(), dim)
}

/// Checks that `len` of what is called `what` are a whole number of rows of `size`, and returns that number.
pub(crate) fn check_multiple(what: &'static str, len: usize, size: usize) -> Result<usize> {
    if len.is_multiple_of(size) { Ok(len / size) } else { Err(Error::Ragged { what, len, size }) }
}

/// Checks that `rows` is a whole number of finite vectors, and returns that number. `input` is the caller's name for
/// them.
pub(crate) fn check_vectors<T: Element>(rows: &[T], dim: usize, input: Input) -> Result<usize> {
    let count = check_whole(rows, dim)?;
    // The place of a bad value is computed only after a check failed.
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

/// Checks that the numbers computed from each row of a caller's vectors are finite. `derived` is their name.
pub(crate) fn check_derived(rows: &[f32], dim: usize, derived: &'static str) -> Result<()> {
    check_vectors(rows, dim, Input::Vectors).map(drop).map_err(|error| match error {
        Error::NotFinite { row, column, .. } => Error::Overflow { derived, row, column },
        other => other,
    })
}
