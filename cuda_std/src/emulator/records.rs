//! The last accesses to a word of memory, and whether a new access comes after them: the bookkeeping of races, in
//! shared memory and in global memory.
//!
//! # Order of accesses
//! The *epoch* counts the barriers of the block; a new block starts a new one too, so nothing needs clearing between
//! blocks. Accesses of different epochs are ordered. Within an epoch, accesses of different warps are not; those of one
//! warp are ordered by its clock ([`WarpClock`]), which ticks at each collective.
//!
//! # Precision
//! Words are followed as a whole until someone touches a part of one; then each of its bytes is. Of several unordered
//! readers of one warp the earliest tick is kept, of readers of several warps the first and the latest of another warp:
//! both are enough to find a race, and never report one that is not.

use super::{
    clock::{LANES, WarpClock, lanes},
    violation::Access,
};
use crate::Site;

/// Bytes of a word.
pub const WORD: usize = 4;
/// In place of a thread's number: no thread made the access.
const NONE: u16 = u16::MAX;

/// The last access of a kind to a word or byte.
#[derive(Clone, Copy)]
pub struct Record {
    pub epoch: u32,
    /// Tick of the warp's clock ([`WarpClock::tick`]) at which the access was made.
    tick: u32,
    /// Lanes of the warp that made it.
    lanes: u32,
    warp: u8,
    pub kind: Option<Access>,
    /// The latest thread of another warp that made it as well.
    second: u16,
    pub site: Option<Site>,
}

impl Default for Record {
    fn default() -> Self {
        Self { epoch: 0, tick: 0, lanes: 0, warp: 0, kind: None, second: NONE, site: None }
    }
}

impl Record {
    /// The first thread that made it.
    pub fn thread(&self) -> u32 {
        u32::from(self.warp) * LANES as u32 + self.lanes.trailing_zeros()
    }

    /// Whether threads of several warps made it.
    pub fn several_warps(&self) -> bool {
        self.second != NONE
    }

    pub fn is_strong(&self) -> bool {
        self.kind.is_some_and(Access::is_strong)
    }

    /// A thread other than `who` that made it.
    pub fn other_thread(&self, who: &Who<'_>) -> u32 {
        let own = u32::from(who.warp) * LANES as u32 + who.lane;
        if self.second != NONE && u32::from(self.second) != own {
            return self.second.into();
        }
        let others = if self.warp == who.warp { self.lanes & !(1 << who.lane) } else { self.lanes };
        let lanes = if others != 0 { others } else { self.lanes };
        u32::from(self.warp) * LANES as u32 + lanes.trailing_zeros()
    }

    /// Whether fences and a flag may have ordered it before what `who` does; `fenced` gives the lanes of a warp that
    /// executed a fence since the last barrier.
    #[cold]
    pub fn may_be_ordered(&self, who: &Who<'_>, fenced: impl Fn(usize) -> u32) -> bool {
        let first = if self.warp != who.warp {
            fenced(who.warp.into()) != 0 && fenced(self.warp.into()) != 0
        } else {
            let others = self.lanes & !(1 << who.lane);
            let own = fenced(who.warp.into());
            others == 0 || own >> who.lane & 1 == 1 && own & others != 0
        };
        let second = self.second == NONE || fenced(who.warp.into()) != 0 && fenced(self.second as usize / LANES) != 0;
        first && second
    }
}

/// The last accesses to a word or byte.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    pub write: Record,
    pub read: Record,
    /// Index of the four byte cells, valid if they were made in this block.
    split: u32,
    pub split_in: u32,
}

/// The byte cells of words of which parts are touched.
pub type Splits = Vec<[Cell; WORD]>;

