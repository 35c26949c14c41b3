//! The sorting networks of `warpann_kernels::select::networks`: their comparator programs on plain arrays, with the
//! zero-one principle, and the kernels that run them, on the emulator.

use cuda_std::emulator::{self, Buffer, Stats, Violation};
use cuda_std::launch::LaunchConfig;
use cuda_std::{Ptr, PtrMut, global, kernel, thread, unroll, warp};
use proptest::prelude::*;
use warpann_kernels::select::entry::EMPTY;
use warpann_kernels::select::networks::{
    MAX_REGISTERS, Program, Step, merge_program, merge_steps, sort_program, sort_steps, warp_merge, warp_merge_keep,
    warp_sort,
};
use warpann_tests::data::Random;

// Comparator programs.

/// Compare-exchanges (i, j): the smaller entry to i, the larger to j. In an order that respects dependencies.
fn comparators(program: &Program) -> Vec<(usize, usize)> {
    let mut list = Vec::new();
    let strides = |list: &mut Vec<(usize, usize)>, first: usize, from: usize| {
        let mut stride = from;
        while stride > 0 {
            list.extend((0..32).filter(|lane| lane & stride == 0).map(|lane| (first + lane, first + lane + stride)));
            stride /= 2;
        }
    };
    for step in &program.steps[..program.len] {
        match *step {
            Step::None => panic!("an empty step inside a program"),
            Step::Exchange(a, b) => list.extend((0..32).map(|lane| (32 * a + lane, 32 * b + lane))),
            Step::ExchangeReversed(a, b) => list.extend((0..32).map(|lane| (32 * a + lane, 32 * b + 31 - lane))),
            Step::MergeLanes(a) => strides(&mut list, 32 * a, 16),
            Step::SortLanes(a) => {
                for size in [2, 4, 8, 16, 32] {
                    let half = size / 2;
                    let reversed = (0..32).filter(|lane| lane & half == 0).map(|lane| (lane, lane ^ (size - 1)));
                    list.extend(reversed.map(|(i, j)| (32 * a + i, 32 * a + j)));
                    strides(&mut list, 32 * a, half / 2);
                }
            }
        }
    }
    list
}

/// Parallel steps: the longest chain of comparators that wait for each other.
fn depth(list: &[(usize, usize)], len: usize) -> usize {
    let mut ready = vec![0; len];
    for &(i, j) in list {
        let done = ready[i].max(ready[j]) + 1;
        (ready[i], ready[j]) = (done, done);
    }
    ready.into_iter().max().unwrap_or(0)
}

fn apply(list: &[(usize, usize)], x: &mut [u64]) {
    for &(i, j) in list {
        (x[i], x[j]) = (x[i].min(x[j]), x[i].max(x[j]));
    }
}

/// 512 inputs of zeros and ones at once, one a bit: there the smaller is "and", the larger "or".
type Bits = [u64; 8];

fn apply_to_bits(list: &[(usize, usize)], x: &mut [Bits]) {
    for &(i, j) in list {
        let (a, b) = (x[i], x[j]);
        for word in 0..8 {
            (x[i][word], x[j][word]) = (a[word] & b[word], a[word] | b[word]);
        }
    }
}

fn bits_are_sorted(x: &[Bits]) -> bool {
    x.windows(2).all(|pair| (0..8).all(|word| pair[0][word] & !pair[1][word] == 0))
}

/// Inputs of zeros and ones, given by a number each; `one(number, place)` says where ones are.
fn assert_sorts_bits(
    name: &str,
    list: &[(usize, usize)],
    len: usize,
    count: usize,
    one: impl Fn(usize, usize) -> bool,
) {
    let mut x = vec![[0u64; 8]; len];
    for first in (0..count).step_by(512) {
        for (place, bits) in x.iter_mut().enumerate() {
            *bits = [0; 8];
            for number in first..(first + 512).min(count) {
                bits[(number - first) / 64] |= u64::from(one(number, place)) << (number % 64);
            }
        }
        apply_to_bits(list, &mut x);
        assert!(bits_are_sorted(&x), "{name}: an input among {first}.. is not sorted");
    }
}

