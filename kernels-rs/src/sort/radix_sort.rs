//! Stable sort of keys of 64 or 128 bits with a u32 payload each: least significant digit first, one pass over memory
//! for each digit.
//!
//! # Problem
//! n pairs (key, payload) in order of bits `begin..end` of the keys, pairs with equal bits in their old order. n is in
//! the millions, so the time depends on how often the pairs cross the memory bus.
//!
//! # Algorithm
//! ```text
//! count:  all digits of all keys, in one read                                         (CountDigits)
//! scan:   for each digit, where the pairs with that value begin                        (ScanDigits)
//! pass, for each digit of 8 bits from the lowest on:                                   (SortPass)
//!   a block takes the next tile of keys, and counts its digits while it ranks the keys
//!   it publishes the counts, and adds up those of the tiles before until one has published a sum of all before it
//!   it brings keys, then payloads, into the order of the digit in shared memory, and writes the runs to their places
//! ```
//! This is the "onesweep" form: a pass reads and writes each pair once, since the sums over tiles ("decoupled
//! look-back") run inside the pass.
//!
//! 1. *Ranking.* A warp has 32 · items consecutive keys and processes them 32 at a time. From eight ballots a lane gets
//!    the set of lanes with its digit; the lowest of these lanes adds their number to the warp's counter of the digit.
//!    The order is stable by construction: within 32 keys by lane, within a warp by turn, within a block by warp.
//! 2. *Look-back.* A tile's word for a digit is first its count, then the sum over all tiles up to it; a bit shows
//!    which. Value and bits are one word, so no fences are needed. For each digit, one thread reads the words of the
//!    `WINDOW` tiles before at once. A counter assigns tiles to blocks, so a block waits only for blocks that are
//!    already running, in any order in which the device starts them.
//! 3. *No clearing.* Another bit, which changes with every pass, distinguishes the words of one pass from those of the
//!    pass before.
//! 4. *More than 2³⁰ keys.* 30 bits hold a sum, so a pass processes longer inputs in portions, one launch each; the
//!    last tile of a portion writes the starts of the next portion.
//!
//! The last tile is filled with keys of all ones, which come last in its order and are not written.
//!
//! # Cost
//! With keys of s bytes and p digits, n · (s + p · 2 · (s + 4)) bytes: 200 for each pair of 64 bits, 656 for 128. At
//! the 4.2 TB/s that an H200 reads, these are 21 and 6.4 billion pairs per second. A tile adds 1 KiB of counts, written
//! twice and read about once (mostly within the L2 cache), to the 96 KiB that it moves. Of arithmetic a pass needs
//! about 95 instructions for 32 pairs, where the memory takes as long as 190. The cost of scattered writes is not
//! known: a tile's 16 (12) keys of a digit fill 128 (192) bytes, and sectors at both ends of a run are shared with
//! other tiles. Expected: two thirds of that rate, 14 and 4.3 billion pairs per second.
//!
//! # What lost
//! Counting tiles first and scanning their counts ("reduce, then scan") needs no look-back but reads the keys twice in
//! each pass: 32 bytes for each pair instead of 24. Digits of more than 8 bits save passes but halve the runs.
//! Publishing counts before ranking costs one more atomic operation for each key, and 32 in sequence if all keys are
//! equal.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::FULL_MASK;
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, shared, thread, unroll, warp};

/// Number of threads of a block of [`CountDigits`] and [`SortPass`].
pub const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;
/// Number of bits of a digit.
pub const DIGIT_BITS: u32 = 8;
/// Number of values of a digit, and of threads of a block of [`ScanDigits`].
pub const DIGITS: u32 = 1 << DIGIT_BITS;
/// Number of digits of a 64-bit word of a key.
pub const WORD_DIGITS: u32 = u64::BITS / DIGIT_BITS;
/// Largest number of keys of the tiles of one portion.
pub const PORTION_KEYS: u32 = SUM;
/// Byte that fills the words of the tiles before the first pass.
pub const STALE: u8 = 0xFF;

