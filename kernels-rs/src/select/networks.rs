//! Odd-size merging and sorting networks over lane-stride register arrays (paper section 4.1, algorithms 1 and 2).
//!
//! # Problem
//! Sort, or merge two sorted parts of, 32·R entries held by one warp: entry e = 32·r + lane sits in register r of
//! `lane`. Everything stays in registers: the comparators, and so the register numbers, must be known at compile time.
//!
//! # Algorithm
//! A merge of sorted lists L (length l) and R (length r), of *any* lengths:
//!
//! ```text
//! merge(L, R):                                continue(x, side):              // x is bitonic, one side padded
//!   for i in 0..min(l, r):                      if len(x) > 1:
//!     compare_exchange(L[l-1-i], R[i])            h = 2^(ceil(log2 len) - 1)
//!   continue(L, left)                             for i in 0..len-h: compare_exchange(x[i], x[i+h])
//!   continue(R, right)                            split after len-h on the left side, after h on the right
//!                                                 continue(first part, left); continue(second part, right)
//! ```
//!
//! It is Batcher's bitonic merge with dummy elements that never move, so they need no storage; padding to a power of
//! two would cost registers. Sorting splits in halves, sorts them and merges: ½·⌈log₂ l⌉·(⌈log₂ l⌉ + 1) parallel steps
//! for length l, and ⌈log₂ max(l, r)⌉
//! + 1 steps for one merge ([`sort_steps`], [`merge_steps`]).
//!
//! # How it maps to a warp
//! 1. Lengths here are 32·R, so strides of 32 and more pair registers of one lane (no communication), strides below 32
//!    pair lanes through `shuffle_xor`.
//! 2. The first merge step reverses one list. Against register b, register a reversed is lane 31 − l:
//!    `shuffle_xor(.., 31)`.
//! 3. The register-level comparator list is computed at compile time ([`sort_program`], [`merge_program`]) and executed
//!    by an unrolled loop with literal indices; one entry of it is a [`Step`] on whole registers.
//!
//! # Cost and rejected variants
//! A lane-level compare-exchange of an entry is 2 SHFL, 2 ISETP, 2 SEL. Power-of-two networks (bitonic) for every
//! length needed up to 60 % more registers for R = 3, 5, 9; separate f32 keys with u32 payloads cost the same
//! instructions, but need a second comparison to order ties.

use cuda_std::device_inline;
use cuda_std::unroll;
use cuda_std::warp::{FULL_MASK, Shuffle, shuffle_xor};

/// The longest register array that a network sorts.
pub const MAX_REGISTERS: usize = 32;
/// Capacity for the longest comparator program (R = 32 needs 432 steps), in whole blocks of 64.
pub const MAX_STEPS: usize = 448;

/// One step of a program, on whole registers (32 entries each).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// No operation (an unused entry of the array).
    None,
    /// The smaller of each pair to register `.0`, the larger to `.1`.
    Exchange(usize, usize),
    /// As [`Step::Exchange`], with the lanes of `.1` reversed against `.0`.
    ExchangeReversed(usize, usize),
    /// Bitonic merge inside one register (strides 16, 8, 4, 2, 1).
    MergeLanes(usize),
    /// Full sort of the 32 entries of one register.
    SortLanes(usize),
}

/// A comparator program over up to [`MAX_REGISTERS`] registers.
#[derive(Clone, Copy)]
pub struct Program {
    /// The steps in order; entries from `len` on are [`Step::None`].
    pub steps: [Step; MAX_STEPS],
    /// Number of steps in use.
    pub len: usize,
}

impl Program {
    const fn new() -> Self {
        Program { steps: [Step::None; MAX_STEPS], len: 0 }
    }

    const fn push(&mut self, step: Step) {
        self.steps[self.len] = step;
        self.len += 1;
    }

