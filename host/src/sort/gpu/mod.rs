//! Sorting pairs on a device: the host side of kernels `radix_sort`.
//!
//! ```text
//! keys ──count──► counts of all digits ──scan──► starts ─┐
//! pairs ──pass, digit 0──► spare ──pass, digit 1──► pairs ──..──► the one or the other
//! ```

use std::ops::Range;

use bytemuck::Pod;
use cuda_std::PtrMut;
use cuda_std::launch::Kernel;
use warpann_kernels::sort::radix_sort::{self, CountDigits, ScanDigits, SortKey, SortPass};

use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::{OnStream, Queue};
use crate::device::runtime::Runtime;
use crate::device::scratch::{Layout, Reserved, Scratch};

/// Smallest number of keys that a block counts.
const KEYS_PER_COUNTING_BLOCK: u32 = 8192;
/// Number of blocks that count on one multiprocessor at once.
const COUNTING_BLOCKS: u32 = 2;

/// A key type that the kernels sort. Public only so that it can seal [`crate::sort::Key`].
pub trait DeviceKey: SortKey + Pod {
    /// The kernel that counts the digits of keys of this type.
    const COUNT: Kernel<CountDigits<Self>>;
    /// The kernel that sorts by one digit.
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

/// The significant bits of a word of a key, as the shift and the mask of the kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Field {
    shift: u32,
    mask: u64,
}

impl Field {
    /// The part of the key's range `bits` that lies in word `word`.
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

/// A pass: the number of its digit, from 0 in the first word, and the bits of the digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    digit: u32,
    high: bool,
    shift: u32,
    mask: u32,
}

/// A plan for sorting sets of pairs, with the layout of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct SortPlan {
    len: u32,
    sets: u32,
    fields: [Field; 2],
    passes: Vec<Pass>,
    /// Number of tiles of a set, and (`portion`) of a portion of the set.
    tiles: u32,
    portion: u32,
    counting_blocks: u32,
    /// The counts of all digits, followed by the numbers of tiles taken in each portion of each pass. It is one array,
    /// because one fill zeroes both.
    zeroed: Reserved<u32>,
    counts: Reserved<u32>,
    taken: Reserved<u32>,
    starts: Reserved<u32>,
    words: Reserved<u32>,
}

impl SortPlan {
    /// Plans sorts of `sets` sets (at most 65,535), consecutive in memory, of `len` pairs each, by bits `bits` of the
    /// keys. The workspace, reserved in `layout`, is slightly more than 1 KiB for every 4,096 (`u128`: 3,072) pairs.
    pub fn new<K: SortKey>(layout: &mut Layout, len: u32, sets: u32, bits: Range<u32>, limits: &Limits) -> SortPlan {
        Self::in_portions::<K>(layout, len, sets, bits, limits, radix_sort::PORTION_KEYS / K::TILE)
    }

    /// As [`Self::new`], with portions of at most `portion` tiles.
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
        // A single pair is already sorted.
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
        let counts_len = there * sets_there * per_set;
        let zeroed = layout.array(counts_len + passes.len() * portions * sets_there);
        let (counts, taken) = zeroed.split_at(counts_len);
        SortPlan {
            len,
            sets,
            fields,
            tiles,
            portion,
            counting_blocks: len.div_ceil(KEYS_PER_COUNTING_BLOCK).clamp(1, most.max(2)),
            zeroed,
            counts,
            taken,
            starts: layout.array(counts_len * (portions + 1)),
            words: layout.array(there * sets_there * tiles as usize * radix_sort::DIGITS as usize),
            passes,
        }
    }

    /// Number of digits of a key.
    const fn digits<K: SortKey>() -> usize {
        (K::WORDS * radix_sort::WORD_DIGITS) as usize
    }

    /// Whether the sorted pairs lie in the spare memory.
    #[cfg(any(test, feature = "shifted"))]
    pub fn ends_in_spare(&self) -> bool {
        self.passes.len() % 2 == 1
    }
}

/// Pairs on a device: keys and payloads of all sets.
#[derive(Debug)]
pub(crate) struct Pairs<K> {
    /// Keys, aligned to their size.
    pub keys: PtrMut<K>,
    /// A payload for each key.
    pub payloads: PtrMut<u32>,
}

impl<K> Pairs<K> {
    /// The first `len` pairs.
    fn take(self, len: usize) -> Self {
        Pairs { keys: self.keys.take(len), payloads: self.payloads.take(len) }
    }
}

impl<K> Clone for Pairs<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Pairs<K> {}