/// The bits of a tile's word for a digit that hold the count, or the sum of counts.
const SUM: u32 = (1 << 30) - 1;
/// The bit that is set if the word holds the sum over this tile and all before.
const TOTAL: u32 = 1 << 30;
/// The place of the bit that holds the lowest bit of the number of the pass that wrote the word.
const EPOCH_SHIFT: u32 = 31;
/// Number of bits of a register that hold a rank in a warp; the bits above hold the digit.
const RANK_BITS: u32 = 16;
/// Number of tiles whose words a look-back reads at once.
const WINDOW: usize = 4;
/// Number of keys that each thread of [`CountDigits`] has in flight.
const COUNT_AHEAD: usize = 4;
/// Number of counters of a block of [`CountDigits`].
const COUNTERS: u32 = 8192;
/// Shared memory of a block of [`CountDigits`] in bytes.
const COUNT_SHARED_BYTES: u32 = 4 * COUNTERS;

/// A type of key; the order is that of the integers.
pub trait SortKey: Copy + 'static {
    /// Number of words of 64 bits of a key.
    const WORDS: u32;
    /// Number of keys of a thread in a pass.
    const ITEMS: u32;
    /// The key that comes after all others.
    const LAST: Self;
    /// The lowest 64 bits of the key, or the next 64 if `high`.
    fn word(self, high: bool) -> u64;
    /// Number of keys of a tile.
    const TILE: u32 = THREADS * Self::ITEMS;
    /// Shared memory of a block in a pass: keys, counters of the warps, starts of the digits, and a few words.
    const SHARED_BYTES: u32 = Self::TILE * size_of::<Self>() as u32 + 4 * (WARPS * DIGITS + DIGITS + SUMS + 4);
}

/// Number of warps that sum digits.
const SUMS: u32 = DIGITS / 32;

impl SortKey for u64 {
    const WORDS: u32 = 1;
    const ITEMS: u32 = 8;
    const LAST: u64 = u64::MAX;

    #[device_inline]
    fn word(self, _: bool) -> u64 {
        self
    }
}

impl SortKey for u128 {
    const WORDS: u32 = 2;
    const ITEMS: u32 = 6;
    const LAST: u128 = u128::MAX;

    #[device_inline]
    fn word(self, high: bool) -> u64 {
        if high { (self >> 64) as u64 } else { self as u64 }
    }
}

/// The place of a digit in a key.
#[derive(Clone, Copy)]
struct Digit {
    high: bool,
    shift: u32,
    mask: u32,
}

impl Digit {
    #[device_inline]
    fn of<K: SortKey>(self, key: K) -> u32 {
        (key.word(self.high) >> (self.shift % 64)) as u32 & self.mask
    }
}

/// Counts the digits of one word of a key.
///
/// # Safety
/// `counters` has [`WORD_DIGITS`] · [`DIGITS`] · `copies` counters, `copy` is below `copies`.
#[device_inline]
unsafe fn count_word(word: u64, shift: u32, mask: u64, counters: SharedPtr<u32>, copies: u32, copy: u32) {
    let field = word >> (shift % 64) & mask;
    unroll::<{ WORD_DIGITS as usize }>(|d| {
        // This condition is the same for all threads.
        if mask >> (DIGIT_BITS * d as u32) != 0 {
            let digit = (field >> (DIGIT_BITS * d as u32)) as u32 % DIGITS;
            // SAFETY: digit < DIGITS.
            unsafe { atomic::shared_add_u32(counters.add((d as u32 * DIGITS + digit) * copies + copy), 1) };
        }
    });
}

/// Counts the occurrences of each value of each digit among the keys of each set. Sets are consecutive in memory.
///
/// The digits are those of `low_mask` in the lowest word of the key shifted right by `low_shift`, then those of the
/// next word.
///
/// # Safety
/// The arrays are as long as the fields say; shifts are below 64. The grid has at least len / 2³¹ blocks for each set.
#[kernel(
    max_threads = 512,
    min_blocks = 2,
    count_digits_u64 for CountDigits<u64> = count_digits::<u64>,
    count_digits_u128 for CountDigits<u128> = count_digits::<u128>,
)]
pub struct CountDigits<K> {
    /// The keys of all sets, `len` for each set.
    pub keys: Ptr<K>,
    /// Number of keys of a set.
    pub len: u32,
    /// The lowest bit of the first digit in the lowest word.
    pub low_shift: u32,
    /// The bits of the lowest word that have digits, shifted: 2^b − 1.
    pub low_mask: u64,
    /// The same in the next word; not used for keys of one word.
    pub high_shift: u32,
    /// The same in the next word; not used for keys of one word.
    pub high_mask: u64,
    /// The counts, which are added to: [`WORD_DIGITS`] · [`DIGITS`] for each word of a key and each set.
    pub counts: PtrMut<u32>,
}

