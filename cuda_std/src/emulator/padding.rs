//! The bytes behind each buffer, which no access of a kernel may reach.
//!
//! The functions of this crate refuse such an access. A plain Rust pointer (`*p = x`) goes past them, so a launch
//! compares these bytes with what they were: up to 511 bytes for each buffer that the kernel may write, after all
//! blocks are done.

use super::{
    buffer::{POISON, allocated_bytes},
    registry::{self, Range},
    violation::ViolationKind,
};

/// The buffers whose padding a launch could overwrite.
pub struct Padding(Vec<Range>);

impl Padding {
    /// Takes the buffers that hold `written`, the addresses by which the kernel may write.
    pub fn new(written: impl Iterator<Item = usize>) -> Self {
        let mut buffers: Vec<Range> = written.filter_map(registry::buffer_at).collect();
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        buffers.dedup_by_key(|buffer| buffer.start);
        Self(buffers)
    }

    /// The first byte that was overwritten, as a violation.
    ///
    /// # Safety
    /// The buffers have been alive since [`Padding::new`], and no thread accesses them now.
    pub unsafe fn overwritten(&self) -> Option<ViolationKind> {
        if cfg!(feature = "sanitizer") {
            // The sanitizer has stopped such a write, and would take the look at the padding for a fault.
            return None;
        }
        self.0.iter().find_map(|buffer| {
            let end = std::ptr::with_exposed_provenance::<u8>(buffer.start + buffer.len);
            // SAFETY: the allocation of a buffer extends that far and is initialised, its pointer was exposed when it
            // was registered, and by this function's contract it is alive and not written.
            let padding = unsafe { std::slice::from_raw_parts(end, allocated_bytes(buffer.len) - buffer.len) };
            let past = padding.iter().position(|&byte| byte != POISON)?;
            Some(ViolationKind::PaddingOverwritten { address: buffer.start + buffer.len + past, past, len: buffer.len })
        })
    }
}