    /// `continue` of the module documentation, on registers `first .. first + len`.
    const fn merge_continue(&mut self, first: usize, len: usize, left: bool) {
        if len <= 1 {
            if len == 1 {
                self.push(Step::MergeLanes(first));
            }
            return;
        }
        let half = len.next_power_of_two() / 2;
        let mut i = 0;
        while i < len - half {
            self.push(Step::Exchange(first + i, first + i + half));
            i += 1;
        }
        let split = if left { len - half } else { half };
        self.merge_continue(first, split, true);
        self.merge_continue(first + split, len - split, false);
    }

    /// `merge` of the module documentation: registers `first .. first + left` with the `right` registers after them.
    const fn merge(&mut self, first: usize, left: usize, right: usize) {
        let mut i = 0;
        while i < left && i < right {
            self.push(Step::ExchangeReversed(first + left - 1 - i, first + left + i));
            i += 1;
        }
        self.merge_continue(first, left, true);
        self.merge_continue(first + left, right, false);
    }

    const fn sort(&mut self, first: usize, len: usize) {
        if len == 1 {
            self.push(Step::SortLanes(first));
            return;
        }
        let half = len / 2;
        self.sort(first, half);
        self.sort(first + half, len - half);
        self.merge(first, half, len - half);
    }
}

/// The program that sorts `registers` registers ascending (algorithm 2).
pub const fn sort_program(registers: usize) -> Program {
    assert!(registers >= 1 && registers <= MAX_REGISTERS);
    let mut program = Program::new();
    program.sort(0, registers);
    program
}

/// The program that merges `left` sorted registers with the `right` sorted registers after them (algorithm 1).
pub const fn merge_program(left: usize, right: usize) -> Program {
    assert!(left + right >= 1 && left + right <= MAX_REGISTERS);
    let mut program = Program::new();
    program.merge(0, left, right);
    program
}

const fn ceil_log2(x: usize) -> usize {
    x.next_power_of_two().trailing_zeros() as usize
}

/// Parallel steps of a merge of lists of `left` and `right` entries: ⌈log₂ max⌉ + 1 (paper 4.1).
pub const fn merge_steps(left: usize, right: usize) -> usize {
    ceil_log2(if left > right { left } else { right }) + 1
}

/// Parallel steps of a sort of `len` entries: ½·⌈log₂ len⌉·(⌈log₂ len⌉ + 1) (paper 4.1).
pub const fn sort_steps(len: usize) -> usize {
    let log = ceil_log2(len);
    log * (log + 1) / 2
}

/// Compare-exchange with lane `lane ^ mask`; this lane keeps the smaller entry if `keep_smaller`. All 32 lanes.
#[device_inline]
fn exchange_lanes<T: Shuffle + Ord>(entry: &mut T, mask: u32, keep_smaller: bool) {
    // Always stores a selected value: a conditional store may put the array in local memory.
    let own = *entry;
    let other = shuffle_xor(FULL_MASK, own, mask);
    *entry = if (other < own) == keep_smaller { other } else { own };
}

#[device_inline]
fn merge_lanes<T: Shuffle + Ord>(entry: &mut T, lane: u32) {
    unroll::<5>(|i| {
        let mask = 16u32 >> i;
        exchange_lanes(entry, mask, lane & mask == 0);
    });
}

#[device_inline]
fn sort_lanes<T: Shuffle + Ord>(entry: &mut T, lane: u32) {
    unroll::<5>(|b| {
        let size = 2u32 << b;
        exchange_lanes(entry, size - 1, lane & (size >> 1) == 0);
        unroll::<4>(|i| {
            if i < b {
                let mask = (size >> 2) >> i;
                exchange_lanes(entry, mask, lane & mask == 0);
            }
        });
    });
}

