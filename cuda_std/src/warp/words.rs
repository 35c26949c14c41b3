//! The bits that lanes exchange: one word of 32 bits, or two.

/// A pattern of one or two words of 32 bits.
pub trait Words: Copy + Into<u64> {
    const WORDS: u64;
    fn truncate(bits: u64) -> Self;
    /// Applies `word` to each word, the low one first.
    fn map(self, word: impl Fn(u32) -> u32) -> Self;
}

impl Words for u32 {
    const WORDS: u64 = 1;

    #[inline(always)]
    fn truncate(bits: u64) -> Self {
        bits as u32
    }

    #[inline(always)]
    fn map(self, word: impl Fn(u32) -> u32) -> Self {
        word(self)
    }
}

impl Words for u64 {
    const WORDS: u64 = 2;

    #[inline(always)]
    fn truncate(bits: u64) -> Self {
        bits
    }

    #[inline(always)]
    fn map(self, word: impl Fn(u32) -> u32) -> Self {
        let (low, high) = (word(self as u32), word((self >> 32) as u32));
        u64::from(high) << 32 | u64::from(low)
    }
}
