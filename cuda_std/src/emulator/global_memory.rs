//! The record of a block's accesses to global memory, word by word (see [`super::records`]), by which races between its
//! threads are found.
//!
//! A block touches little of global memory, so records are kept in lines of 64 bytes that a hash table finds, and only
//! of memory that the kernel may write: that of its `PtrMut` arguments. Nothing is cleared between blocks: entries of
//! the table and records carry the epoch that made them. Reads by `load_nc`, which are most of what kernels read, are
//! compared with writes and not recorded.
//!
//! [`crate::emulator`] lists the races that are not found, and the reasons.

use super::{
    clock::LANES,
    records::{Accessor, Cell, Record, Splits, WORD, Who},
    violation::{Access, ViolationKind},
};
use crate::Site;
use std::ops::Range;

/// Bytes of a line.
const LINE: usize = 64;
/// Lines that a block can have records of: 16 MiB of global memory, whose records take 15 times as much.
const MOST_LINES: usize = 1 << 18;
/// Lines whose records are kept for later blocks to use.
const KEPT_LINES: usize = 1 << 14;
/// Slots of the smallest table.
const LEAST_SLOTS: usize = 1 << 8;
/// Warps of a block at most.
const WARPS: usize = 1024 / LANES;

/// An entry of the table.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Number of the line in the address space.
    line: usize,
    /// The block that made the entry, by its first epoch.
    born: u32,
    /// Place of the line's cells.
    index: u32,
}

/// The lines that a block touched, by their numbers.
struct Lines {
    /// Open addressing; a power of two of slots, at most half of them in use.
    slots: Vec<Slot>,
    cells: Vec<[Cell; LINE / WORD]>,
    /// Number of slots in use.
    used: usize,
    splits: Splits,
    /// Epoch at the start of the block.
    born: u32,
}

impl Lines {
    fn new(born: u32) -> Self {
        Self { slots: vec![Slot::default(); LEAST_SLOTS], cells: Vec::new(), used: 0, splits: Vec::new(), born }
    }

    /// The slot of a line, or the empty one where it belongs.
    #[inline(always)]
    fn find(&self, line: usize) -> usize {
        let mask = self.slots.len() - 1;
        // The golden ratio spreads the lines over the high bits of the product.
        let mut at = line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & mask;
        loop {
            let slot = &self.slots[at];
            if slot.born != self.born || slot.line == line {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// Makes the line that belongs in slot `at`; the place of its cells.
    #[cold]
    fn insert(&mut self, line: usize, epoch: u32) -> usize {
        if self.used == MOST_LINES {
            *self = Self::new(epoch);
        }
        if 2 * (self.used + 1) > self.slots.len() {
            let larger = vec![Slot::default(); 2 * self.slots.len()];
            for slot in std::mem::replace(&mut self.slots, larger) {
                if slot.born == self.born {
                    let at = self.find(slot.line);
                    self.slots[at] = slot;
                }
            }
        }
        let at = self.find(line);
        self.slots[at] = Slot { line, born: self.born, index: self.used as u32 };
        if self.used == self.cells.len() {
            self.cells.push([Cell::default(); LINE / WORD]);
        }
        self.used += 1;
        self.used - 1
    }

    /// Applies `visit` to the cell of each word of `bytes`, or of each byte where words are split; `visit` gets the
    /// first byte. Lines that the block has not touched are made in epoch `make`, or left out if there is none.
    #[inline(always)]
    fn visit(
        &mut self,
        bytes: Range<usize>,
        make: Option<u32>,
        mut visit: impl FnMut(&mut Cell, usize) -> Result<(), ViolationKind>,
    ) -> Result<(), ViolationKind> {
        let mut first = bytes.start / WORD * WORD;
        while first < bytes.end {
            let line = first / LINE;
            let end = bytes.end.min((line + 1) * LINE);
            let slot = self.slots[self.find(line)];
            let index = match make {
                _ if slot.born == self.born => slot.index as usize,
                Some(epoch) => self.insert(line, epoch),
                None => {
                    first = end;
                    continue;
                }
            };
            for word in (first..end).step_by(WORD) {
                let whole = bytes.start <= word && word + WORD <= bytes.end;
                let splits = (&mut self.splits, self.born);
                self.cells[index][word % LINE / WORD].visit(splits, word, bytes.clone(), whole, &mut visit)?;
            }
            first = end;
        }
        Ok(())
    }
}

/// The records of a block.
pub struct GlobalMemory {
    lines: Lines,
    epoch: u32,
    /// The epoch in which each warp last executed a fence, and its lanes that did.
    fences: [(u32, u32); WARPS],
}

impl GlobalMemory {
    pub fn new() -> Self {
        Self { lines: Lines::new(0), epoch: 0, fences: [(0, 0); WARPS] }
    }

    /// Forgets everything: a new block.
    pub fn start_block(&mut self) {
        if self.lines.cells.len() > KEPT_LINES || self.epoch > u32::MAX / 2 {
            *self = Self::new();
        }
        self.epoch += 1;
        self.lines.used = 0;
        self.lines.splits.clear();
        self.lines.born = self.epoch;
    }

    /// All threads of the block met.
    pub fn pass_barrier(&mut self) {
        if self.epoch == u32::MAX {
            // Everything is ordered here, so nothing need be known.
            *self = Self::new();
            self.start_block();
        }
        self.epoch += 1;
    }

    /// A lane of `warp` executed a fence.
    pub fn fence(&mut self, warp: u32, lane: u32) {
        let (epoch, lanes) = &mut self.fences[warp as usize % WARPS];
        if *epoch != self.epoch {
            (*epoch, *lanes) = (self.epoch, 0);
        }
        *lanes |= 1 << lane;
    }

    /// Checks and records an access of `bytes` by a thread.
    pub fn access(
        &mut self,
        by: Accessor<'_>,
        bytes: Range<usize>,
        kind: Access,
        site: Site,
    ) -> Result<(), ViolationKind> {
        let epoch = self.epoch;
        let who = Who::new(by, epoch, site);
        let fences = &self.fences;
        let fenced = |warp: usize| {
            let (fenced_in, lanes) = fences[warp % WARPS];
            if fenced_in == epoch { lanes } else { 0 }
        };
        self.lines.visit(bytes, Some(epoch), |cell, address| {
            match if kind.writes() { cell.write(&who, kind) } else { cell.read(&who, kind) } {
                // Fences and a flag may have ordered the two accesses, so this is not reported as a race.
                Err(other) if other.may_be_ordered(&who, fenced) => {
                    cell.replace(&who, kind);
                    Ok(())
                }
                Err(other) => Err(race(&other, address, kind, &who)),
                Ok(()) => Ok(()),
            }
        })
    }

    /// Checks a read through the read-only cache.
    pub fn read_only(&mut self, bytes: Range<usize>) -> Result<(), ViolationKind> {
        let born = self.lines.born;
        self.lines.visit(bytes, None, |cell, address| match (cell.write.epoch >= born, cell.write.site) {
            (true, Some(site)) => {
                Err(ViolationKind::ReadOnlyWritten { address, thread: cell.write.thread(), written: site.into() })
            }
            _ => Ok(()),
        })
    }
}

#[cold]
fn race(record: &Record, address: usize, access: Access, who: &Who<'_>) -> ViolationKind {
    ViolationKind::GlobalRace {
        address,
        access,
        other_access: record.kind.unwrap_or(Access::Read),
        other_thread: record.other_thread(who),
        other: record.site.unwrap_or(who.site).into(),
    }
}
