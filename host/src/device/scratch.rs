//! Scratch memory: the layout of a plan's arrays before the allocation, and pointers to the arrays after it.
//!
//! ```text
//! let mut layout = Layout::default();
//! let keys = layout.array::<f32>(rows * k);            // Reserved<f32>: offset, length and type
//! let scratch = lane.scratch(runtime, layout.bytes())?;
//! let keys: PtrMut<f32> = scratch.at(keys);            // the pointer for launches and copies
//! ```

use std::fmt;
use std::marker::PhantomData;

use cuda_std::PtrMut;

/// An array that a [`Layout`] reserved.
pub(crate) struct Reserved<T> {
    /// Distance from the start of the scratch in bytes.
    offset: usize,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Reserved<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Reserved<T> {}

impl<T> fmt::Debug for Reserved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} at {}", self.len, std::any::type_name::<T>(), self.offset)
    }
}

impl<T> Reserved<T> {
    /// Number of values.
    pub fn len(self) -> usize {
        self.len
    }

    /// The first `n` values, and the rest, which directly follows them. If there are fewer than `n` values, the rest is
    /// empty.
    pub fn split_at(self, n: usize) -> (Reserved<T>, Reserved<T>) {
        let n = n.min(self.len);
        let rest = self.offset.saturating_add(n.saturating_mul(size_of::<T>()));
        (Reserved { len: n, ..self }, Reserved { offset: rest, len: self.len - n, ..self })
    }

    /// The values `from` .. `from + len`, as far as the array has them.
    pub fn part(self, from: usize, len: usize) -> Reserved<T> {
        let (_, rest) = self.split_at(from);
        rest.split_at(len).0
    }

    /// The same place for values of another type of the same size, which is checked at compile time.
    pub fn cast<U>(self) -> Reserved<U> {
        const { assert!(size_of::<T>() == size_of::<U>(), "values of the same size") };
        Reserved { offset: self.offset, len: self.len, of: PhantomData }
    }
}

impl Reserved<u64> {
    /// The same place as twice as many 32-bit words.
    pub fn halves(self) -> Reserved<u32> {
        Reserved { offset: self.offset, len: self.len.saturating_mul(2), of: PhantomData }
    }
}

/// The layout of a plan's arrays: a bump allocator of offsets, before any memory is allocated.
#[derive(Default)]
pub(crate) struct Layout {
    bytes: usize,
}

impl Layout {
    /// Alignment of every array in bytes.
    const ALIGN: usize = 256;

    /// Reserves `len` values of `T`. The size saturates, so that the allocation of a plan that is too large fails.
    pub fn array<T>(&mut self, len: usize) -> Reserved<T> {
        let offset = self.bytes;
        self.bytes = offset.saturating_add(len.saturating_mul(size_of::<T>())).saturating_add(Self::ALIGN - 1);
        self.bytes -= self.bytes % Self::ALIGN;
        Reserved { offset, len, of: PhantomData }
    }

    /// Number of values of `T` for which an array after all others has room in `bytes` bytes.
    pub fn room<T>(&self, bytes: u64) -> usize {
        let bytes = bytes - bytes % Self::ALIGN as u64;
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(self.bytes) / size_of::<T>()
    }

    /// Size of all arrays in bytes, padding included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Device memory that a [`Layout`] describes. Like a pointer, it gives no access by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    memory: PtrMut<u8>,
}

impl Scratch {
    /// Scratch in `memory`, which must start at a multiple of 16 bytes.
    pub fn new(memory: PtrMut<u8>) -> Scratch {
        Scratch { memory }
    }

    /// The pointer to an array of the layout. If the memory is smaller than the layout, the array is shorter or empty.
    pub fn at<T>(self, array: Reserved<T>) -> PtrMut<T> {
        self.memory.skip(array.offset).cast::<T>().take(array.len)
    }

    /// The bytes of an array as values of type `T`, for rows whose type is known at run time only.
    pub fn values_of<T>(self, array: Reserved<u8>) -> PtrMut<T> {
        self.at(array).cast::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan that is too large for any memory keeps a size that no device has, also after more arrays.
    #[test]
    fn layouts_saturate() {
        let mut layout = Layout::default();
        assert_eq!(layout.array::<u64>(33).offset, 0);
        assert_eq!(layout.array::<u8>(1).offset, 512);
        assert_eq!(layout.bytes(), 768);
        layout.array::<u64>(usize::MAX / 8);
        layout.array::<u64>(usize::MAX);
        assert!(layout.bytes() > isize::MAX as usize);
        layout.array::<u8>(1000);
        assert!(layout.bytes() > isize::MAX as usize);
    }

    #[test]
    fn arrays_lie_where_the_layout_put_them_and_no_array_leaves_the_memory() {
        let mut layout = Layout::default();
        let (first, second) = (layout.array::<u64>(33), layout.array::<u32>(5));
        let (left, right) = second.split_at(2);
        let start = std::ptr::without_provenance_mut::<u8>(4096);
        let scratch = Scratch::new(PtrMut::new(start, layout.bytes()));
        let place = |pointer: PtrMut<u32>| (pointer.addr() - 4096, pointer.len());
        assert_eq!((scratch.at(first).addr(), scratch.at(first).len()), (4096, 33));
        assert_eq!(place(scratch.at(second)), (512, 5));
        assert_eq!((place(scratch.at(left)), place(scratch.at(right))), ((512, 2), (520, 3)));
        assert_eq!(place(scratch.at(second.cast::<f32>()).cast()), (512, 5));
        let short = Scratch::new(PtrMut::new(start, 516));
        assert_eq!(place(short.at(second)), (512, 1));
        assert_eq!(short.at(right).len(), 0);
    }
}