impl<K> CountDigits<K> {
    /// `blocks` blocks for each set.
    pub fn config(&self, blocks: u32, sets: u32) -> LaunchConfig {
        LaunchConfig::linear(blocks as u64, THREADS).along_y(sets as u64).with_shared(COUNT_SHARED_BYTES)
    }
}

/// # Safety
/// As [`CountDigits`].
#[device_inline]
unsafe fn count_digits<K: SortKey>(launch: CountDigits<K>) {
    let CountDigits { keys, len, low_shift, low_mask, high_shift, high_mask, counts } = launch;
    let (thread, set) = (thread::thread_idx_x(), thread::block_idx_y() as usize);
    let bins = K::WORDS * WORD_DIGITS * DIGITS;
    // Lanes that use one counter wait for each other, so each digit has several counters for adjacent lanes.
    let copies = COUNTERS / bins;
    let counters = shared::dynamic::<u32>();
    let share = len.div_ceil(thread::grid_dim_x().max(1));
    let first = thread::block_idx_x().saturating_mul(share).min(len);
    let share = share.min(len - first);
    let keys = keys.wrapping_add(set * len as usize + first as usize);
    // SAFETY: places below the share; barriers stand between clearing, counting and what follows.
    unsafe {
        let mut at = thread;
        while at < COUNTERS {
            counters.add(at).store(0);
            at += THREADS;
        }
        thread::sync_threads();
        let copy = thread % copies;
        let mut at = thread;
        while at < share {
            let mut ahead = [K::LAST; COUNT_AHEAD];
            unroll::<COUNT_AHEAD>(|i| {
                let place = (at + i as u32 * THREADS).min(share - 1);
                ahead[i] = global::load_nc(keys.wrapping_add(place as usize));
            });
            unroll::<COUNT_AHEAD>(|i| {
                if at + (i as u32) * THREADS < share {
                    count_word(ahead[i].word(false), low_shift, low_mask, counters, copies, copy);
                    if K::WORDS == 2 {
                        let counters = counters.add(WORD_DIGITS * DIGITS * copies);
                        count_word(ahead[i].word(true), high_shift, high_mask, counters, copies, copy);
                    }
                }
            });
            at += COUNT_AHEAD as u32 * THREADS;
        }
        thread::sync_threads();
        let counts = counts.wrapping_add(set * bins as usize);
        let mut bin = thread;
        while bin < bins {
            let (mut sum, mut copy) = (0, 0);
            while copy < copies {
                sum += counters.add(bin * copies + copy).load();
                copy += 1;
            }
            if sum > 0 {
                atomic::add_u32(counts.wrapping_add(bin as usize), sum);
            }
            bin += THREADS;
        }
    }
}

/// The sum over the warps before this one, of those that look after digits. The block has met since `sums` was written.
///
/// # Safety
/// `sums` has the sum of each of these warps, which this is one of.
#[device_inline]
unsafe fn sum_before(sums: SharedPtr<u32>, warp: u32) -> u32 {
    let mut before = 0;
    unroll::<{ SUMS as usize }>(|other| {
        // SAFETY: other < SUMS.
        let sum = unsafe { sums.add(other as u32).load() };
        before += if (other as u32) < warp { sum } else { 0 };
    });
    before
}

/// Finds where the pairs with each value of each digit begin: the exclusive sums of the counts.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(max_threads = 256, scan_digits = scan)]
pub struct ScanDigits {
    /// [`DIGITS`] counts for each digit of each set.
    pub counts: Ptr<u32>,
    /// Portions of a set.
    pub portions: u32,
    /// The starts: `portions` + 1 rows of [`DIGITS`] for each digit of each set. The launch writes the first row, that
    /// of the first portion.
    pub starts: PtrMut<u32>,
}

