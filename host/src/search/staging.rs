//! Copies of the caller's vectors in device memory: padded, and checked.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::stage_rows::StageRows;

use crate::device::queue::OnStream;
use crate::product::gpu::VectorShape;
use crate::{ElementType, Result};

/// The words in which [`stage_rows`] notes the rows that are not finite.
pub(crate) struct StagedRows {
    /// A word of each row, which becomes 1 or 0.
    pub refused: Option<PtrMut<u32>>,
    /// A word that is lowered to the first such row.
    pub first_refused: Option<PtrMut<u32>>,
}

/// Copies `count` contiguous rows of `dim` components to rows of the stride of `shape`, in stream order. A row that is
/// not finite becomes zeros.
///
/// # Safety
/// `from` has the rows, aligned to one component; `to` has room for them.
pub(crate) unsafe fn stage_rows(
    on: OnStream<'_>,
    shape: VectorShape,
    from: Ptr<u8>,
    count: u32,
    to: PtrMut<u8>,
    notes: StagedRows,
) -> Result<()> {
    // SAFETY: the same contract.
    unsafe { stage_rows_to(on, shape, from, count, to, shape.stride() as u32, notes) }
}

/// As [`stage_rows`], to rows of another stride, a multiple of 4.
///
/// # Safety
/// As [`stage_rows`].
pub(crate) unsafe fn stage_rows_to(
    on: OnStream<'_>,
    shape: VectorShape,
    from: Ptr<u8>,
    count: u32,
    to: PtrMut<u8>,
    stride: u32,
    notes: StagedRows,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let StagedRows { refused, first_refused } = notes;
    let dim = shape.dim as u32;
    macro_rules! launch {
        ($word:ty, $exponent:expr) => {{
            let (from, to, exponent) = (from.cast(), to.cast(), $exponent);
            let launch = StageRows::<$word> { from, count, dim, stride, exponent, to, refused, first_refused };
            // SAFETY: as the caller promises.
            unsafe { on.runtime.launch(on.stream, &StageRows::<$word>::KERNEL, launch.config(), launch) }
        }};
    }
    match shape.element {
        ElementType::F32 => launch!(u32, 0x7f80_0000),
        ElementType::F16 => launch!(u16, 0x7c00),
        ElementType::Bf16 => launch!(u16, 0x7f80),
        ElementType::U8 | ElementType::I8 => launch!(u8, 0),
    }
}
