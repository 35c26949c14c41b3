//! Buffers in the emulator's global memory.

use super::registry::{self, Allocation, Line};
use crate::{Ptr, PtrMut};
use bytemuck::AnyBitPattern;
use std::marker::PhantomData;

/// `len` values of `T` in emulated global memory, aligned to 256 bytes like the driver's allocations.
///
/// Kernels take pointers to the buffer as arguments. An access past the end by even one byte is a fault, and so is an
/// access after the buffer was dropped.
pub struct Buffer<T: Copy> {
    /// `None` only during the drop.
    allocation: Option<Allocation>,
    len: usize,
    of: PhantomData<T>,
}

// SAFETY: a buffer owns its memory and gives access to it only through &self and &mut self.
unsafe impl<T: Copy + Send> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Buffer<T> {}

/// The byte in unwritten memory and in the padding behind each buffer.
pub const POISON: u8 = 0xA5;

/// Size of the allocation for a buffer of `len` bytes, in bytes. There is at least one line more than needed, so that
/// neighbouring allocations are never neighbours for a kernel.
pub const fn allocated_bytes(len: usize) -> usize {
    (len / 256 + 2) * 256
}

impl<T: Copy> Buffer<T> {
    fn filled(len: usize, byte: u8) -> Self {
        const { assert!(align_of::<T>() <= align_of::<Line>(), "no type needs more alignment than the driver gives") };
        let bytes = len.checked_mul(size_of::<T>()).expect("a buffer fits the address space");
        let mut memory = vec![Line([byte; 256]); allocated_bytes(bytes) / 256].into_boxed_slice();
        for line in bytes / 256..memory.len() {
            let own = bytes.saturating_sub(256 * line);
            memory[line].0[own.min(256)..].fill(POISON);
        }
        let allocation = Allocation { memory, len: bytes };
        registry::register(&allocation);
        Self { allocation: Some(allocation), len, of: PhantomData }
    }

    /// A buffer with a copy of `values`.
    ///
    /// # Panics
    /// If the allocation fails, like `Vec`.
    pub fn from_slice(values: &[T]) -> Self {
        let mut buffer = Self::filled(values.len(), POISON);
        buffer.copy_from(values);
        buffer
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A pointer to the values, for a kernel that reads them.
    pub fn as_ptr(&self) -> Ptr<T> {
        let allocation = self.allocation.as_ref();
        allocation.map_or(Ptr::empty(), |allocation| Ptr::new(allocation.memory.as_ptr().cast(), self.len))
    }

    /// A pointer to the values, for a kernel that writes them.
    pub fn as_mut_ptr(&mut self) -> PtrMut<T> {
        let allocation = self.allocation.as_mut();
        allocation.map_or(PtrMut::empty(), |allocation| PtrMut::new(allocation.memory.as_mut_ptr().cast(), self.len))
    }

    /// The values as bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has at least this many bytes, all initialised, and lives as long as self.
        unsafe { std::slice::from_raw_parts(*self.as_ptr().cast::<u8>(), self.len * size_of::<T>()) }
    }

    /// Overwrites all values of the buffer.
    ///
    /// # Panics
    /// If the length of `values` is not [`len`](Self::len).
    pub fn copy_from(&mut self, values: &[T]) {
        assert_eq!(values.len(), self.len, "copy_from needs as many values as the buffer holds");
        let to = self.as_mut_ptr();
        // SAFETY: both have `len` values, and a buffer overlaps no other memory.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), *to, values.len()) }
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// A buffer of `len` values whose bytes are zero.
    pub fn new(len: usize) -> Self {
        Self::filled(len, 0)
    }

    /// A buffer of `len` values whose bytes are 0xA5, so that values which a kernel does not write are visible.
    pub fn new_poisoned(len: usize) -> Self {
        Self::filled(len, POISON)
    }

    /// Copies the values to host memory.
    pub fn to_vec(&self) -> Vec<T> {
        let bytes = self.bytes();
        // SAFETY: the bytes are `len` aligned values, and `AnyBitPattern` makes all bits valid.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), self.len) }.to_vec()
    }
}

impl<T: Copy> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("address", &*self.as_ptr()).field("len", &self.len).finish()
    }
}

impl<T: Copy> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            registry::free(allocation);
        }
    }
}
