//! Searches among some of the rows: all rows are scanned and the others dropped, or, if few rows are accepted, only
//! these are scanned.
//!
//! A scan of all rows costs as much as a search without bits, because only rows below a threshold are looked up. A scan
//! of few rows works through a list of their numbers. It gathers a tile of them in the cache of a core, with the rows
//! that follow fetched meanwhile, and then scans the tile as any other. Up to four queries wait for memory, and rows
//! that lie apart come more slowly than a stream: then a list is faster up to a third of the rows. More queries wait
//! for products, and a list is faster up to a half and more. Milliseconds for 100,000 × 128 f32, k = 10, on two threads
//! of a virtual machine with AVX-512, partly busy, 2026-11-28, by the list / over all rows:
//!
//! | queries | one in 2 | one in 3 | one in 5 | one in 10 | one in 100 |
//! |---|---|---|---|---|---|
//! | 1 | 2.1 / 2.0 | 1.2 / 1.9 | 0.29 / 0.97 | 0.18 / 0.97 | 0.02 / 0.97 |
//! | 4 | 4.4 / 3.6 | 2.5 / 3.6 | 0.60 / 1.8 | 0.31 / 1.8 | 0.05 / 1.8 |
//! | 16 | 10.7 / 13.0 | 6.1 / 13.1 | 1.2 / 4.7 | 0.69 / 4.7 | 0.10 / 4.7 |
//!
//! # Tried, and lost
//!
//! An index of copies of all accepted rows, made before the scan: 0.37 instead of 0.18 ms for one query among one in 10
//! rows, because the copies go to memory and come back. A thousand queries took 3 to 8 % less.

use super::rows::FlatCpu;
use crate::product::cpu::scan::Tile;
use crate::product::cpu::{BLOCK, DIRECT_QUERIES, convert};
use crate::simd::fetched_ahead;
use crate::{Bitset, Element, Result, host_memory};

/// The rows that a search may return.
#[derive(Debug)]
pub(super) enum Among<'a> {
    All,
    /// Those whose bits are set. All rows are scanned.
    Bits(&'a Bitset),
    /// Those with these numbers, which ascend. Only these are scanned.
    Listed(Vec<u32>),
}

impl<'a> Among<'a> {
    /// The rows whose bits are set, of `rows` rows; all rows if there are no bits. A search for `queries` queries lists
    /// them if that is faster. O(rows / 64 + listed rows).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn new(bits: Option<&'a Bitset>, rows: usize, queries: usize) -> Result<Among<'a>> {
        let Some(bits) = bits else { return Ok(Among::All) };
        let count = bits.count_ones();
        let share = if queries <= DIRECT_QUERIES { 3 } else { 2 };
        if count > rows / share {
            return Ok(if count < rows { Among::Bits(bits) } else { Among::All });
        }
        let mut listed = host_memory::with_room(count)?;
        listed.extend(bits.set_bits().map(|row| row as u32));
        Ok(Among::Listed(listed))
    }

    /// Number of rows that a search scans, of `rows` rows.
    pub(super) fn scanned(&self, rows: usize) -> usize {
        match self {
            Among::Listed(listed) => listed.len(),
            Among::All | Among::Bits(_) => rows,
        }
    }

    /// Number of rows that a search may return, of `rows` rows.
    pub(super) fn count(&self, rows: usize) -> usize {
        match self {
            Among::All => rows,
            Among::Bits(bits) => bits.count_ones(),
            Among::Listed(listed) => listed.len(),
        }
    }
}

/// Memory of a tile of listed rows.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    rows: Vec<f32>,
    scale: Vec<f32>,
    offset: Vec<f32>,
}

impl Gathered {
    /// A tile of the listed rows, in the order of the list, and the largest norm of their blocks. The id of a row in
    /// the tile is its place in the list.
    pub(super) fn tile<T: Element>(&mut self, index: &FlatCpu<T>, listed: &[u32]) -> (Tile<'_>, f32) {
        let dim = index.dim;
        self.rows.resize(listed.len() * dim, 0.0);
        let rows = fetched_ahead(listed.len(), 0, |at| index.row(listed[at]));
        rows.zip(self.rows.chunks_exact_mut(dim)).for_each(|(row, to)| convert(row, to));
        let largest = listed.iter().map(|&row| index.largest[row as usize / BLOCK]).fold(0.0, f32::max);
        let gather = |to: &mut Vec<f32>, from: &[f32]| {
            to.clear();
            if !from.is_empty() {
                to.extend(listed.iter().map(|&row| from[row as usize]));
            }
        };
        gather(&mut self.scale, &index.scale);
        gather(&mut self.offset, &index.offset);
        let Gathered { rows, scale, offset } = self;
        (Tile { dim, rows, first_id: 0, scale, offset }, largest)
    }
}
