//! k-selection: the best k of each row of keys (paper section 4; kernels:
//! `warpann_kernels::select::threshold_select` and `warpann_kernels::select::warp_select`).
//!
//! The order is the same on every device: keys ascending (or descending), −0 equal to +0, NaN last, equal keys by lower
//! position. The same input gives the same bits on every device and in every run.
//! | file | content |
//! |---|---|
//! | `key` | what a type of keys is |
//! | `key_types` | the types of keys and their order |
//! | `rows` | contiguous, strided and ragged rows |
//! | `layout` | where rows and results lie in memory |
//! | `options` | direction and algorithm |
//! | `cpu` | the algorithm on the CPU |
//! | `device` | keys and results in device memory, on the caller's stream (feature `cuda`) |

mod cpu;
#[cfg(any(feature = "cuda", test))]
pub mod device;
pub(crate) mod gpu;
mod key;
mod key_types;
mod layout;
mod options;
mod rows;

use std::fmt;

use self::gpu::types::DevicePayload;
use crate::validate::check_length;
use crate::{Device, Error, Result};

pub use key::{Key, KeyType};
pub(crate) use layout::Layout as RowsLayout;
pub use layout::{NO_POSITION, Rows, Selection};
pub use options::{Algorithm, Best};
pub use rows::MAX_COLUMNS;

/// A type of payloads of keys: u32 or u64. The trait is sealed.
pub trait Payload: Copy + fmt::Debug + Send + Sync + DevicePayload {
    /// The content of an empty slot: all ones.
    const NONE: Self;
}

impl Payload for u32 {
    const NONE: Self = Self::MAX;
}

impl Payload for u64 {
    const NONE: Self = Self::MAX;
}

impl<K: Key> Selection<K> {
    /// The payload of each selected key, slot by slot; [`Payload::NONE`] in empty slots. `rows` are the rows of the
    /// selection. `payloads` has one payload for each of their keys, at the index of the key. O(rows · k).
    ///
    /// ```
    /// use warpann::select::{Best, Rows, select_k};
    /// use warpann::Device;
    ///
    /// let rows = Rows::ragged(&[3.0, 1.0, 2.0], &[0, 1, 3])?;
    /// let best = select_k(Device::Cpu, &rows, 2, Best::Smallest)?;
    /// assert_eq!(best.payloads(&rows, &[10u64, 20, 30])?, [10, u64::MAX, 20, 30]);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongLength`] if the numbers of payloads and keys differ, or the selection does not have k slots for
    /// each row; [`Error::BadRow`] if it contains a position that is not in its row.
    pub fn payloads<P: Payload>(&self, rows: &Rows<'_, K>, payloads: &[P]) -> Result<Vec<P>> {
        let keys = rows.keys().len();
        check_length("payloads", keys, payloads.len())?;
        let expected = rows.len().saturating_mul(self.k);
        check_length("results", expected, self.positions.len())?;
        let mut found = Vec::with_capacity(expected);
        // With k = 0 there are no slots; `chunks` requires at least 1.
        for (row, positions) in self.positions.chunks(self.k.max(1)).enumerate() {
            let (start, length) = rows.span(row).unwrap_or_default();
            for &position in positions {
                found.push(match position {
                    NO_POSITION => P::NONE,
                    _ => {
                        // No position is possible in an empty row.
                        let possible = (u64::from(length == 0), length.saturating_sub(1) as u64);
                        rows::check_row("selected position", row, position.into(), possible)?;
                        payloads[start + position as usize]
                    }
                });
            }
        }
        Ok(found)
    }
}

/// Selects the best `k` of each of `rows`. Any k ≥ 1. On the CPU, O(n + rows · k log k) for n keys, on all threads of
/// the rayon pool.
///
/// ```
/// use warpann::select::{Best, NO_POSITION, Rows, select_k};
/// use warpann::Device;
///
/// let rows = Rows::contiguous(&[3.0, 1.0, 2.0, 1.0], 4)?;
/// let best = select_k(Device::Cpu, &rows, 3, Best::Smallest)?;
/// assert_eq!(best.keys, [1.0, 1.0, 2.0]);
/// assert_eq!(best.positions, [1, 3, 2]);
///
/// let rows = Rows::contiguous(&[3u32, 1, 2, 1], 2)?.with_lengths(&[1, 2])?;
/// let best = select_k(Device::Cpu, &rows, 2, Best::Largest)?;
/// assert_eq!(best.positions, [0, NO_POSITION, 0, 1]);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// # Errors
/// [`Error::Zero`]; [`Error::ResultTooLarge`] if the slots do not fit in memory; and the errors of opening the device
/// and running on it.
pub fn select_k<K: Key>(device: Device, rows: &Rows<'_, K>, k: usize, best: Best) -> Result<Selection<K>> {
    select_k_with(device, rows, k, best, Algorithm::Auto)
}

/// As [`select_k`], with a given algorithm on a GPU and on the emulator. The CPU ignores it.
///
/// # Errors
/// As [`select_k`]; [`Error::Mismatch`] if the algorithm does not select keys of this type.
pub fn select_k_with<K: Key>(
    device: Device,
    rows: &Rows<'_, K>,
    k: usize,
    best: Best,
    algorithm: Algorithm,
) -> Result<Selection<K>> {
    if k == 0 {
        return Err(Error::Zero { what: "k" });
    }
    let too_large = Error::ResultTooLarge { queries: rows.len(), k };
    let Some(slots) = rows.len().checked_mul(k) else { return Err(too_large) };
    let mut selection = Selection { k, keys: Vec::new(), positions: Vec::new() };
    if selection.keys.try_reserve_exact(slots).is_err() || selection.positions.try_reserve_exact(slots).is_err() {
        return Err(too_large);
    }
    selection.keys.resize(slots, K::worst(best));
    selection.positions.resize(slots, NO_POSITION);
    if rows.columns() == 0 {
        return Ok(selection);
    }
    K::select_rows(device, rows, best, algorithm, &mut selection)?;
    Ok(selection)
}