fn every_merge() -> impl Iterator<Item = (usize, usize)> {
    (1..=MAX_REGISTERS).flat_map(|left| (1..=MAX_REGISTERS - left).map(move |right| (left, right)))
}

#[test]
fn comparators_point_forward_and_stay_inside() {
    let check = |program: &Program, len: usize| {
        assert!(comparators(program).iter().all(|&(i, j)| i < j && j < len));
        assert!(program.steps[program.len..].iter().all(|step| *step == Step::None));
    };
    (1..=MAX_REGISTERS).for_each(|registers| check(&sort_program(registers), 32 * registers));
    every_merge().for_each(|(left, right)| check(&merge_program(left, right), 32 * (left + right)));
}

/// A network that merges every pair of sorted lists of zeros and ones merges every pair of sorted lists; there are only
/// (l + 1)(r + 1) of the former. All merges, all inputs at small sizes; at larger ones every split of one list against
/// splits of the other next to register boundaries and in between.
#[test]
fn every_merge_program_passes_the_zero_one_principle() {
    for (left, right) in every_merge() {
        let (l, r) = (32 * left, 32 * right);
        let list = comparators(&merge_program(left, right));
        let splits: Vec<(usize, usize)> = if left + right <= 8 {
            (0..=l).flat_map(|zeros| (0..=r).map(move |others| (zeros, others))).collect()
        } else {
            let near = |split: usize| split % 32 <= 1 || split % 32 == 31 || split % 13 == 5;
            let mut splits: Vec<_> = (0..=l).map(|zeros| (zeros, zeros * 7919 % (r + 1))).collect();
            splits.extend((0..=r).map(|others| (others * 7919 % (l + 1), others)));
            splits.extend((0..=l).filter(|&z| near(z)).flat_map(|z| [(z, 0), (z, 1), (z, r / 2), (z, r - 1), (z, r)]));
            splits.extend((0..=r).filter(|&z| near(z)).flat_map(|z| [(0, z), (1, z), (l / 2, z), (l - 1, z), (l, z)]));
            splits
        };
        assert_sorts_bits(&format!("merge({left}, {right})"), &list, l + r, splits.len(), |number, place| {
            let (zeros, others) = splits[number];
            if place < l { place >= zeros } else { place - l >= others }
        });
    }
}

/// One register: every input of zeros and ones on 16 lanes, and every pair of sorted halves on 32, prove the 32-lane
/// sort.
#[test]
fn sorting_one_register_passes_the_zero_one_principle() {
    let list = comparators(&sort_program(1));
    // The first ten of the fifteen steps sort the halves; there are 16 comparators in a step.
    let half: Vec<_> = list[..160].iter().copied().filter(|&(i, _)| i < 16).collect();
    assert!(half.iter().all(|&(_, j)| j < 16) && half.len() == 80);
    assert_sorts_bits("16 lanes", &half, 16, 1 << 16, |number, place| number >> place & 1 == 1);
    assert_sorts_bits("32 lanes", &list[160..], 32, 17 * 17, |number, place| {
        let (zeros, others) = (number / 17, number % 17);
        if place < 16 { place >= zeros } else { place - 16 >= others }
    });
}

/// Inputs of every number of ones, placed at random.
#[test]
fn every_sort_program_sorts_random_zeros_and_ones() {
    for registers in 1..=MAX_REGISTERS {
        let len = 32 * registers;
        let list = comparators(&sort_program(registers));
        let count = 4 * (len + 1);
        let mut random = Random::new(registers as u64);
        let inputs: Vec<Vec<bool>> = (0..count)
            .map(|number| {
                let ones = number % (len + 1);
                (0..len).map(|_| random.below(len) < ones).collect()
            })
            .collect();
        assert_sorts_bits(&format!("sort({registers})"), &list, len, count, |number, place| inputs[number][place]);
    }
}