impl Cell {
    /// Applies `visit` to this cell of the word at `word` if `whole`, or to that of each byte that is in `bytes` where
    /// the word is split; `visit` gets the first byte.
    #[inline(always)]
    pub fn visit<E>(
        &mut self,
        (splits, born): (&mut Splits, u32),
        word: usize,
        bytes: std::ops::Range<usize>,
        whole: bool,
        visit: &mut impl FnMut(&mut Cell, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if whole && self.split_in != born {
            return visit(self, word);
        }
        if self.split_in != born {
            self.split_in = born;
            self.split = splits.len() as u32;
            splits.push([*self; WORD]);
        }
        for (byte, cell) in (word..).zip(&mut splits[self.split as usize]) {
            if bytes.contains(&byte) {
                visit(cell, byte)?;
            }
        }
        Ok(())
    }

    /// Records a read, or gives the write that it races with.
    #[inline(always)]
    pub fn read(&mut self, who: &Who<'_>, kind: Access) -> Result<(), Record> {
        let strong = kind.is_strong();
        if !(strong && self.write.is_strong() || who.follows(&self.write)) {
            return Err(self.write);
        }
        // More races with an ordinary read than with a strong one, so the former is kept.
        if !strong || self.read.is_strong() || who.follows(&self.read) {
            who.join(&mut self.read, kind);
        }
        Ok(())
    }

    /// Records a write or an atomic operation, or gives the access that it races with.
    #[inline(always)]
    pub fn write(&mut self, who: &Who<'_>, kind: Access) -> Result<(), Record> {
        let strong = kind.is_strong();
        if !(strong && self.write.is_strong() || who.follows(&self.write)) {
            return Err(self.write);
        }
        if !(strong && self.read.is_strong() || who.follows(&self.read)) {
            return Err(self.read);
        }
        if strong {
            who.join(&mut self.write, kind);
        } else {
            self.write = who.record(kind);
        }
        self.read = Record::default();
        Ok(())
    }

    /// Records an access that is ordered after all that is recorded.
    pub fn replace(&mut self, who: &Who<'_>, kind: Access) {
        if kind.writes() {
            self.write = who.record(kind);
            self.read = Record::default();
        } else {
            self.read = who.record(kind);
        }
    }
}

/// A thread that accesses memory.
#[derive(Clone, Copy)]
pub struct Accessor<'a> {
    /// Number in the warp.
    pub lane: u32,
    /// Number of the warp in the block.
    pub warp: u32,
    pub clock: &'a WarpClock,
}

impl Accessor<'_> {
    /// Number in the block.
    #[inline(always)]
    pub fn thread(&self) -> u32 {
        self.warp * LANES as u32 + self.lane
    }
}

/// The thread that makes an access, and the clock that orders earlier accesses before it.
pub struct Who<'a> {
    pub epoch: u32,
    lane: u32,
    warp: u8,
    clock: &'a WarpClock,
    pub site: Site,
}

impl<'a> Who<'a> {
    /// The thread, in an epoch, at a place in the source.
    #[inline(always)]
    pub fn new(by: Accessor<'a>, epoch: u32, site: Site) -> Self {
        Who { epoch, lane: by.lane, warp: by.warp as u8, clock: by.clock, site }
    }
}

impl Who<'_> {
    /// Whether an access of this block is ordered before what this thread does now.
    #[inline(always)]
    fn follows(&self, record: &Record) -> bool {
        if record.epoch != self.epoch {
            return true;
        }
        if record.warp != self.warp || record.second != NONE {
            return false;
        }
        let others = record.lanes & !(1 << self.lane);
        others == 0 || record.tick < self.clock.all || self.follows_pairwise(record.tick, others)
    }

    #[cold]
    fn follows_pairwise(&self, tick: u32, others: u32) -> bool {
        let Some(pairs) = &self.clock.pairs else { return false };
        lanes(others).all(|other| tick < pairs[self.lane as usize][other])
    }

    pub fn record(&self, kind: Access) -> Record {
        Record {
            epoch: self.epoch,
            tick: self.clock.tick,
            lanes: 1 << self.lane,
            warp: self.warp,
            kind: Some(kind),
            second: NONE,
            site: Some(self.site),
        }
    }

    /// Adds this access to a record of the same kind.
    #[inline(always)]
    fn join(&self, record: &mut Record, kind: Access) {
        if record.epoch != self.epoch || record.is_strong() != kind.is_strong() {
            *record = self.record(kind);
        } else if record.warp != self.warp {
            record.second = u16::from(self.warp) * LANES as u16 + self.lane as u16;
            record.site = Some(self.site);
        } else if record.second != NONE {
            // The site is that of the second thread.
        } else if record.tick < self.clock.all {
            *record = self.record(kind);
        } else {
            record.lanes |= 1 << self.lane;
            record.site = Some(self.site);
        }
    }
}
