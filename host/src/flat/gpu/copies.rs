//! Copies of rows within the memory of a device.

use cuda_std::global::U32x4;
use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::gather_rows::{GatherRows, ScatterRows};

use super::rows::ResidentRows;
use crate::Result;
use crate::device::queue::OnStream;
use crate::device::scratch::Layout;
use crate::threads::apart;

/// Evaluates `body` with the name bound to the first of some types of words of which rows of `bytes` bytes consist, or
/// else to the last. The memory of rows is aligned to these words.
macro_rules! with_word {
    ($bytes:expr, [$last:ty], $word:ident => $body:expr) => {{
        type $word = $last;
        $body
    }};
    ($bytes:expr, [$first:ty, $($smaller:ty),+], $word:ident => $body:expr) => {
        if $bytes.is_multiple_of(size_of::<$first>()) {
            type $word = $first;
            $body
        } else {
            with_word!($bytes, [$($smaller),+], $word => $body)
        }
    };
}

/// Copies row `numbers[i]` of `from` to row i of `to`, in stream order; a number past the last row means the last row.
///
/// # Safety
/// `from` has rows of `row_bytes` bytes, a multiple of 4, at least one; `to` has room for as many rows as there are
/// numbers, and the two do not overlap.
pub(crate) unsafe fn gather_rows(
    on: OnStream<'_>,
    from: Ptr<u8>,
    numbers: Ptr<u32>,
    to: PtrMut<u8>,
    row_bytes: usize,
) -> Result<()> {
    let count = numbers.len();
    if count == 0 {
        return Ok(());
    }
    let to = to.take(count * row_bytes);
    with_word!(row_bytes, [U32x4, u64, u32], W => {
        let words = (row_bytes / size_of::<W>()) as u32;
        let last = (from.len() / row_bytes - 1) as u32;
        let launch = GatherRows::<W> { from: from.cast(), last, numbers, count: count as u32, words, to: to.cast() };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &GatherRows::<W>::KERNEL, launch.config(), launch) }
    })
}

/// Copies row i of `from` to row `numbers[i]` of `to`, in stream order.
///
/// # Safety
/// `from` has as many rows of `row_bytes` bytes as there are numbers, `to` has the listed rows, the numbers differ, and
/// the two do not overlap.
pub(crate) unsafe fn scatter_rows(
    on: OnStream<'_>,
    from: Ptr<u8>,
    numbers: Ptr<u32>,
    to: PtrMut<u8>,
    row_bytes: usize,
) -> Result<()> {
    let count = numbers.len();
    if count == 0 {
        return Ok(());
    }
    let from = from.take(count * row_bytes);
    with_word!(row_bytes, [U32x4, u64, u32, u8], W => {
        let words = (row_bytes / size_of::<W>()) as u32;
        let launch = ScatterRows::<W> { from: from.cast(), numbers, count: count as u32, words, to: to.cast() };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &ScatterRows::<W>::KERNEL, launch.config(), launch) }
    })
}

impl ResidentRows<'_> {
    /// Calls `work` with every `share`-th of the first `rows` rows, one after the other in device memory.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver, and those of
    /// `work`.
    pub(crate) fn with_every<V>(
        &self,
        share: usize,
        rows: usize,
        work: impl FnOnce(Ptr<u8>) -> Result<V>,
    ) -> Result<V> {
        let &ResidentRows { runtime, lanes, shape, rows: all, .. } = self;
        let row_bytes = shape.row_bytes();
        let all: Ptr<u8> = all.take(rows * row_bytes).into();
        if share == 1 {
            return work(all);
        }
        let numbers: Vec<u32> = (0..rows as u32).step_by(share).collect();
        let mut layout = Layout::default();
        let (list, some) = (layout.array(numbers.len()), layout.array::<u8>(numbers.len() * row_bytes));
        let memory = runtime.allocate(layout.bytes())?;
        let scratch = runtime.scratch(&memory);
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            lanes.with(runtime, |lane| {
                let (on, list) = (OnStream { runtime, stream: &lane.stream }, scratch.at(list));
                // SAFETY: the memory has room for the numbers and their rows, and the numbers are those of rows.
                unsafe {
                    runtime.copy_to_device(on.stream, list, &numbers)?;
                    gather_rows(on, all, list.into(), scratch.at(some), row_bytes)?;
                }
                runtime.synchronize(on.stream)
            })
        })?;
        work(scratch.at(some).into())
    }
}