/// Executes one step. `lane` is the caller's lane; all 32 lanes arrive together.
#[device_inline]
fn execute<T: Shuffle + Ord, const REGISTERS: usize>(x: &mut [T; REGISTERS], step: Step, lane: u32) {
    match step {
        Step::None => {}
        Step::Exchange(a, b) => {
            let (own_a, own_b) = (x[a], x[b]);
            let swap = own_b < own_a;
            x[a] = if swap { own_b } else { own_a };
            x[b] = if swap { own_a } else { own_b };
        }
        Step::ExchangeReversed(a, b) => {
            let (own_a, own_b) = (x[a], x[b]);
            let other_a = shuffle_xor(FULL_MASK, own_a, 31);
            let other_b = shuffle_xor(FULL_MASK, own_b, 31);
            x[a] = if other_b < own_a { other_b } else { own_a };
            x[b] = if other_a > own_b { other_a } else { own_b };
        }
        Step::MergeLanes(a) => merge_lanes(&mut x[a], lane),
        Step::SortLanes(a) => sort_lanes(&mut x[a], lane),
    }
}

/// A program known at compile time.
trait Constant {
    const PROGRAM: Program;
}

struct Sort<const REGISTERS: usize>;
impl<const REGISTERS: usize> Constant for Sort<REGISTERS> {
    const PROGRAM: Program = sort_program(REGISTERS);
}

struct Merge<const LEFT: usize, const RIGHT: usize>;
impl<const LEFT: usize, const RIGHT: usize> Constant for Merge<LEFT, RIGHT> {
    const PROGRAM: Program = merge_program(LEFT, RIGHT);
}

/// Executes all steps of a program. All 32 lanes of the warp arrive together.
#[device_inline]
fn run<P: Constant, T: Shuffle + Ord, const REGISTERS: usize>(x: &mut [T; REGISTERS], lane: u32) {
    // Literal indices in consecutive blocks of 64, because nested closures of this size are not inlined.
    macro_rules! block {
        ($($first:literal)*) => {$(
            if const { P::PROGRAM.len > $first } {
                unroll::<64>(|i| execute(x, const { &P::PROGRAM }.steps[$first + i], lane));
            }
        )*};
    }
    block!(0 64 128 192 256 320 384);
}

/// Sorts 32·`REGISTERS` entries (or other words) ascending. All 32 lanes of the warp arrive together (shuffles with the
/// full mask).
#[device_inline]
pub fn warp_sort<T: Shuffle + Ord, const REGISTERS: usize>(x: &mut [T; REGISTERS], lane: u32) {
    run::<Sort<REGISTERS>, T, REGISTERS>(x, lane);
}

/// Merges two sorted halves: registers `0..LEFT` and `LEFT..LEFT+RIGHT` of `x`, `REGISTERS = LEFT + RIGHT`.
/// All 32 lanes of the warp arrive together.
#[device_inline]
pub fn warp_merge<const LEFT: usize, const RIGHT: usize, const REGISTERS: usize>(x: &mut [u64; REGISTERS], lane: u32) {
    const { assert!(LEFT + RIGHT == REGISTERS) };
    run::<Merge<LEFT, RIGHT>, u64, REGISTERS>(x, lane);
}

/// Merges sorted `keep` with sorted `other` and leaves the smallest 32·`KEEP` entries of both, sorted, in `keep`.
///
/// Algorithm 1 without the continuation of the right half, whose results are not used. `KEEP` is a power of two; it may
/// be less than `OTHER`. All 32 lanes of the warp arrive together.
#[device_inline]
pub fn warp_merge_keep<const KEEP: usize, const OTHER: usize>(keep: &mut [u64; KEEP], other: &[u64; OTHER], lane: u32) {
    const { assert!(KEEP.is_power_of_two() && KEEP <= MAX_REGISTERS) };
    unroll::<OTHER>(|i| {
        if i < KEEP {
            let candidate = shuffle_xor(FULL_MASK, other[i], 31);
            let own = keep[KEEP - 1 - i];
            keep[KEEP - 1 - i] = if candidate < own { candidate } else { own };
        }
    });
    unroll::<5>(|b| {
        let stride = (KEEP >> 1) >> b;
        if stride > 0 {
            unroll::<KEEP>(|r| {
                if r & stride == 0 {
                    execute(keep, Step::Exchange(r, r | stride), lane);
                }
            });
        }
    });
    unroll::<KEEP>(|r| merge_lanes(&mut keep[r], lane));
}