/// The paper's counts (section 4.1), lanes included: ⌈log₂ max(l, r)⌉ + 1 for a merge, ½(⌈log₂ l⌉² + ⌈log₂ l⌉) for a
/// sort.
#[test]
fn depths_are_the_papers() {
    let ceil_log2 = |x: usize| (0..).find(|&log| 1usize << log >= x).unwrap();
    for (left, right) in every_merge() {
        let (l, r) = (32 * left, 32 * right);
        let formula = ceil_log2(l.max(r)) + 1;
        assert_eq!(merge_steps(l, r), formula);
        assert_eq!(depth(&comparators(&merge_program(left, right)), l + r), formula, "merge({left}, {right})");
    }
    for registers in 1..=MAX_REGISTERS {
        let len = 32 * registers;
        let log = ceil_log2(len);
        let formula = (log * log + log) / 2;
        assert_eq!(sort_steps(len), formula);
        let depth = depth(&comparators(&sort_program(registers)), len);
        assert!(depth <= formula, "sort({registers}): {depth} steps, the formula says {formula}");
        if registers.is_power_of_two() {
            assert_eq!(depth, formula, "sort({registers})");
        }
    }
}

// Kernels.

/// Register r of this lane in block-private data of 32 · `REGISTERS` entries.
fn entry_place(registers: usize, r: usize) -> usize {
    thread::block_idx_x() as usize * 32 * registers + 32 * r + warp::lane_id() as usize
}

/// # Safety
/// `data` has a place of 32 · `REGISTERS` entries for each block.
unsafe fn load<const REGISTERS: usize>(data: *const u64) -> [u64; REGISTERS] {
    let mut x = [0; REGISTERS];
    // SAFETY: as the caller promises.
    unroll::<REGISTERS>(|r| x[r] = unsafe { global::load(data.wrapping_add(entry_place(REGISTERS, r))) });
    x
}

/// # Safety
/// As [`load`].
unsafe fn store<const REGISTERS: usize>(data: *mut u64, x: &[u64; REGISTERS]) {
    // SAFETY: as the caller promises.
    unroll::<REGISTERS>(|r| unsafe { global::store(data.wrapping_add(entry_place(REGISTERS, r)), x[r]) });
}

macro_rules! sorts {
    ($($registers:literal)*) => {
        vec![$({
            /// # Safety
            /// As `load`.
            #[kernel(max_threads = 32)]
            unsafe fn sort(data: PtrMut<u64>) {
                // SAFETY: the same contract.
                unsafe {
                    let mut x = load::<$registers>(*data);
                    warp_sort(&mut x, warp::lane_id());
                    store(*data, &x);
                }
            }
            ($registers, |config, data| {
                // SAFETY: the caller of the launch has the kernel's contract.
                unsafe { emulator::launch(&Sort::KERNEL, config, Sort { data }) }
            })
        }),*]
    };
}

macro_rules! merges {
    ($(($left:literal, $right:literal))*) => {
        vec![$({
            /// # Safety
            /// As `load`.
            #[kernel(max_threads = 32)]
            unsafe fn merge(data: PtrMut<u64>) {
                // SAFETY: the same contract.
                unsafe {
                    let mut x = load::<{ $left + $right }>(*data);
                    warp_merge::<$left, $right, { $left + $right }>(&mut x, warp::lane_id());
                    store(*data, &x);
                }
            }
            ($left, $right, |config, data| {
                // SAFETY: the caller of the launch has the kernel's contract.
                unsafe { emulator::launch(&Merge::KERNEL, config, Merge { data }) }
            })
        }),*]
    };
}

macro_rules! keeps {
    ($($keep:literal: $($other:literal)*;)*) => {
        vec![$($({
            /// # Safety
            /// `keep` and `other` as `load` asks.
            #[kernel(max_threads = 32)]
            unsafe fn merge_keep(keep: PtrMut<u64>, other: Ptr<u64>) {
                // SAFETY: the same contract.
                unsafe {
                    let mut x = load::<$keep>(*keep);
                    warp_merge_keep::<$keep, $other>(&mut x, &load::<$other>(*other), warp::lane_id());
                    store(*keep, &x);
                }
            }
            ($keep, $other, |config, keep, other| {
                // SAFETY: the caller of the launch has the kernel's contract.
                unsafe { emulator::launch(&MergeKeep::KERNEL, config, MergeKeep { keep, other }) }
            })
        }),*),*]
    };
}

