//! Sizes that follow from a caller's input, and host memory of such sizes.
//!
//! `vec![..; n]`, `with_capacity` and `collect` end the program if memory is short. If n follows from the input (rows,
//! queries times k, lists times dimension), the library uses these functions, which return [`Error::OutOfHostMemory`]:
//! an allocator refuses a size that exceeds the address space, a limit of the process (`ulimit -v`) or, without
//! overcommitment, the machine's memory. Memory that is small for every input, such as one vector or one counter per
//! thread, does not need them.

use crate::parallel::{Loop, ParallelSlice};
use crate::{Error, Result};

/// The product of `factors`: a number of `T` that could fit in memory.
///
/// # Errors
/// [`Error::OutOfHostMemory`] with the size in bytes if it exceeds `isize::MAX`, the limit of one allocation.
pub(crate) fn count<T>(factors: &[usize]) -> Result<usize> {
    let product = factors.iter().try_fold(1usize, |product, &factor| product.checked_mul(factor));
    let bytes = |count: usize| count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    product.filter(|&count| bytes(count)).ok_or_else(|| {
        let wide =
            factors.iter().fold(size_of::<T>() as u128, |product, &factor| product.saturating_mul(factor as u128));
        Error::OutOfHostMemory { asked: u64::try_from(wide).unwrap_or(u64::MAX) }
    })
}

fn refused<T>(count: usize) -> Error {
    Error::OutOfHostMemory { asked: (count as u64).saturating_mul(size_of::<T>() as u64) }
}

/// Reserves room for `more` further elements in `values`.
pub(crate) fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<()> {
    values.try_reserve(more).map_err(|_| refused::<T>(values.len().saturating_add(more)))
}

/// An empty vector with room for exactly `count` elements.
pub(crate) fn with_room<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| refused::<T>(count))?;
    Ok(values)
}

/// A vector of `count` zeros. A large one costs nothing until its pages are used, because the system provides zeroed
/// pages.
pub(crate) fn zeroed<T: bytemuck::Zeroable>(count: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| refused::<T>(count))
}

/// A vector of `count` values.
pub(crate) fn collected<T>(values: impl Iterator<Item = T>, count: usize) -> Result<Vec<T>> {
    let mut collected = with_room(count)?;
    collected.extend(values);
    Ok(collected)
}

/// A vector of `count` copies of `value`.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>> {
    let mut values = with_room(count)?;
    values.resize(count, value);
    Ok(values)
}

/// A vector with a copy of `values`.
pub(crate) fn copied<T: Copy>(values: &[T]) -> Result<Vec<T>> {
    let mut copy = with_room(values.len())?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// Number of values that a thread copies at a time.
const COPIED: usize = 1 << 16;

/// Appends a copy of `more`, made by all threads.
pub(crate) fn extend<T: Copy + Send + Sync>(values: &mut Vec<T>, more: &[T]) -> Result<()> {
    reserve(values, more.len())?;
    let slots = &mut values.spare_capacity_mut()[..more.len()];
    let parts = slots.par_chunks_mut(COPIED).zip(more.par_chunks(COPIED));
    parts.for_each(|(slots, more)| {
        slots.write_copy_of_slice(more);
    });
    // SAFETY: each of these slots was written.
    unsafe { values.set_len(values.len() + more.len()) };
    Ok(())
}

/// The items of a parallel loop as a vector, in the order of the loop.
pub(crate) fn collected_in_parallel<T: Send>(values: impl Loop<Item = T>) -> Result<Vec<T>> {
    let mut collected = with_room(values.count())?;
    values.collect_into_vec(&mut collected);
    Ok(collected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::turns;

    #[test]
    fn a_count_is_right_up_to_the_largest_allocation() {
        let most = isize::MAX as usize;
        assert_eq!(count::<u8>(&[most]).unwrap(), most);
        assert_eq!(count::<f32>(&[most / 4, 1]).unwrap(), most / 4);
        assert_eq!(count::<u64>(&[]).unwrap(), 1);
        assert_eq!(count::<u64>(&[usize::MAX, usize::MAX, 0]).ok(), None, "an overflow before the zero");
        assert_eq!(count::<u64>(&[0, usize::MAX, usize::MAX]).unwrap(), 0);
        for (factors, asked) in [
            (&[most / 4 + 1][..], (most as u64 / 4 + 1) * 4),
            (&[1 << 30, 1 << 31], 1 << 63),
            (&[1 << 32, 1 << 32], u64::MAX),
            (&[usize::MAX, usize::MAX, usize::MAX], u64::MAX),
        ] {
            let found = count::<f32>(factors);
            assert!(matches!(found, Err(Error::OutOfHostMemory { asked: a }) if a == asked), "{factors:?}: {found:?}");
        }
    }

    #[test]
    fn what_no_memory_can_hold_is_refused_and_small_vectors_are_made() {
        let huge = isize::MAX as usize / 2;
        let refused = [
            with_room::<u32>(huge).map(drop),
            zeroed::<u32>(huge).map(drop),
            filled(7u32, huge).map(drop),
            reserve(&mut vec![1u32], huge),
            collected_in_parallel(turns(0..huge).map(|at| at as u32)).map(drop),
        ];
        for (turn, result) in refused.into_iter().enumerate() {
            assert!(matches!(result, Err(Error::OutOfHostMemory { asked }) if asked >= 1 << 62), "{turn}");
        }
        assert_eq!(zeroed::<u64>(3).unwrap(), [0; 3]);
        assert_eq!(filled(7u8, 2).unwrap(), [7; 2]);
        assert_eq!(copied(&[1, 2]).unwrap(), [1, 2]);
        assert_eq!(
            collected_in_parallel(turns(0..1000).map(|at| 999 - at)).unwrap(),
            (0..1000).rev().collect::<Vec<_>>()
        );
        assert_eq!(with_room::<u8>(9).unwrap().capacity(), 9);
    }
}
