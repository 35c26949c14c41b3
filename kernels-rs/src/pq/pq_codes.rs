//! Readers of the codes of a product quantizer.
//!
//! A row's code is M numbers of `bits` bits, 4 to 8, packed from the lowest bit of its first byte on, sub-quantizer 0
//! first, in ceil(M · bits / 8) bytes. [`Bytes`] reads 8-bit codes 4, 8 or 16 at a time, the common case. [`Packed`]
//! reads the others through a bit buffer, a word or a byte at a time. Both read [`ROWS`] rows together, and nothing
//! after a row's end.

use core::marker::PhantomData;

use cuda_std::global::{U32x2, U32x4};
use cuda_std::{device_inline, global, unroll};

/// Number of rows of a lane.
pub const ROWS: usize = 2;

/// Code `m` of the packed code at `code`.
///
/// # Safety
/// The code is readable up to sub-quantizer `m`, and `bits` ≤ 8.
#[device_inline]
pub unsafe fn code_at(code: *const u8, m: u32, bits: u32) -> u32 {
    let first = m * bits;
    let (byte, skip) = ((first / 8) as usize, first % 8);
    // SAFETY: these bytes hold bits of sub-quantizer m.
    unsafe {
        let low = global::load_nc(code.wrapping_add(byte)) as u32;
        let high = if skip + bits > 8 { global::load_nc(code.wrapping_add(byte + 1)) as u32 } else { 0 };
        ((low | high << 8) >> skip) & ((1 << bits) - 1)
    }
}

/// Sub-quantizers `first .. first + count`, and how codes are packed.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// Number of the first sub-quantizer.
    pub first: u32,
    /// Number of sub-quantizers in the chunk.
    pub count: u32,
    /// Number of bits of a code.
    pub bits: u32,
    /// Number of bytes of a row.
    pub code_bytes: u32,
}

/// A reader of codes.
pub trait Codes {
    /// Calls `visit` for each sub-quantizer m of the chunk, ascending, with (m − first) · 2^bits, the start of its
    /// table, and the code of each row. All lanes of a warp arrive at every call together.
    ///
    /// # Safety
    /// The rows are whole codes, and the chunk starts and ends at borders of the reader's loads.
    unsafe fn visit(rows: [*const u8; ROWS], chunk: Chunk, visit: impl FnMut(u32, [u32; ROWS]));
}

/// The type of one load of 8-bit codes.
pub trait Load: Copy {
    /// Number of 32-bit words of a load.
    const WORDS: usize;
    /// The words of the load, then zeros.
    fn words(self) -> [u32; 4];
}

impl Load for u32 {
    const WORDS: usize = 1;
    #[device_inline]
    fn words(self) -> [u32; 4] {
        [self, 0, 0, 0]
    }
}

impl Load for U32x2 {
    const WORDS: usize = 2;
    #[device_inline]
    fn words(self) -> [u32; 4] {
        [self.0[0], self.0[1], 0, 0]
    }
}

impl Load for U32x4 {
    const WORDS: usize = 4;
    #[device_inline]
    fn words(self) -> [u32; 4] {
        self.0
    }
}

/// 8-bit codes, `L` at a time: row length, first and count of the chunk are multiples of `L`.
pub struct Bytes<L>(PhantomData<L>);

impl<L: Load> Codes for Bytes<L> {
    #[device_inline]
    unsafe fn visit(rows: [*const u8; ROWS], chunk: Chunk, mut visit: impl FnMut(u32, [u32; ROWS])) {
        let rows = rows.map(|row| row.wrapping_add(chunk.first as usize));
        let mut m = 0;
        while m < chunk.count {
            let mut words = [[0; 4]; ROWS];
            unroll::<ROWS>(|r| {
                // SAFETY: the codes m .. m + 4 · WORDS lie in the chunk.
                words[r] = unsafe { global::load_nc(rows[r].wrapping_add(m as usize).cast::<L>()) }.words();
            });
            unroll::<4>(|w| {
                if w < L::WORDS {
                    unroll::<4>(|b| {
                        let first = (m + (4 * w + b) as u32) * 256;
                        visit(first, words.map(|words| (words[w] >> (8 * b)) & 0xff));
                    });
                }
            });
            m += 4 * L::WORDS as u32;
        }
    }
}

/// Codes of any width up to 8 bits, with rows and chunks of any length.
pub struct Packed;

impl Codes for Packed {
    #[device_inline]
    unsafe fn visit(rows: [*const u8; ROWS], chunk: Chunk, mut visit: impl FnMut(u32, [u32; ROWS])) {
        let first_bit = chunk.first * chunk.bits;
        // Words are read if they are aligned and end with the row; both are the same for all lanes.
        let by_words = first_bit.is_multiple_of(32) && chunk.code_bytes.is_multiple_of(4);
        let mut at = (first_bit / 8) as usize;
        let mut buffers = [0u64; ROWS];
        let mut have = 0;
        let skip = first_bit % 8;
        if skip > 0 {
            // SAFETY: the byte holds bits of the chunk's first code.
            unroll::<ROWS>(|r| buffers[r] = u64::from(unsafe { global::load_nc(rows[r].wrapping_add(at)) } >> skip));
            have = 8 - skip;
            at += 1;
        }
        let mut m = 0;
        while m < chunk.count {
            if have < chunk.bits {
                unroll::<ROWS>(|r| {
                    let from = rows[r].wrapping_add(at);
                    // SAFETY: the loaded bytes have bits of code m, and end with the row at the latest.
                    let next =
                        unsafe { if by_words { global::load_nc(from.cast()) } else { global::load_nc(from) as u32 } };
                    buffers[r] |= u64::from(next) << have;
                });
                let bytes = if by_words { 4 } else { 1 };
                at += bytes as usize;
                have += 8 * bytes;
            }
            visit(m << chunk.bits, buffers.map(|buffer| buffer as u32 & ((1 << chunk.bits) - 1)));
            unroll::<ROWS>(|r| buffers[r] >>= chunk.bits);
            have -= chunk.bits;
            m += 1;
        }
    }
}
