//! Copies of the caller's vectors to host memory.

use std::ops::Range;

use cuda_std::Ptr;

use crate::device::runtime::{Runtime, Stream};
use crate::{Result, host_memory};

/// Bytes of the caller's at `from`, in the order of `stream`, for which it waits. In words, because bytes would not be
/// aligned for every element.
///
/// # Safety
/// `from` has these bytes when the stream arrives there.
pub(crate) unsafe fn download(
    runtime: &Runtime,
    stream: &Stream,
    from: Ptr<u8>,
    bytes: Range<usize>,
) -> Result<Vec<u32>> {
    let mut words = host_memory::zeroed::<u32>(bytes.len().div_ceil(size_of::<u32>()))?;
    let _current = runtime.enter()?;
    let to = &mut bytemuck::cast_slice_mut(&mut words)[..bytes.len()];
    // SAFETY: as the caller promises.
    unsafe { runtime.copy_to_host(stream, to, from.skip(bytes.start))? };
    Ok(words)
}
