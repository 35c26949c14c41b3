//! Copies vectors of the caller's from device memory into a set: padded, and checked.
//!
//! # Problem
//! Vectors that the host sends are padded and checked on the way. Vectors that lie in device memory already are
//! contiguous, aligned to one component only, and may hold NaN or infinity, which no host has seen.
//!
//! # Algorithm
//! One warp copies one row. It reads the row, votes whether all components are finite, and reads it again to copy it,
//! from the cache. A row that is not finite becomes zeros, so that it changes neither the scale nor the bounds of the
//! others. It gets a flag; what that means is the caller's to say.
//!
//! # Cost
//! One read and one write of the rows.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, thread, warp};

/// Number of warps in a block of these kernels.
const WARPS_PER_BLOCK: u32 = 4;

/// A component as stored, of one, two or four bytes.
pub trait Stored: Copy {
    /// The number 0.
    const ZERO: Self;
    /// The bits of the component.
    fn bits(self) -> u32;
}

macro_rules! stored {
    ($($type:ty),*) => {$(
        impl Stored for $type {
            const ZERO: $type = 0;
            #[device_inline]
            fn bits(self) -> u32 {
                self as u32
            }
        }
    )*};
}
stored!(u8, u16, u32);

/// Copies `count` rows of `dim` components to rows of `stride` components, with zeros behind them. Rows that are not
/// finite become zeros.
///
/// # Safety
/// The arrays are as long as the fields say, `dim` ≤ `stride`, and the arrays do not overlap.
#[kernel(
    max_threads = 128,
    stage_rows_1 for StageRows<u8> = stage_rows::<u8>,
    stage_rows_2 for StageRows<u16> = stage_rows::<u16>,
    stage_rows_4 for StageRows<u32> = stage_rows::<u32>,
)]
pub struct StageRows<W> {
    /// `count` rows of `dim` components.
    pub from: Ptr<W>,
    /// Number of rows.
    pub count: u32,
    /// Number of components of a row.
    pub dim: u32,
    /// Distance from one row of `to` to the next in components.
    pub stride: u32,
    /// The bits of the exponent, all of which are set in a component that is not finite; 0 if every component is
    /// finite.
    pub exponent: u32,
    /// Room for `count` rows of `stride` components.
    pub to: PtrMut<W>,
    /// A word of each row: 1 if it is not finite, otherwise 0; absent: not written.
    pub refused: Option<PtrMut<u32>>,
    /// One word, which the launch lowers to the number of the first row that is not finite; absent: not written.
    pub first_refused: Option<PtrMut<u32>>,
}

impl<W> StageRows<W> {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`StageRows`].
#[device_inline]
unsafe fn stage_rows<W: Stored>(launch: StageRows<W>) {
    let StageRows { from, count, dim, stride, exponent, to, refused, first_refused } = launch;
    let row = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if row >= count {
        return;
    }
    let lane = warp::lane_id();
    let from = from.wrapping_add(row as usize * dim as usize);
    let to = to.wrapping_add(row as usize * stride as usize);
    // SAFETY: row < count, components are read below dim and written below stride. Whole warps return early, so all
    // lanes vote.
    unsafe {
        let mut finite = true;
        if exponent != 0 {
            let mut i = lane;
            while i < dim {
                finite &= global::load_nc(from.wrapping_add(i as usize)).bits() & exponent != exponent;
                i += 32;
            }
        }
        let finite = !warp::any(FULL_MASK, !finite);
        let mut i = lane;
        while i < stride {
            let component = if finite && i < dim { global::load_nc(from.wrapping_add(i as usize)) } else { W::ZERO };
            global::store(to.wrapping_add(i as usize), component);
            i += 32;
        }
        if lane == 0 {
            if let Some(refused) = refused {
                global::store(refused.wrapping_add(row as usize), !finite as u32);
            }
            if let Some(first_refused) = first_refused
                && !finite
            {
                atomic::min_u32(*first_refused, row);
            }
        }
    }
}