impl ScanDigits {
    /// A block for each of the `digits` digits of each set.
    pub fn config(&self, digits: u32, sets: u32) -> LaunchConfig {
        LaunchConfig::linear(digits as u64, DIGITS).along_y(sets as u64)
    }
}

/// # Safety
/// As [`ScanDigits`].
#[device_inline]
unsafe fn scan(ScanDigits { counts, portions, starts }: ScanDigits) {
    let sums = cuda_std::shared_array!(u32, SUMS as usize);
    let (thread, lane, warp) = (thread::thread_idx_x(), warp::lane_id(), warp::warp_id());
    let digit = (thread::block_idx_y() * thread::grid_dim_x() + thread::block_idx_x()) as usize;
    // SAFETY: the digit and its value exist; one lane writes a warp's sum, and a barrier stands before the reads.
    unsafe {
        let count = global::load_nc(counts.wrapping_add(digit * DIGITS as usize + thread as usize));
        let up_to = warp::inclusive_sum(count);
        if lane == 31 {
            sums.add(warp).store(up_to);
        }
        thread::sync_threads();
        let start = sum_before(sums, warp) + up_to - count;
        let row = digit * (portions as usize + 1);
        global::store(starts.wrapping_add(row * DIGITS as usize + thread as usize), start);
    }
}

/// The lanes that have the same digit as this one. All 32 lanes arrive.
#[device_inline]
fn peers(digit: u32) -> u32 {
    let mut peers = FULL_MASK;
    unroll::<{ DIGIT_BITS as usize }>(|bit| {
        let set = digit >> bit & 1 == 1;
        let votes = warp::ballot(FULL_MASK, set);
        peers &= if set { votes } else { !votes };
    });
    peers
}

/// How many keys of the tiles `first` .. `tile` have the digit of this thread, `words` being its column. Waits for
/// their blocks.
///
/// # Safety
/// `words` has a word of this digit for each tile, [`DIGITS`] apart; tile `first`, below `tile`, publishes a sum.
#[device_inline]
unsafe fn look_back(words: *const u32, first: u32, tile: u32, epoch: u32) -> u32 {
    let (mut sum, mut next, mut done) = (0u32, tile - 1, false);
    while !done {
        let mut window = [0; WINDOW];
        unroll::<WINDOW>(|i| {
            // Past the first tile the window repeats it: its word is a sum or not yet written, and either ends the
            // walk.
            let of = next.max(first + i as u32) - i as u32;
            // SAFETY: first <= of < tile.
            window[i] = unsafe { global::load_volatile(words.wrapping_add(of as usize * DIGITS as usize)) };
        });
        let mut reached = true;
        unroll::<WINDOW>(|i| {
            let word = window[i];
            reached &= !done & (word >> EPOCH_SHIFT == epoch);
            sum += if reached { word & SUM } else { 0 };
            done |= reached & (word & TOTAL != 0);
            // Not below the first tile, which ends the walk.
            next -= (reached & !done) as u32;
        });
    }
    sum
}

