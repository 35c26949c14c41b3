//! Vectors of bytes, or of bits, as they were added: the list scan multiplies them with queries of bytes, by exact
//! products.
//!
//! The scan of f16 operands reads twice the bytes, and the index keeps them beside the vectors. Bytes need neither: a
//! score is that of the vectors themselves, up to the rounding of numbers to f32
//! ([`QueryTerms::exact`](crate::product::bounds::QueryTerms::exact)).
//!
//! | metric | value of a row | factor of a query | score |
//! |---|---|---|---|
//! | squared L2 | ‖y‖² | −2 | ‖y‖² − 2⟨x, y⟩ |
//! | inner product | 0 | −1 | −⟨x, y⟩ |
//! | cosine | 1 / ‖y‖, a factor | −1 / ‖x‖ | −⟨x, y⟩ / (‖x‖‖y‖) |
//!
//! Appending by `mma.sync` with resident queries would spill 84 to 172 bytes with two blocks a multiprocessor, so it
//! has one.
//!
//! Bits differ in the instruction only: ‖y‖² is the number of ones, and squared L2 is the Hamming distance. A chunk has
//! 1,024 of them. Tiles of 64 queries by `mma.sync` would spill 36 bytes on sm_100 with three blocks a multiprocessor,
//! so they have two.
//!
//! # Limits
//! As in [`crate::flat::byte_filter`]: sums stay in 32 bits.

use super::flat::InMemory;
#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::RowScan;
use crate::ivf::list_scan::{APPEND_QUERIES, Residence, ScanKey, ScanLists, Tile, scan, scan_kernels};
#[cfg(not(target_arch = "nvptx64"))]
use crate::product::element::ExactKey;
use crate::product::element::{Bits, I8, U8};
use crate::product::instruction::{Instruction, MmaSync, Wgmma};

/// The scan of vectors of bytes with this content.
#[cfg(not(target_arch = "nvptx64"))]
pub const fn scan_of(key: ExactKey) -> RowScan {
    let kernel = match key {
        ExactKey::U8 => scan_u8,
        ExactKey::I8 => scan_i8,
        ExactKey::Bits => scan_bits,
    };
    RowScan { kernel, append_queries: APPEND_QUERIES, table: false, planes: false, steps: false, strips: None }
}

scan_kernels! {
    fn scan_u8(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_u8_64(min_blocks = 3) = scan::<Bytes, MmaSync<2, 2, 4, U8>, 2, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_u8_64_streamed = scan::<Bytes, MmaSync<2, 2, 4, U8>, 2, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_u8_16(min_blocks = 3) = scan::<Bytes, MmaSync<1, 1, 2, U8>, 1, 2, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_u8_16_streamed(min_blocks = 3) = scan::<Bytes, MmaSync<1, 1, 2, U8>, 1, 2, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_u8(min_blocks = 1) = scan::<Bytes, MmaSync<2, 4, 4, U8>, 4, 4, APPEND_QUERIES, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_u8_streamed = scan::<Bytes, MmaSync<2, 4, 4, U8>, 4, 4, APPEND_QUERIES, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_u8_64_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<8, U8>, 1, 8, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_u8_64_streamed_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<8, U8>, 1, 8, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_u8_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<16, U8>, 1, 16, APPEND_QUERIES, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_u8_streamed_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<16, U8>, 1, 16, APPEND_QUERIES, false, true>,
    }
}

scan_kernels! {
    fn scan_i8(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_i8_64(min_blocks = 3) = scan::<Bytes, MmaSync<2, 2, 4, I8>, 2, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_i8_64_streamed = scan::<Bytes, MmaSync<2, 2, 4, I8>, 2, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_i8_16(min_blocks = 3) = scan::<Bytes, MmaSync<1, 1, 2, I8>, 1, 2, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_i8_16_streamed(min_blocks = 3) = scan::<Bytes, MmaSync<1, 1, 2, I8>, 1, 2, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_i8(min_blocks = 1) = scan::<Bytes, MmaSync<2, 4, 4, I8>, 4, 4, APPEND_QUERIES, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_i8_streamed = scan::<Bytes, MmaSync<2, 4, 4, I8>, 4, 4, APPEND_QUERIES, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_i8_64_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<8, I8>, 1, 8, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_i8_64_streamed_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<8, I8>, 1, 8, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_i8_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<16, I8>, 1, 16, APPEND_QUERIES, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_i8_streamed_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<16, I8>, 1, 16, APPEND_QUERIES, false, true>,
    }
}

scan_kernels! {
    fn scan_bits(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_bits_64(min_blocks = 2) = scan::<Bytes, MmaSync<2, 2, 4, Bits>, 2, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_bits_64_streamed = scan::<Bytes, MmaSync<2, 2, 4, Bits>, 2, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_bits_16(min_blocks = 3) = scan::<Bytes, MmaSync<1, 1, 2, Bits>, 1, 2, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_bits_16_streamed(min_blocks = 3) = scan::<Bytes, MmaSync<1, 1, 2, Bits>, 1, 2, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_bits(min_blocks = 1) = scan::<Bytes, MmaSync<2, 4, 4, Bits>, 4, 4, APPEND_QUERIES, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_bits_streamed = scan::<Bytes, MmaSync<2, 4, 4, Bits>, 4, 4, APPEND_QUERIES, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_bits_64_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<8, Bits>, 1, 8, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_bits_64_streamed_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<8, Bits>, 1, 8, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_bits_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<16, Bits>, 1, 16, APPEND_QUERIES, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_bits_streamed_sm90(arch = "sm_90a") = scan::<Bytes, Wgmma<16, Bits>, 1, 16, APPEND_QUERIES, false, true>,
    }
}

/// The rows as stored.
type Bytes = InMemory<true>;
