//! Sorting pairs on a device: the host side of kernels `radix_sort`.
//!
//! ```text
//! keys ──count──► counts of all digits ──scan──► starts ─┐
//! pairs ──pass, digit 0──► spare ──pass, digit 1──► pairs ──..──► the one or the other
//! ```

use std::ops::Range;

use bytemuck::Pod;
use cuda_std::launch::Kernel;
use warpann_kernels::sort::radix_sort::{self, CountDigits, ScanDigits, SortKey, SortPass};

use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::{OnStream, Queue};
use crate::device::runtime::Runtime;
use crate::device::scratch::Layout;

/// Keys that a block counts, at least.
const KEYS_PER_COUNTING_BLOCK: u32 = 8192;
/// Blocks that count on one multiprocessor at once.
const COUNTING_BLOCKS: u32 = 2;

/// A key type that the kernels sort. Public only so that it can seal [`crate::sort::Key`].
pub trait DeviceKey: SortKey + Pod {
    /// Counts its digits.
    const COUNT: Kernel<CountDigits<Self>>;
    /// Sorts by one of them.
    const PASS: Kernel<SortPass<Self>>;
}

impl DeviceKey for u64 {
    const COUNT: Kernel<CountDigits<u64>> = CountDigits::<u64>::KERNEL;
    const PASS: Kernel<SortPass<u64>> = SortPass::<u64>::KERNEL;
}

impl DeviceKey for u128 {
    const COUNT: Kernel<CountDigits<u128>> = CountDigits::<u128>::KERNEL;
    const PASS: Kernel<SortPass<u128>> = SortPass::<u128>::KERNEL;
}

/// Significant bits of a key's word: as the kernels shift and mask it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Field {
    shift: u32,
    mask: u64,
}

impl Field {
    /// Those of `bits` of the key that lie in word `word`.
    fn of(word: u32, bits: &Range<u32>) -> Field {
        let within = |bit: u32| bit.saturating_sub(word * u64::BITS).min(u64::BITS);
        let (start, end) = (within(bits.start), within(bits.end));
        if start >= end {
            Field::default()
        } else {
            Field { shift: start, mask: u64::MAX >> (u64::BITS - (end - start)) }
        }
    }
}

/// A pass: which digit, counted from 0 in the first word, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    digit: u32,
    high: bool,
    shift: u32,
    mask: u32,
}

/// How to sort sets of pairs, and where the workspace lies.
#[derive(Debug, Clone)]
pub(crate) struct SortPlan {
    len: u32,
    sets: u32,
    fields: [Field; 2],
    passes: Vec<Pass>,
    /// Tiles of a set, and of a portion of it.
    tiles: u32,
    portion: u32,
    counting_blocks: u32,
    /// From here to `starts` all is zeroed.
    counts: usize,
    taken: usize,
    starts: usize,
    words: usize,
}

impl SortPlan {
    /// Sorts of `sets` sets (at most 65,535), one after the other in memory, of `len` pairs each, by bits `bits` of the keys.
    /// The workspace, reserved in `layout`, is 1 KiB for every 4,096 (`u128`: 3,072) pairs and a little more.
    pub fn new<K: SortKey>(layout: &mut Layout, len: u32, sets: u32, bits: Range<u32>, limits: &Limits) -> SortPlan {
        Self::in_portions::<K>(layout, len, sets, bits, limits, radix_sort::PORTION_KEYS / K::TILE)
    }

    /// As [`Self::new`], with portions of so many tiles at most.
    fn in_portions<K: SortKey>(
        layout: &mut Layout,
        len: u32,
        sets: u32,
        bits: Range<u32>,
        limits: &Limits,
        portion: u32,
    ) -> SortPlan {
        let words = 0..K::WORDS;
        let mut fields = [Field::default(); 2];
        let mut passes = Vec::new();
        // One pair is sorted.
        for word in words.filter(|_| len > 1 && sets > 0) {
            let field = Field::of(word, &bits);
            fields[word as usize] = field;
            for digit in 0..radix_sort::WORD_DIGITS {
                let mask = (field.mask >> (radix_sort::DIGIT_BITS * digit)) as u32 & (radix_sort::DIGITS - 1);
                if mask != 0 {
                    let shift = field.shift + radix_sort::DIGIT_BITS * digit;
                    passes.push(Pass { digit: word * radix_sort::WORD_DIGITS + digit, high: word == 1, shift, mask });
                }
            }
        }
        let tiles = len.div_ceil(K::TILE);
        let (sets_there, per_set) = (sets as usize, Self::digits::<K>() * radix_sort::DIGITS as usize);
        let portions = tiles.div_ceil(portion) as usize;
        let there = usize::from(!passes.is_empty());
        let most = (limits.multiprocessors * COUNTING_BLOCKS).div_ceil(sets.max(1));
        SortPlan {
            len,
            sets,
            fields,
            tiles,
            portion,
            counting_blocks: len.div_ceil(KEYS_PER_COUNTING_BLOCK).clamp(1, most.max(2)),
            counts: layout.array::<u32>(there * sets_there * per_set),
            taken: layout.array::<u32>(passes.len() * portions * sets_there),
            starts: layout.array::<u32>(there * sets_there * per_set * (portions + 1)),
            words: layout.array::<u32>(there * sets_there * tiles as usize * radix_sort::DIGITS as usize),
            passes,
        }
    }