/// Enqueues the sort of `pairs`. `spare` is memory for the same number of pairs, and `scratch` has the workspace.
/// Returns `pairs` or `spare`, whichever will hold the sorted pairs; the contents of the other are then unspecified.
///
/// # Safety
/// `pairs` and `spare` have room for the plan's sets and do not overlap. The plan's layout reserved the workspace in
/// `scratch`. No other work uses this memory until the sort is done.
pub(crate) unsafe fn enqueue<K: DeviceKey, Q: Queue>(
    queue: &Q,
    plan: &SortPlan,
    pairs: Pairs<K>,
    spare: Pairs<K>,
    scratch: Scratch,
) -> Result<Pairs<K>> {
    if plan.passes.is_empty() {
        return Ok(pairs);
    }
    let &SortPlan { len, sets, tiles, portion, fields: [low, high], .. } = plan;
    let [counts, taken, starts, words] =
        [plan.counts, plan.taken, plan.starts, plan.words].map(|array| scratch.at(array));
    let (digits, portions) = (SortPlan::digits::<K>() as u32, tiles.div_ceil(portion));
    let all = len as usize * sets as usize;
    let (mut from, mut to) = (pairs.take(all), spare.take(all));
    // SAFETY: the layout reserved every array with the length that the kernels need. The counts of digits and of tiles
    // are zeroed, the words are invalid, and passes and portions run in order.
    unsafe {
        queue.fill(scratch.at(plan.zeroed), 0)?;
        queue.fill(words, radix_sort::STALE)?;
        let launch = CountDigits {
            keys: from.keys.into(),
            len,
            low_shift: low.shift,
            low_mask: low.mask,
            high_shift: high.shift,
            high_mask: high.mask,
            counts,
        };
        queue.launch(&K::COUNT, launch.config(plan.counting_blocks, sets), launch)?;
        let launch = ScanDigits { counts: counts.into(), portions, starts };
        queue.launch(&ScanDigits::KERNEL, launch.config(digits, sets), launch)?;
        let rows = portions + 1;
        let starts_stride = digits * rows * radix_sort::DIGITS;
        // A pass reads the starts of its portion in each set, and writes the starts of the next portion.
        let starts_len = (sets as usize - 1) * starts_stride as usize + 2 * radix_sort::DIGITS as usize;
        for (number, pass) in plan.passes.iter().enumerate() {
            for turn in 0..portions {
                let first_tile = turn * portion;
                let row = (pass.digit * rows + turn) as usize * radix_sort::DIGITS as usize;
                let launch = SortPass {
                    keys: from.keys.into(),
                    payloads: from.payloads.into(),
                    keys_out: to.keys,
                    payloads_out: to.payloads,
                    len,
                    high: pass.high.into(),
                    shift: pass.shift,
                    mask: pass.mask,
                    epoch: number as u32 % 2,
                    first_tile,
                    tiles,
                    starts: starts.skip(row).take(starts_len),
                    starts_stride,
                    words,
                    next_tile: taken
                        .skip((number * portions as usize + turn as usize) * sets as usize)
                        .take(sets as usize),
                };
                queue.launch(&K::PASS, launch.config(portion.min(tiles - first_tile), sets), launch)?;
            }
            (from, to) = (to, from);
        }
    }
    Ok(from)
}

/// Sorts pairs in host memory by `bits` of the keys. There are as many payloads as keys, at most 2³² − 1.
pub(crate) fn sort_from_host<K: DeviceKey>(
    runtime: &Runtime,
    keys: &mut [K],
    payloads: &mut [u32],
    bits: Range<u32>,
) -> Result<()> {
    let mut layout = Layout::default();
    let at = [(); 2].map(|()| (layout.array::<K>(keys.len()), layout.array::<u32>(keys.len())));
    let plan = SortPlan::new::<K>(&mut layout, keys.len() as u32, 1, bits, runtime.limits());
    let memory = runtime.allocate(layout.bytes())?;
    let stream = runtime.stream()?;
    let scratch = runtime.scratch(&memory);
    let [pairs, spare] = at.map(|(keys, payloads)| Pairs { keys: scratch.at(keys), payloads: scratch.at(payloads) });
    // SAFETY: the layout reserved every array; the stream runs the copies and the sort in order.
    unsafe {
        runtime.copy_to_device(&stream, pairs.keys, keys)?;
        runtime.copy_to_device(&stream, pairs.payloads, payloads)?;
        let sorted = enqueue(&OnStream { runtime, stream: &stream }, &plan, pairs, spare, scratch)?;
        runtime.copy_to_host(&stream, keys, sorted.keys)?;
        runtime.copy_to_host(&stream, payloads, sorted.payloads)
    }
}

#[cfg(test)]
mod tests;
