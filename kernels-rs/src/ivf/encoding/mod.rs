//! What the bytes of a stored vector mean on a device, a file for each encoding.
//!
//! | module | encoding |
//! |---|---|
//! | `flat` | vectors as they were added, scanned by their f16 operands |
//! | `pq` | product-quantizer codes of residuals |
//! | `f16` | f32 vectors kept as f16, which are their own operands |
//! | `scalar8` | a byte a component of residuals |
//!
//! A file has up to three readers: `Rows` for the list scan ([`crate::ivf::list_scan`]), `Decode` for re-ranking
//! ([`crate::ivf::rerank`]), and `Operand4` for measuring what the operands lose ([`crate::ivf::code_bounds`]). The file has the tables of
//! its kernels, too: a new encoding is a new file, and nothing of these kernels changes.

use cuda_std::shared::SharedPtr;

use crate::ivf::list_scan::ScanLists;
use crate::product::element::Element;

pub mod f16;
pub mod flat;
pub mod pq;
pub mod scalar8;

/// Stored rows, whatever their encoding: what a launch has of them. Fields that an encoding does not need are empty or 0.
#[derive(Clone, Copy)]
pub(crate) struct CodedRows {
    /// Rows of `code_bytes` bytes, or of `stride` components.
    pub codes: *const u8,
    /// Bytes of a row.
    pub code_bytes: u32,
    /// Bits of a sub-quantizer's code.
    pub bits: u32,
    /// Components of a sub-vector.
    pub width: u32,
    /// Components of a vector.
    pub dim: u32,
    /// Components from one centroid to the next: `dim` padded to a multiple of four.
    pub stride: u32,
    /// What codes are made of.
    pub codebooks: *const f32,
    /// Centroids of the lists, `stride` components a row, zero padded.
    pub centroids: *const f32,
}

/// Vectors as re-ranking compares them.
pub(crate) trait Decode: Copy {
    /// What queries are stored as.
    type Query: Element;

    /// The vectors of a launch.
    fn of(rows: &CodedRows) -> Self;

    /// Components 4·`quad` .. of a row of the storage, which belongs to `list`.
    ///
    /// # Safety
    /// Row and list exist, and quad is inside the row.
    unsafe fn load4(&self, row: u32, list: u32, quad: u32) -> [f32; 4];
}

/// The scaled parts of f16 operands ([`crate::ivf::code_bounds::ScaleCodes`]); empty where an encoding has none.
#[derive(Clone, Copy)]
pub(crate) struct OperandParts {
    /// `stride` components a list.
    pub offsets: *const u16,
    /// Laid out as the codebooks.
    pub halves: *const u16,
}

/// Vectors whose f16 operands are made from codes.
pub(crate) trait Operand4: Decode {
    /// The operands of components 4·`quad` .. of a row, two words: the same bits as the list scan multiplies.
    ///
    /// # Safety
    /// As [`Decode::load4`]; the parts are those of the rows.
    unsafe fn operand4(&self, parts: OperandParts, row: u32, list: u32, quad: u32) -> [u32; 2];
}

/// Where the f16 operands of a list's rows come from.
pub(crate) trait Rows: Copy {
    /// Whether a launch may have no items: dense use.
    const DENSE: bool;

    /// The rows of a launch.
    fn of(launch: &ScanLists) -> Self;

    /// Stages of the ring; with one, a stage is filled just before it is used.
    const STAGES: u32;

    /// Work before the first item. All threads of the block; a barrier follows.
    ///
    /// # Safety
    /// `to` has the room that the launch gave for it.
    unsafe fn begin(&mut self, to: SharedPtr<u8>, thread: u32);

    /// What a thread fetches for the next stage while this one is used.
    type Ahead: Copy;

    /// Fetches it: for components 64·`chunk` .. of rows `first` .. `first` + 128 of the storage.
    ///
    /// # Safety
    /// The rows exist.
    unsafe fn ahead(&self, first: u32, chunk: u32, thread: u32) -> Self::Ahead;

    /// Brings components 64·`chunk` .. of rows `first` .. `first` + 128 of the storage, which belong to `list`, into a stage. All
    /// threads of the block; complete after a commit, the wait for it, and a barrier.
    ///
    /// # Safety
    /// The rows exist, and the stage has room for 16 KiB; `ahead` was fetched for them.
    unsafe fn fill(&self, to: SharedPtr<u8>, list: u32, first: u32, chunk: u32, thread: u32, ahead: Self::Ahead);
}
