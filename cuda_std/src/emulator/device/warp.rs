//! Collectives: deposit a word, meet, read what others deposited.

use crate::{
    Site,
    emulator::{
        clock::{LANES, lanes},
        context::{Lane, current, fail, meet},
        violation::{Operation, ViolationKind},
    },
    warp::Words,
};

#[inline(always)]
pub fn lane_id() -> u32 {
    // SAFETY: the running thread's lane is alive.
    unsafe { (*current()).lane }
}

/// The words that the lanes of a collective deposited.
struct Met {
    lane: *mut Lane,
    words: *const [u64; LANES],
    mask: u32,
}

/// Deposits `value` and meets the lanes of `mask`. Two words count as two collectives, but the lanes meet once:
/// meetings are most of what collectives cost here.
#[inline(always)]
fn exchange<B: Words>(operation: Operation, mask: u32, value: B, site: Site) -> Met {
    let lane = current();
    // SAFETY: the running thread, holding no reference across `meet`; its warp is alive. The set of slots is not
    // written again before this lane meets others once more.
    unsafe {
        let warp = (*lane).warp;
        (*warp).exchange[(*warp).parity & 1][(*lane).lane as usize & (LANES - 1)] = value.into();
        (*lane).words = B::WORDS;
        (*(*lane).block).stats.lane_collectives += B::WORDS - 1;
        meet(lane, operation, mask, site);
        (*lane).words = 1;
        Met { lane, words: &raw const (*warp).exchange[(*warp).parity & 1 ^ 1], mask }
    }
}

impl Met {
    #[inline(always)]
    fn lane(&self) -> u32 {
        // SAFETY: the running thread's lane is alive.
        unsafe { (*self.lane).lane }
    }

    #[inline(always)]
    fn word(&self, lane: u32) -> u32 {
        self.value(lane)
    }

    #[inline(always)]
    fn value<B: Words>(&self, lane: u32) -> B {
        // SAFETY: see `exchange`.
        B::truncate(unsafe { (*self.words)[lane as usize & (LANES - 1)] })
    }

    /// The value of another lane, which must be one of the mask.
    #[inline(always)]
    fn from<B: Words>(&self, source: u32, operation: Operation, site: Site) -> B {
        if self.mask != u32::MAX && self.mask >> source & 1 == 0 {
            let kind = ViolationKind::ShuffleFromOutside { operation, mask: self.mask, source_lane: source };
            // SAFETY: the running thread.
            unsafe { fail(self.lane, site, kind) }
        }
        self.value(source)
    }

    /// A result that is the same for all lanes of the mask: the first computes it.
    #[inline(always)]
    fn shared(&self, compute: impl FnOnce(&Self) -> u32) -> u32 {
        // SAFETY: the running thread's warp is alive; nothing else runs on this OS thread.
        unsafe {
            let warp = (*self.lane).warp;
            let (pass, mask, value) = (*warp).shared_result;
            if pass == (*warp).pass && mask == self.mask {
                return value;
            }
            let value = compute(self);
            (*warp).shared_result = ((*warp).pass, self.mask, value);
            value
        }
    }

    fn fold(&self, combine: impl Fn(u32, u32) -> u32) -> u32 {
        lanes(self.mask).map(|lane| self.word(lane as u32)).reduce(combine).unwrap_or(0)
    }

    fn bits(&self) -> u32 {
        lanes(self.mask).fold(0, |set, lane| set | self.word(lane as u32) << lane)
    }
}

/// Operands of shuffles are five bits wide.
const LANE_BITS: u32 = LANES as u32 - 1;

#[inline(always)]
pub fn shuffle_xor<B: Words>(mask: u32, value: B, lane_mask: u32, site: Site) -> B {
    let met = exchange(Operation::ShuffleXor, mask, value, site);
    met.from(met.lane() ^ lane_mask & LANE_BITS, Operation::ShuffleXor, site)
}

#[inline(always)]
pub fn shuffle_up<B: Words>(mask: u32, value: B, delta: u32, site: Site) -> B {
    let met = exchange(Operation::ShuffleUp, mask, value, site);
    match met.lane().checked_sub(delta & LANE_BITS) {
        Some(source) => met.from(source, Operation::ShuffleUp, site),
        None => value,
    }
}

#[inline(always)]
pub fn shuffle_down<B: Words>(mask: u32, value: B, delta: u32, site: Site) -> B {
    let met = exchange(Operation::ShuffleDown, mask, value, site);
    match met.lane() + (delta & LANE_BITS) {
        source if source <= LANE_BITS => met.from(source, Operation::ShuffleDown, site),
        _ => value,
    }
}

#[inline(always)]
pub fn shuffle_idx<B: Words>(mask: u32, value: B, lane: u32, site: Site) -> B {
    exchange(Operation::ShuffleIdx, mask, value, site).from(lane & LANE_BITS, Operation::ShuffleIdx, site)
}

#[inline(always)]
pub fn sync_warp(mask: u32, site: Site) {
    // SAFETY: the running thread, holding no reference.
    unsafe { meet(current(), Operation::SyncWarp, mask, site) }
}

#[inline(always)]
pub fn any(mask: u32, predicate: bool, site: Site) -> bool {
    exchange(Operation::Any, mask, u32::from(predicate), site).shared(Met::bits) != 0
}

#[inline(always)]
pub fn all(mask: u32, predicate: bool, site: Site) -> bool {
    exchange(Operation::All, mask, u32::from(predicate), site).shared(Met::bits) == mask
}

#[inline(always)]
pub fn ballot(mask: u32, predicate: bool, site: Site) -> u32 {
    exchange(Operation::Ballot, mask, u32::from(predicate), site).shared(Met::bits)
}

#[inline(always)]
pub fn match_any(mask: u32, value: u32, site: Site) -> u32 {
    let met = exchange(Operation::MatchAny, mask, value, site);
    lanes(mask).fold(0, |set, lane| set | u32::from(met.word(lane as u32) == value) << lane)
}

macro_rules! reduce {
    ($($name:ident = $operation:ident, $combine:expr;)*) => {$(
        #[inline(always)]
        pub fn $name(mask: u32, value: u32, site: Site) -> u32 {
            exchange(Operation::$operation, mask, value, site).shared(|met| met.fold($combine))
        }
    )*};
}

reduce! {
    reduce_add = ReduceAdd, u32::wrapping_add;
    reduce_min = ReduceMin, Ord::min;
    reduce_max = ReduceMax, Ord::max;
    reduce_and = ReduceAnd, |a, b| a & b;
    reduce_or = ReduceOr, |a, b| a | b;
    reduce_xor = ReduceXor, |a, b| a ^ b;
}

#[inline(always)]
pub fn reduce_min_i32(mask: u32, value: i32, site: Site) -> i32 {
    let met = exchange(Operation::ReduceMin, mask, value as u32, site);
    met.shared(|met| met.fold(|a, b| (a as i32).min(b as i32) as u32)) as i32
}

#[inline(always)]
pub fn reduce_max_i32(mask: u32, value: i32, site: Site) -> i32 {
    let met = exchange(Operation::ReduceMax, mask, value as u32, site);
    met.shared(|met| met.fold(|a, b| (a as i32).max(b as i32) as u32)) as i32
}
