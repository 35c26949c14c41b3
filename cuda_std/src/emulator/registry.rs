//! Which addresses are global memory: the live buffers, and the freed ones while their memory is held back.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

/// The memory of one buffer, kept until the buffer is dropped and its place is needed.
pub struct Allocation {
    pub memory: Box<[Line]>,
    /// Bytes the user asked for; the rest is padding that no kernel may touch.
    pub len: usize,
}

/// 256 bytes, aligned as the driver aligns device memory.
#[derive(Clone, Copy)]
#[repr(C, align(256))]
pub struct Line(pub [u8; 256]);

impl Allocation {
    pub fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }
}

/// Bytes of freed memory that are not reused, so that late accesses are recognised.
const QUARANTINE: usize = 64 << 20;

#[derive(Default)]
struct Registry {
    live: BTreeMap<usize, usize>,
    freed: VecDeque<Allocation>,
    freed_bytes: usize,
}

static REGISTRY: RwLock<Registry> =
    RwLock::new(Registry { live: BTreeMap::new(), freed: VecDeque::new(), freed_bytes: 0 });

/// The bytes of an allocation that AddressSanitizer forbids to plain Rust pointers: its padding, and all of it when it
/// is freed.
#[cfg(feature = "sanitizer")]
mod sanitizer {
    use super::Allocation;
    use std::ffi::c_void;

    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const c_void, bytes: usize);
        fn __asan_unpoison_memory_region(start: *const c_void, bytes: usize);
    }

    /// Forbids the bytes of the allocation from byte `from` on.
    pub fn forbid(allocation: &Allocation, from: usize) {
        let bytes = size_of_val(&*allocation.memory);
        // SAFETY: the region is a part of the allocation; whoever owns it accesses no byte that is forbidden here.
        unsafe { __asan_poison_memory_region(allocation.memory.as_ptr().cast::<c_void>().byte_add(from), bytes - from) }
    }

    /// Allows all bytes of the allocation, so that it can go back to the allocator.
    pub fn allow(allocation: &Allocation) {
        // SAFETY: the region is the allocation.
        unsafe { __asan_unpoison_memory_region(allocation.memory.as_ptr().cast(), size_of_val(&*allocation.memory)) }
    }
}

/// Makes an allocation global memory.
pub fn register(allocation: &Allocation) {
    // `Padding` reads behind the buffer, by its address alone.
    allocation.memory.as_ptr().expose_provenance();
    #[cfg(feature = "sanitizer")]
    sanitizer::forbid(allocation, allocation.len);
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.live.insert(allocation.address(), allocation.len);
}

/// Takes a buffer's memory out of use.
pub fn free(allocation: Allocation) {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    registry.live.remove(&allocation.address());
    registry.freed_bytes += allocation.len;
    #[cfg(feature = "sanitizer")]
    sanitizer::forbid(&allocation, 0);
    registry.freed.push_back(allocation);
    while registry.freed_bytes > QUARANTINE
        && let Some(oldest) = registry.freed.pop_front()
    {
        registry.freed_bytes -= oldest.len;
        #[cfg(feature = "sanitizer")]
        sanitizer::allow(&oldest);
    }
}

/// A contiguous piece of memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    pub start: usize,
    pub len: usize,
    /// Whether the launch may write it.
    pub writable: bool,
}

impl Range {
    /// Whether `bytes` bytes at `address` lie inside.
    #[inline(always)]
    pub fn holds(self, address: usize, bytes: usize) -> bool {
        bytes <= self.len && address.wrapping_sub(self.start) <= self.len - bytes
    }
}

/// The live buffer that holds `address`, or that it is the end of.
pub fn buffer_at(address: usize) -> Option<Range> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let (&start, &len) = registry.live.range(..=address).next_back()?;
    (address - start <= len).then_some(Range { start, len, writable: true })
}

/// The buffers there are, which neither come nor go while this value lives.
pub struct Live(RwLockReadGuard<'static, Registry>);

impl Live {
    pub fn lock() -> Self {
        Self(REGISTRY.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes from `address` to the end of the live buffer that holds it, or that it is the end of.
    pub fn bytes_from(&self, address: usize) -> Option<usize> {
        let (start, len) = self.0.live.range(..=address).next_back()?;
        len.checked_sub(address - start)
    }

    /// Whether `address` is in a buffer that was freed, as far as its memory is held back.
    pub fn is_freed(&self, address: usize) -> bool {
        self.0.freed.iter().any(|freed| address.wrapping_sub(freed.address()) < freed.len)
    }
}