    /// Digits of a key.
    const fn digits<K: SortKey>() -> usize {
        (K::WORDS * radix_sort::WORD_DIGITS) as usize
    }

    /// Whether the sorted pairs lie in the spare memory.
    pub fn ends_in_spare(&self) -> bool {
        self.passes.len() % 2 == 1
    }
}

/// Where pairs lie on a device: keys and payloads of all sets.
#[derive(Debug)]
pub(crate) struct Pairs<K> {
    /// Keys, aligned to their size.
    pub keys: *mut K,
    /// Payloads, as many.
    pub payloads: *mut u32,
}

impl<K> Clone for Pairs<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Pairs<K> {}

/// Enqueues the sort of `pairs`, with `spare` as room for as many and the workspace at `start`. Gives the one of the two where the sorted
/// pairs will be; the other holds nothing of use then.
///
/// # Safety
/// Both have room for the plan's sets, do not overlap, and nobody else uses them or the workspace until this is done; the workspace is
/// as the plan's layout reserved it.
pub(crate) unsafe fn enqueue<K: DeviceKey, Q: Queue>(
    queue: &Q,
    plan: &SortPlan,
    pairs: Pairs<K>,
    spare: Pairs<K>,
    start: *mut u8,
) -> Result<Pairs<K>> {
    if plan.passes.is_empty() {
        return Ok(pairs);
    }
    let &SortPlan { len, sets, tiles, portion, fields: [low, high], .. } = plan;
    let part = |offset: usize| start.wrapping_add(offset).cast::<u32>();
    let (counts, taken, starts, words) = (part(plan.counts), part(plan.taken), part(plan.starts), part(plan.words));
    let (digits, portions) = (SortPlan::digits::<K>() as u32, tiles.div_ceil(portion));
    let word_bytes = sets as usize * tiles as usize * radix_sort::DIGITS as usize * size_of::<u32>();
    let (mut from, mut to) = (pairs, spare);
    // SAFETY: the layout reserved every part with the size that the kernels ask for; counts and what is taken are zeroed, words are
    // stale, and passes and portions come in their order.
    unsafe {
        queue.fill(counts.cast(), 0, plan.starts - plan.counts)?;
        queue.fill(words.cast(), radix_sort::STALE, word_bytes)?;
        let launch = CountDigits {
            keys: from.keys,
            len,
            low_shift: low.shift,
            low_mask: low.mask,
            high_shift: high.shift,
            high_mask: high.mask,
            counts,
        };
        queue.launch(&K::COUNT, launch.config(plan.counting_blocks, sets), launch)?;
        let launch = ScanDigits { counts, portions, starts };
        queue.launch(&ScanDigits::KERNEL, launch.config(digits, sets), launch)?;
        let rows = portions + 1;
        for (number, pass) in plan.passes.iter().enumerate() {
            for turn in 0..portions {
                let first_tile = turn * portion;
                let row = (pass.digit * rows + turn) as usize * radix_sort::DIGITS as usize;
                let launch = SortPass {
                    keys: from.keys,
                    payloads: from.payloads,
                    keys_out: to.keys,
                    payloads_out: to.payloads,
                    len,
                    high: pass.high.into(),
                    shift: pass.shift,
                    mask: pass.mask,
                    epoch: number as u32 % 2,
                    first_tile,
                    tiles,
                    starts: starts.wrapping_add(row),
                    starts_stride: digits * rows * radix_sort::DIGITS,
                    words,
                    next_tile: taken.wrapping_add((number * portions as usize + turn as usize) * sets as usize),
                };
                queue.launch(&K::PASS, launch.config(portion.min(tiles - first_tile), sets), launch)?;
            }
            (from, to) = (to, from);
        }
    }
    Ok(from)
}

/// Sorts pairs in host memory by `bits` of the keys; as many keys as payloads, at most 2³² − 1.
pub(crate) fn sort_from_host<K: DeviceKey>(
    runtime: &Runtime,
    keys: &mut [K],
    payloads: &mut [u32],
    bits: Range<u32>,
) -> Result<()> {
    let mut layout = Layout::default();
    let at = [(); 2].map(|()| (layout.array::<K>(keys.len()), layout.array::<u32>(keys.len())));
    let plan = SortPlan::new::<K>(&mut layout, keys.len() as u32, 1, bits, &runtime.limits());
    let memory = runtime.allocate(layout.bytes())?;
    let stream = runtime.stream()?;
    let start = runtime.address(&memory);
    let [pairs, spare] = at.map(|(keys, payloads)| Pairs {
        keys: start.wrapping_add(keys).cast::<K>(),
        payloads: start.wrapping_add(payloads).cast::<u32>(),
    });
    // SAFETY: the layout reserved every part; the stream runs all this in order.
    unsafe {
        runtime.upload(&stream, pairs.keys.cast(), bytemuck::cast_slice(keys))?;
        runtime.upload(&stream, pairs.payloads.cast(), bytemuck::cast_slice(payloads))?;
        let sorted = enqueue(&OnStream { runtime, stream: &stream }, &plan, pairs, spare, start)?;
        runtime.download(&stream, bytemuck::cast_slice_mut(keys), sorted.keys.cast())?;
        runtime.download(&stream, bytemuck::cast_slice_mut(payloads), sorted.payloads.cast())
    }
}

#[cfg(test)]
mod tests;
