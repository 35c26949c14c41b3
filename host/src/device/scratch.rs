//! Scratch memory: what a plan needs, laid out before it is allocated.

/// The size of a plan in bytes, and where its arrays start: a bump allocator that has not allocated yet.
#[derive(Default)]
pub(crate) struct Layout {
    bytes: usize,
}

impl Layout {
    /// Alignment of every array.
    const ALIGN: usize = 256;

    /// Reserves `len` values of `T`; the result is the array's offset. Saturates, so that an absurd plan fails to allocate.
    pub fn array<T>(&mut self, len: usize) -> usize {
        let offset = self.bytes;
        self.bytes = offset.saturating_add(len.saturating_mul(size_of::<T>())).saturating_add(Self::ALIGN - 1);
        self.bytes -= self.bytes % Self::ALIGN;
        offset
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan that no memory holds asks for more than any device has, whatever follows.
    #[test]
    fn layouts_saturate() {
        let mut layout = Layout::default();
        assert_eq!(layout.array::<u64>(33), 0);
        assert_eq!(layout.array::<u8>(1), 512);
        assert_eq!(layout.bytes(), 768);
        layout.array::<u64>(usize::MAX / 8);
        layout.array::<u64>(usize::MAX);
        assert!(layout.bytes() > isize::MAX as usize);
        layout.array::<u8>(1000);
        assert!(layout.bytes() > isize::MAX as usize);
    }
}