/// Sorts one portion of each set by one digit: moves the pairs of its tiles to their places in `keys_out` and
/// `payloads_out`.
///
/// A set has `len` ≥ 1 pairs in `tiles` = ceil(len / TILE) tiles, and a portion consecutive tiles from `first_tile` on.
///
/// # Safety
/// The arrays are as long as the fields say. Inputs and outputs do not overlap. The starts are those of the keys.
/// Earlier launches sorted the earlier portions of the set by this digit. A portion has at most [`PORTION_KEYS`] keys.
#[kernel(
    max_threads = 512,
    min_blocks = 2,
    sort_pass_u64 for SortPass<u64> = sort_pass::<u64, 8>,
    sort_pass_u128 for SortPass<u128> = sort_pass::<u128, 6>,
)]
pub struct SortPass<K> {
    /// The keys of all sets, `len` for each set.
    pub keys: Ptr<K>,
    /// The payload of each key.
    pub payloads: Ptr<u32>,
    /// The keys after the pass, laid out as `keys`.
    pub keys_out: PtrMut<K>,
    /// The payloads after the pass, laid out as `payloads`.
    pub payloads_out: PtrMut<u32>,
    /// Pairs of a set.
    pub len: u32,
    /// 1 if the digit is in the high word of the key, else 0.
    pub high: u32,
    /// The lowest bit of the digit in the word.
    pub shift: u32,
    /// The bits of the digit, shifted: 2^b − 1.
    pub mask: u32,
    /// 0 in even passes over the set, 1 in odd ones, counted from 0.
    pub epoch: u32,
    /// The first tile of the portion.
    pub first_tile: u32,
    /// Tiles of a set.
    pub tiles: u32,
    /// The places in the output at which the portion's pairs of each value of the digit begin: [`DIGITS`] places a set.
    /// The launch writes those of the next portion behind them.
    pub starts: PtrMut<u32>,
    /// Words of `starts` from one set to the next.
    pub starts_stride: u32,
    /// [`DIGITS`] words for each tile of each set. Every byte is [`STALE`] before the first pass; each pass continues
    /// with what the pass before left.
    pub words: PtrMut<u32>,
    /// Counts the tiles that blocks of each set took: a zero a set before the launch.
    pub next_tile: PtrMut<u32>,
}

impl<K: SortKey> SortPass<K> {
    /// A block for each of the `tiles` tiles of the portion of each set.
    pub fn config(&self, tiles: u32, sets: u32) -> LaunchConfig {
        LaunchConfig::linear(tiles as u64, THREADS).along_y(sets as u64).with_shared(K::SHARED_BYTES)
    }
}