/// Launches one of the kernels that work in place. Its data must be as the kernel's documentation says.
type InPlace = unsafe fn(LaunchConfig, PtrMut<u64>) -> Result<Stats, Violation>;

fn sorts() -> Vec<(usize, InPlace)> {
    sorts![1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32]
}

fn merges() -> Vec<(usize, usize, InPlace)> {
    merges![(1, 1)(1, 2)(2, 1)(1, 3)(3, 1)(2, 2)(2, 3)(3, 2)(3, 3)(1, 4)(4, 1)(5, 1)(1, 5)(3, 4)(4, 3)(2, 6)(6, 2)(
        5, 5
    )(1, 8)(8, 1)(8, 3)(3, 8)(7, 6)(4, 12)(12, 4)(9, 9)(16, 2)(2, 16)(13, 7)(1, 31)(31, 1)(16, 16)(20, 12)(
        12, 20
    )(17, 15)(15, 17)(24, 8)(32, 0)(0, 5)(11, 3)]
}

/// Launches one of the kernels that merge what they keep with others.
type Keep = unsafe fn(LaunchConfig, PtrMut<u64>, Ptr<u64>) -> Result<Stats, Violation>;

fn keeps() -> Vec<(usize, usize, Keep)> {
    keeps! {
        1: 1 2 3 4 8;
        2: 1 2 3 4 8;
        4: 1 2 3 4 8;
        8: 1 2 3 4 8;
        16: 1 2 3 4 8;
        32: 1 2 3 4 8;
    }
}

fn grid(blocks: usize) -> LaunchConfig {
    LaunchConfig::linear(blocks as u64, 32)
}

/// Runs a kernel that works in place, one block for each `len` entries of `data`.
fn run(launch: InPlace, data: &[u64], len: usize) -> Vec<u64> {
    let mut buffer = Buffer::from_slice(data);
    // SAFETY: the buffer has `len` entries for each block and outlives the launch.
    unsafe { launch(grid(data.len() / len), buffer.as_mut_ptr()) }.unwrap();
    buffer.to_vec()
}

/// The key that goes with a payload: a pair that was torn apart shows.
fn key_of_payload(payload: u32) -> u32 {
    payload.wrapping_mul(0x9E37_79B9) >> 12
}

/// Entries of several kinds, one kind after the other: distinct pairs, many equal keys, zeros and ones, empty slots,
/// sorted and reversed.
fn inputs(len: usize, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    let pair = |payload: u32| u64::from(key_of_payload(payload)) << 32 | u64::from(payload);
    let mut data: Vec<u64> = (0..len).map(|_| pair(random.bits() as u32)).collect();
    data.extend((0..len).map(|at| (random.below(3) as u64) << 32 | at as u64));
    data.extend((0..len).map(|_| random.below(2) as u64));
    data.extend((0..len).map(|_| if random.below(3) == 0 { pair(random.bits() as u32) } else { EMPTY }));
    data.extend((0..len).map(|at| at as u64));
    data.extend((0..len).map(|at| (len - at) as u64));
    data
}

fn sorted(part: &[u64]) -> Vec<u64> {
    let mut part = part.to_vec();
    part.sort_unstable();
    part
}

/// Equal to a sort by the standard library: sorted, a permutation, and (an entry being key and payload) pairs kept
/// together.
fn assert_sorted(name: &str, input: &[u64], output: &[u64], len: usize) {
    for (set, (input, output)) in input.chunks(len).zip(output.chunks(len)).enumerate() {
        assert_eq!(output, sorted(input), "{name}, input {set}");
        if set == 0 {
            assert!(output.iter().all(|&entry| (entry >> 32) as u32 == key_of_payload(entry as u32)), "{name}");
        }
    }
}

