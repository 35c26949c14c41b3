//! k-selection by itself: the best k of each row of keys (paper section 4; kernels: `warpann_kernels::warp_select`).
//!
//! One order on every device: keys ascending (or descending), −0 equal to +0, NaN last, equal keys by lower position.

use rayon::prelude::*;

use crate::{Device, Error, Result};

/// Which keys win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Best {
    /// The smallest.
    #[default]
    Smallest,
    /// The largest.
    Largest,
}

impl Best {
    /// What a slot without a key holds: +∞ or −∞.
    pub const fn worst(self) -> f32 {
        match self {
            Self::Smallest => f32::INFINITY,
            Self::Largest => f32::NEG_INFINITY,
        }
    }
}

/// The position in a slot without a key.
pub const NO_POSITION: u32 = u32::MAX;

/// The best k of each row, best first: rows × k, row-major. A slot past the row's length holds [`Best::worst`] and
/// [`NO_POSITION`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selection {
    /// Slots of a row.
    pub k: usize,
    /// The selected keys; −0 comes back as +0, NaN as the canonical NaN.
    pub keys: Vec<f32>,
    /// Their positions in the row, from 0.
    pub positions: Vec<u32>,
}

/// Selects the best `k` of each row of `keys` (row-major, `columns` a row). Row r has `lengths[r]` keys where `lengths` is
/// given, `columns` otherwise. Any k ≥ 1. On the CPU O(rows · (columns + k log k)), rows in parallel; on a GPU one pass over
/// the keys for every 1024 of k.
///
/// ```
/// use warpann::select::{Best, NO_POSITION, select_k};
/// use warpann::Device;
///
/// let best = select_k(Device::Cpu, &[3.0, 1.0, 2.0, 1.0], 4, None, 3, Best::Smallest)?;
/// assert_eq!(best.keys, [1.0, 1.0, 2.0]);
/// assert_eq!(best.positions, [1, 3, 2]);
///
/// let best = select_k(Device::Cpu, &[3.0, 1.0, 2.0, 1.0], 2, Some(&[1, 2]), 2, Best::Largest)?;
/// assert_eq!(best.positions, [0, NO_POSITION, 0, 1]);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// # Errors
/// [`Error::ZeroK`]; [`Error::RaggedVectors`] if `keys` is not a whole number of rows; [`Error::WrongResultLength`] if
/// `lengths` has not one entry a row; [`Error::RowTooLong`] for a length above `columns` and for columns above 2³¹ − 1;
/// [`Error::ResultTooLarge`]; and what opening the device and running on it can meet.
pub fn select_k(
    device: Device,
    keys: &[f32],
    columns: usize,
    lengths: Option<&[u32]>,
    k: usize,
    best: Best,
) -> Result<Selection> {
    const COLUMNS: u64 = i32::MAX as u64;
    if k == 0 {
        return Err(Error::ZeroK);
    }
    if columns as u64 > COLUMNS {
        return Err(Error::RowTooLong { row: 0, length: columns as u64, limit: COLUMNS });
    }
    // Rows of no columns can be counted only by their lengths.
    let rows = match (columns, lengths) {
        (0, None) => 0,
        (0, Some(lengths)) => lengths.len(),
        _ => keys.len() / columns,
    };
    if rows * columns != keys.len() {
        return Err(Error::RaggedVectors { len: keys.len(), dim: columns });
    }
    if let Some(lengths) = lengths {
        if lengths.len() != rows {
            return Err(Error::WrongResultLength { expected: rows, actual: lengths.len() });
        }
        if let Some(row) = lengths.iter().position(|&length| length as usize > columns) {
            let (length, limit) = (u64::from(lengths[row]), columns as u64);
            return Err(Error::RowTooLong { row, length, limit });
        }
    }
    let too_large = Error::ResultTooLarge { queries: rows, k };
    let Some(slots) = rows.checked_mul(k) else { return Err(too_large) };
    let mut selection = Selection { k, keys: Vec::new(), positions: Vec::new() };
    if selection.keys.try_reserve_exact(slots).is_err() || selection.positions.try_reserve_exact(slots).is_err() {
        return Err(too_large);
    }
    selection.keys.resize(slots, best.worst());
    selection.positions.resize(slots, NO_POSITION);
    if rows == 0 || columns == 0 {
        return Ok(selection);
    }
    match device {
        Device::Cpu => on_cpu(keys, columns, lengths, best, &mut selection),
        Device::Auto => match crate::gpu::select_k(device, keys, columns, lengths, best, &mut selection) {
            Err(Error::NoDevice { .. } | Error::DeviceTooOld { .. }) => {
                on_cpu(keys, columns, lengths, best, &mut selection)
            }
            done => done?,
        },
        Device::Gpu(_) | Device::Emulator => {
            crate::gpu::select_k(device, keys, columns, lengths, best, &mut selection)?;
        }
    }
    Ok(selection)
}

/// A partial sort by the standard library, row by row.
fn on_cpu(keys: &[f32], columns: usize, lengths: Option<&[u32]>, best: Best, selection: &mut Selection) {
    let k = selection.k;
    keys.par_chunks(columns)
        .zip(selection.keys.par_chunks_mut(k).zip(selection.positions.par_chunks_mut(k)))
        .enumerate()
        .for_each_init(Vec::new, |entries, (row, (keys, (out_keys, out_positions)))| {
            let length = lengths.map_or(columns, |lengths| lengths[row] as usize);
            entries.clear();
            entries
                .extend(keys[..length].iter().enumerate().map(|(position, &key)| (rank(key, best), position as u32)));
            let found = k.min(length);
            if found < length {
                entries.select_nth_unstable(found);
                entries.truncate(found);
            }
            entries.sort_unstable();
            for (slot, &(_, position)) in entries.iter().enumerate() {
                // Adding +0 makes −0 into +0.
                let key = keys[position as usize] + 0.0;
                out_keys[slot] = if key.is_nan() { f32::NAN } else { key };
                out_positions[slot] = position;
            }
        });
}

/// An integer that orders keys best first, NaN last.
fn rank(key: f32, best: Best) -> u32 {
    if key.is_nan() {
        return u32::MAX;
    }
    let key = if best == Best::Largest { -key } else { key } + 0.0;
    let bits = key.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