/// `ITEMS` is the key's.
///
/// # Safety
/// As [`SortPass`].
#[device_inline]
unsafe fn sort_pass<K: SortKey, const ITEMS: usize>(launch: SortPass<K>) {
    let SortPass { keys, payloads, keys_out, payloads_out, len, high, shift, mask, epoch, .. } = launch;
    let SortPass { first_tile, tiles, starts, starts_stride, words, next_tile, .. } = launch;
    const { assert!(ITEMS == K::ITEMS as usize, "the items of a thread are the key's") };
    let (thread, lane, warp) = (thread::thread_idx_x(), warp::lane_id(), warp::warp_id());
    let set = thread::block_idx_y() as usize;
    let digit = Digit { high: high != 0, shift, mask };
    let exchange = shared::dynamic::<K>();
    // SAFETY: the launch gives room for all parts. Places in the tile are below TILE, digits below DIGITS; the grid has
    // a block for each tile, so tiles of the counter exist. Barriers stand between phases that share memory, and are
    // named below where two meet. Destinations are distinct: they are the ranks of the keys.
    unsafe {
        let counters = exchange.add(K::TILE).cast::<u32>();
        let bases = counters.add(WARPS * DIGITS);
        let sums = bases.add(DIGITS);
        let taken = sums.add(SUMS);
        let mine = counters.add(warp * DIGITS);

        if thread == 0 {
            taken.store(atomic::add_u32(next_tile.wrapping_add(set), 1));
        }
        let mut at = thread;
        while at < WARPS * DIGITS {
            counters.add(at).store(0);
            at += THREADS;
        }
        thread::sync_threads();
        let tile = first_tile + taken.load();
        let start = tile * K::TILE;
        let count = (len - start).min(K::TILE);
        let from = set * len as usize + start as usize;

        // Keys of a warp lie in a row, a turn takes 32.
        let first = warp * 32 * ITEMS as u32 + lane;
        let (full, first_key) = (count == K::TILE, keys.wrapping_add(from + first as usize));
        let mut own = [K::LAST; ITEMS];
        if full {
            unroll::<ITEMS>(|i| own[i] = global::load_nc(first_key.wrapping_add(32 * i)));
        } else {
            unroll::<ITEMS>(|i| {
                let place = first + 32 * i as u32;
                let key = global::load_nc(keys.wrapping_add(from + place.min(count - 1) as usize));
                own[i] = if place < count { key } else { K::LAST };
            });
        }
        // The digit, and below it the key's rank among those of the warp that have it: one register for both.
        let mut ranks = [0u32; ITEMS];
        unroll::<ITEMS>(|i| {
            let value = digit.of(own[i]);
            let peers = peers(value);
            let below = peers & ((1 << lane) - 1);
            let mut before = 0;
            if below == 0 {
                before = atomic::shared_add_u32(mine.add(value), peers.count_ones());
            }
            // The lowest lane of the mask, which holds this one.
            let leader = 31 - (peers & peers.wrapping_neg()).leading_zeros();
            let rank = warp::shuffle_idx(FULL_MASK, before, leader) + below.count_ones();
            ranks[i] = value << RANK_BITS | rank;
        });
        thread::sync_threads();

        // A thread a digit: counts of the tile, and where each warp's keys of the digit begin in its order.
        let column = words.wrapping_add((set * tiles as usize) * DIGITS as usize + thread as usize);
        let published = column.wrapping_add(tile as usize * DIGITS as usize);
        let looks = thread < DIGITS;
        let (mut total, mut up_to) = (0, 0);
        if looks {
            let mut other = 0;
            while other < WARPS {
                total += counters.add(other * DIGITS + thread).load();
                other += 1;
            }
            let kind = if tile == first_tile { TOTAL } else { 0 };
            global::store_volatile(published, epoch << EPOCH_SHIFT | kind | total);
            up_to = warp::inclusive_sum(total);
            if lane == 31 {
                sums.add(warp).store(up_to);
            }
        }
        thread::sync_threads();
        let mut begins = 0;
        if looks {
            begins = sum_before(sums, warp) + up_to - total;
            let (mut place, mut other) = (begins, 0);
            while other < WARPS {
                let counter = counters.add(other * DIGITS + thread);
                let count = counter.load();
                counter.store(place);
                place += count;
                other += 1;
            }
        }
        thread::sync_threads();

        // From here on, places in the tile's order.
        unroll::<ITEMS>(|i| {
            ranks[i] = ranks[i] % (1 << RANK_BITS) + mine.add(ranks[i] >> RANK_BITS).load();
            exchange.add(ranks[i]).store(own[i]);
        });
        let first_payload = payloads.wrapping_add(from + first as usize);
        let mut own_payloads = [0u32; ITEMS];
        if full {
            unroll::<ITEMS>(|i| own_payloads[i] = global::load_nc(first_payload.wrapping_add(32 * i)));
        } else {
            unroll::<ITEMS>(|i| {
                let place = (first + 32 * i as u32).min(count - 1);
                own_payloads[i] = global::load_nc(payloads.wrapping_add(from + place as usize));
            });
        }
        if looks {
            let mut before = 0;
            if tile != first_tile {
                before = look_back(column, first_tile, tile, epoch);
                global::store_volatile(published, epoch << EPOCH_SHIFT | TOTAL | (before + total));
            }
            let row = starts.wrapping_add(set * starts_stride as usize + thread as usize);
            let start = global::load(row);
            bases.add(thread).store((start + before).wrapping_sub(begins));
            if tile + 1 == first_tile + thread::grid_dim_x() {
                // Of full tiles, if another portion follows.
                global::store(row.wrapping_add(DIGITS as usize), start.wrapping_add(before + total));
            }
        }
        thread::sync_threads();

        // In the tile's order a warp writes runs of neighbours.
        let out = set * len as usize;
        let mut targets = [0u32; ITEMS];
        unroll::<ITEMS>(|i| {
            let place = thread + THREADS * i as u32;
            let key = exchange.add(place).load();
            targets[i] = bases.add(digit.of(key)).load().wrapping_add(place);
            if place < count {
                global::store(keys_out.wrapping_add(out + targets[i] as usize), key);
            }
        });
        // The keys were read: their room is the payloads'.
        thread::sync_threads();
        let exchange = exchange.cast::<u32>();
        unroll::<ITEMS>(|i| exchange.add(ranks[i]).store(own_payloads[i]));
        thread::sync_threads();
        unroll::<ITEMS>(|i| {
            let place = thread + THREADS * i as u32;
            if place < count {
                global::store(payloads_out.wrapping_add(out + targets[i] as usize), exchange.add(place).load());
            }
        });
    }
}