#[test]
fn warp_sort_of_every_length() {
    for (registers, launch) in sorts() {
        let len = 32 * registers;
        let input = inputs(len, registers as u64);
        assert_sorted(&format!("warp_sort {registers}"), &input, &run(launch, &input, len), len);
    }
}

#[test]
fn warp_merge_of_many_lengths() {
    for (left, right, launch) in merges() {
        let len = 32 * (left + right);
        let mut input = inputs(len, (100 * left + right) as u64);
        for set in input.chunks_mut(len) {
            let (first, second) = set.split_at_mut(32 * left);
            first.sort_unstable();
            second.sort_unstable();
        }
        assert_sorted(&format!("warp_merge ({left}, {right})"), &input, &run(launch, &input, len), len);
    }
}

#[test]
fn warp_merge_keep_keeps_the_smallest() {
    for (keep, other, launch) in keeps() {
        let (l, r) = (32 * keep, 32 * other);
        let part = |len: usize, seed: u64| -> Vec<u64> { inputs(len, seed).chunks(len).flat_map(sorted).collect() };
        let (kept, others) = (part(l, 7), part(r, (100 * keep + other) as u64));
        let (mut buffer, second) = (Buffer::from_slice(&kept), Buffer::from_slice(&others));
        // SAFETY: both buffers have the entries of each block and outlive the launch.
        unsafe { launch(grid(kept.len() / l), buffer.as_mut_ptr(), second.as_ptr()) }.unwrap();
        for (set, output) in buffer.to_vec().chunks(l).enumerate() {
            let both = sorted(&[&kept[set * l..][..l], &others[set * r..][..r]].concat());
            assert_eq!(output, &both[..l], "warp_merge_keep ({keep}, {other}), input {set}");
        }
    }
}

/// The kernel and the program on plain arrays do the same, comparator by comparator: also on inputs that are no input
/// of a merge, where the outcome shows the wiring.
#[test]
fn merge_kernels_run_their_programs() {
    for (left, right, launch) in merges() {
        let len = 32 * (left + right);
        let input = inputs(len, 9);
        let list = comparators(&merge_program(left, right));
        let mut expected = input.clone();
        expected.chunks_mut(len).for_each(|set| apply(&list, set));
        assert_eq!(run(launch, &input, len), expected, "warp_merge ({left}, {right})");
    }
}

proptest! {
    // A failing case prints its input; a file of past failures would be one more table of cases.
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any entries, any length: the program sorts them.
    #[test]
    fn sort_programs_sort_anything(registers in 1usize..=32, seed: u64, distinct in 1usize..5000) {
        let mut random = Random::new(seed);
        let mut x: Vec<u64> = (0..32 * registers).map(|_| random.below(distinct) as u64).collect();
        let expected = sorted(&x);
        apply(&comparators(&sort_program(registers)), &mut x);
        prop_assert_eq!(x, expected);
    }

    /// Any two sorted lists, any lengths: the program merges them.
    #[test]
    fn merge_programs_merge_anything(left in 1usize..32, right in 1usize..32, seed: u64, distinct in 1usize..5000) {
        prop_assume!(left + right <= 32);
        let mut random = Random::new(seed);
        let mut x: Vec<u64> = (0..32 * (left + right)).map(|_| random.below(distinct) as u64).collect();
        let expected = sorted(&x);
        let (first, second) = x.split_at_mut(32 * left);
        first.sort_unstable();
        second.sort_unstable();
        apply(&comparators(&merge_program(left, right)), &mut x);
        prop_assert_eq!(x, expected);
    }

    /// Any entries, any length, through the kernel.
    #[test]
    fn warp_sort_sorts_anything(which in 0usize..32, entries in prop::collection::vec(any::<u64>(), 1024)) {
        let (registers, launch) = sorts()[which];
        let input = &entries[..32 * registers];
        prop_assert_eq!(run(launch, input, input.len()), sorted(input));
    }
}
