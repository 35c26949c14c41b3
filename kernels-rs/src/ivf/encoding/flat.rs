//! Vectors as they were added, of any element type or of bits. Re-ranking reads them; a scan reads their f16 operands.

use cuda_std::device_inline;
use cuda_std::shared::SharedPtr;
use cuda_std::unroll;

use super::{Decode, StoredRows};
#[cfg(not(target_arch = "nvptx64"))]
use crate::ivf::list_scan::RowScan;
use crate::ivf::list_scan::{
    APPEND_QUERIES, CHUNK, CHUNK_BYTES, ROWS_A_THREAD, Residence, Rows, STAGES, ScanKey, ScanLists, THREADS, Tile,
    chunk_offset, copy_part, scan, scan_kernels,
};
use crate::product::element::Row;
use crate::product::instruction::{Instruction, MmaSync, Wgmma};

/// The scans of f16 copies in memory.
#[cfg(not(target_arch = "nvptx64"))]
pub const SCAN: RowScan = RowScan {
    kernel: scan_copies,
    append_queries: APPEND_QUERIES,
    table: false,
    planes: false,
    steps: false,
    strips: None,
};

scan_kernels! {
    fn scan_copies(key: ScanKey) {
        (Instruction::MmaSync, Tile::Of64, Residence::Resident) =>
            scan_lists_64(min_blocks = 3) = scan::<Copies, MmaSync<2, 2, 4>, 2, 4, 64, true, false>,
        (Instruction::MmaSync, Tile::Of64, Residence::Streamed) =>
            scan_lists_64_streamed = scan::<Copies, MmaSync<2, 2, 4>, 2, 4, 64, false, false>,
        (_, Tile::Of16, Residence::Resident) =>
            scan_lists_16(min_blocks = 3) = scan::<Copies, MmaSync<1, 1, 2>, 1, 2, 16, true, false>,
        (_, Tile::Of16, Residence::Streamed) =>
            scan_lists_16_streamed(min_blocks = 3) = scan::<Copies, MmaSync<1, 1, 2>, 1, 2, 16, false, false>,
        (Instruction::MmaSync, Tile::Append, Residence::Resident) =>
            append_lists = scan::<Copies, MmaSync<2, 4, 4>, 4, 4, APPEND_QUERIES, true, true>,
        (Instruction::MmaSync, Tile::Append, Residence::Streamed) =>
            append_lists_streamed = scan::<Copies, MmaSync<2, 4, 4>, 4, 4, APPEND_QUERIES, false, true>,
        (Instruction::Wgmma, Tile::Of64, Residence::Resident) =>
            scan_lists_64_sm90(arch = "sm_90a") = scan::<Copies, Wgmma<8>, 1, 8, 64, true, false>,
        (Instruction::Wgmma, Tile::Of64, Residence::Streamed) =>
            scan_lists_64_streamed_sm90(arch = "sm_90a") = scan::<Copies, Wgmma<8>, 1, 8, 64, false, false>,
        (Instruction::Wgmma, Tile::Append, Residence::Resident) =>
            append_lists_sm90(arch = "sm_90a") = scan::<Copies, Wgmma<16>, 1, 16, APPEND_QUERIES, true, true>,
        (Instruction::Wgmma, Tile::Append, Residence::Streamed) =>
            append_lists_streamed_sm90(arch = "sm_90a") = scan::<Copies, Wgmma<16>, 1, 16, APPEND_QUERIES, false, true>,
    }
}

/// The operands of rows in memory: f16 copies, or the rows themselves if they are `BYTES`, whose last chunk may end
/// early. `PLANES`: queries are two planes of bytes.
#[derive(Clone, Copy)]
pub(crate) struct InMemory<const BYTES: bool, const PLANES: bool = false> {
    base: *const u16,
    /// In words of 16 bits.
    stride: u32,
}

/// f16 copies of the rows.
type Copies = InMemory<false>;

impl<const BYTES: bool, const PLANES: bool> Rows for InMemory<BYTES, PLANES> {
    const DENSE: bool = !BYTES;
    const FACTORS: bool = BYTES;
    const PARTIAL: bool = BYTES;
    const PLANES: bool = PLANES;
    const STAGES: u32 = STAGES;
    type Ahead = ();

    #[device_inline]
    fn of(launch: &ScanLists) -> Self {
        Self { base: *launch.base, stride: launch.stride }
    }

    #[device_inline]
    unsafe fn begin(&mut self, _: SharedPtr<u8>, _: u32) {}

    #[device_inline]
    unsafe fn ahead(&self, _: u32, _: u32, _: u32) {}

    #[device_inline]
    unsafe fn fill(&self, to: SharedPtr<u8>, _: u32, first: u32, chunk: u32, thread: u32, _: ()) {
        let (row, part) = (thread / 8, thread % 8);
        let word = chunk * CHUNK + part * 8;
        let from = self.base.wrapping_add((first + row) as usize * self.stride as usize + word as usize);
        unroll::<ROWS_A_THREAD>(|i| {
            let down = i as u32 * (THREADS / 8);
            // SAFETY: rows row + down < 128, which exist. The swizzle repeats after 8 rows.
            unsafe {
                let to = to.add(chunk_offset(row, part) + down * CHUNK_BYTES);
                let from = from.wrapping_add(down as usize * self.stride as usize).cast();
                copy_part(to, from, BYTES, word < self.stride);
            }
        });
    }
}

/// Vectors as they were added: components of their element type, or bits.
pub(crate) struct Stored<E: Row> {
    rows: *const E::Stored,
    stride: u32,
}

impl<E: Row> Clone for Stored<E> {
    #[device_inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<E: Row> Copy for Stored<E> {}

impl<E: Row> Decode for Stored<E> {
    type Query = E;

    #[device_inline]
    fn of(rows: &StoredRows, stride: u32) -> Self {
        Self { rows: *rows.rows.cast(), stride }
    }

    #[device_inline]
    unsafe fn quad(&self, row: u32, _: u32, quad: u32) -> E::Quad {
        // SAFETY: as the caller promises.
        unsafe { E::quad(self.rows.wrapping_add(row as usize * self.stride as usize), quad) }
    }
}
