//! Rows that are made to defeat k-selection: rows whose samples are misleading, and keys with equal leading bits.
//!
//! ThresholdSelect and the sort of its survivors each have a path that random keys never take. These tests run every
//! method on the emulator, with rows that must take such a path. The emulator's counts show which path was taken; the
//! tests compare results with a plain sort. The same rows run on GPUs among the scenarios of warpann-tests.

use std::cell::RefCell;

use cuda_std::PtrMut;
use cuda_std::emulator::{self, Buffer, SiteCount};
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};
use test_random::Random;
use warpann_kernels::select::sample::{BLOCK_GROUP_KEYS, SamplePlan};

use super::dispatch::Method;
use super::{Select, SelectPlan, enqueue};
use crate::device::queue::Queue;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::select::{Best, Key};
use crate::{Error, Result};

/// A queue that launches on the emulator and stores the counts of all launches.
#[derive(Default)]
struct Profiling(RefCell<Vec<SiteCount>>);

impl Queue for Profiling {
    unsafe fn launch<A: KernelArgs>(&self, kernel: &Kernel<A>, config: LaunchConfig, args: A) -> Result<()> {
        // SAFETY: the kernel's contract holds, as the caller promises.
        let profile = unsafe { emulator::profile(kernel, config, args) };
        let profile = profile.map_err(|violation| Error::KernelViolation { violation: Box::new(violation) })?;
        self.0.borrow_mut().extend(profile.sites);
        Ok(())
    }

    unsafe fn fill<V>(&self, to: PtrMut<V>, byte: u8) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { Runtime::EMULATOR.fill(&Stream::EMULATOR, to, byte) }
    }
}

/// The fallbacks of a selection, each counted by the executions of a collective on that path only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fallbacks {
    /// Executions of the vote among the counters of a radix pass: 64 for each pass.
    exact_thresholds: u64,
    /// Executions of the barrier between the runs of entries and their merges: one for each warp and sort.
    entry_sorts: u64,
    /// Executions of the barrier before ThresholdSelect selects from a row on which ShortSelect has failed: one for
    /// each warp and row.
    given_up: u64,
}

impl Fallbacks {
    fn count(profiling: Profiling) -> Self {
        let radix = include_str!("../../../../kernels-rs/src/select/radix.rs");
        let block_sort = include_str!("../../../../kernels-rs/src/select/block_sort.rs");
        let vote = line(radix, "warp::ballot(FULL_MASK, up_to >= rank)");
        let barrier = line(block_sort, "sort_runs::<u64, 1>(from, len,") + 1;
        assert!(block_sort.lines().nth(barrier as usize - 1).is_some_and(|line| line.contains("sync_threads()")));
        let counts = profiling.0.into_inner();
        let on_line = |file: &str, line: u32| {
            let there = |site: &&SiteCount| site.location.file.ends_with(file) && site.location.line == line;
            counts.iter().filter(there).map(|site| site.executions).sum()
        };
        let given_up =
            line(include_str!("../../../../kernels-rs/src/select/short_select.rs"), "// The workspace is free.") + 1;
        Self {
            exact_thresholds: on_line("radix.rs", vote),
            entry_sorts: on_line("block_sort.rs", barrier),
            given_up: on_line("short_select.rs", given_up),
        }
    }
}

/// The number of the one line that contains `text`.
fn line(source: &str, text: &str) -> u32 {
    let lines: Vec<u32> = (1..).zip(source.lines()).filter(|(_, line)| line.contains(text)).map(|(n, _)| n).collect();
    let [line] = lines[..] else { panic!("{text:?} is on lines {lines:?}, not on one") };
    line
}

/// The rank of a key: lower is better. NaN, or the worst key of a type without NaN, has the highest rank.
type Badness = i32;
const NAN: Badness = Badness::MAX;

/// A key type whose keys can be made from their badness.
trait AdversarialKey: Key {
    /// A key whose order among others is that of `value`, |value| < 2²⁴.
    fn of(value: i32) -> Self;
    /// The key that comes after all keys of [`Self::of`].
    fn last(best: Best) -> Self;
    /// The bits of the key in one word, for comparisons.
    fn word(self) -> u32;

    fn as_bad_as(badness: Badness, best: Best) -> Self {
        match (badness, best) {
            (NAN, _) => Self::last(best),
            (_, Best::Smallest) => Self::of(badness),
            (_, Best::Largest) => Self::of(-badness),
        }
    }
}

impl AdversarialKey for f32 {
    fn of(value: i32) -> Self {
        value as f32
    }
    fn last(_: Best) -> Self {
        f32::NAN
    }
    fn word(self) -> u32 {
        self.to_bits()
    }
}

impl AdversarialKey for i32 {
    fn of(value: i32) -> Self {
        value
    }
    fn last(best: Best) -> Self {
        if best == Best::Smallest { i32::MAX } else { i32::MIN }
    }
    fn word(self) -> u32 {
        self as u32
    }
}

/// Selects by `method` from rows with these ranks, compares the result with a sort, and returns the plan as text and
/// its fallbacks.
fn select<K: AdversarialKey>(
    rows: &[Vec<Badness>],
    k: u32,
    best: Best,
    method: Method,
    key: impl Fn(Badness) -> K,
) -> (String, Fallbacks) {
    let columns = rows[0].len() as u32;
    let host: Vec<K> = rows.iter().flatten().map(|&badness| key(badness)).collect();
    let mut layout = Layout::default();
    let plan = SelectPlan::of_method(&mut layout, rows.len() as u32, columns, k, method, Runtime::EMULATOR.limits());
    let (keys, scratch) = (Buffer::from_slice(&host), Runtime::EMULATOR.allocate(layout.bytes()).unwrap());
    let mut found_keys = Buffer::<K>::new_poisoned(rows.len() * k as usize);
    let mut found_positions = Buffer::<u32>::new_poisoned(rows.len() * k as usize);
    let batch = Select::<K> {
        keys: keys.as_ptr(),
        ids: None,
        row_stride: columns.into(),
        starts: None,
        lengths: None,
        columns,
        rows: rows.len() as u32,
        k,
        best,
        out_keys: found_keys.as_mut_ptr(),
        out_ids: found_positions.as_mut_ptr(),
    };
    let profiling = Profiling::default();
    // SAFETY: the buffers have the shapes of the batch, and the scratch has the bytes that the plan reserved.
    unsafe { enqueue(&profiling, &batch, &plan, Runtime::EMULATOR.scratch(&scratch)) }.unwrap();
    let (found_keys, found_positions) = (found_keys.to_vec(), found_positions.to_vec());
    for (number, row) in rows.iter().enumerate() {
        // The sort is stable, so equal keys keep the order of positions.
        let mut order: Vec<u32> = (0..columns).collect();
        order.sort_by_key(|&position| row[position as usize]);
        for (place, &position) in order[..k as usize].iter().enumerate() {
            let slot = number * k as usize + place;
            let at = format!("{plan:?}, {best:?}, k = {k}, row {number}, place {place}");
            assert_eq!(found_positions[slot], position, "{at}");
            assert_eq!(found_keys[slot].word(), key(row[position as usize]).word(), "{at}");
        }
    }
    (format!("{plan:?}"), Fallbacks::count(profiling))
}

fn is_by(plan: &str, steps: &str) {
    assert!(plan.contains(&format!("steps: {steps} ")), "{plan}");
}

/// The values of the sampled keys, or of the other keys.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// Each key is one of 50,000 numbers.
    Many,
    /// All keys are one number.
    One,
    /// All keys are NaN.
    Nan,
}

/// A row that its sample misrepresents.
#[derive(Debug, Clone, Copy)]
struct Misleading {
    /// Whether all keys of the sample are better than all others; otherwise all are worse.
    sample_wins: bool,
    sampled: Values,
    others: Values,
}

/// If the sample wins, the threshold is too tight; if it loses, nearly all keys pass.
const MISLEADING: [Misleading; 8] = [
    Misleading { sample_wins: true, sampled: Values::Many, others: Values::Many },
    Misleading { sample_wins: true, sampled: Values::Many, others: Values::One },
    Misleading { sample_wins: true, sampled: Values::Many, others: Values::Nan },
    Misleading { sample_wins: true, sampled: Values::One, others: Values::Many },
    Misleading { sample_wins: false, sampled: Values::Many, others: Values::Many },
    Misleading { sample_wins: false, sampled: Values::Many, others: Values::One },
    Misleading { sample_wins: false, sampled: Values::Nan, others: Values::Many },
    Misleading { sample_wins: false, sampled: Values::Nan, others: Values::One },
];

impl Misleading {
    /// Row `number` of a batch, for a sample of at most `group_keys` keys in a group.
    fn row(self, columns: u32, k: u32, number: u32, group_keys: u32) -> Vec<Badness> {
        let plan = SamplePlan::new(k, columns, group_keys);
        let mut sampled = vec![false; columns as usize];
        for group in 0..plan.groups {
            for turn in 0..plan.group_keys {
                sampled[plan.position(group, turn, columns, number) as usize] = true;
            }
        }
        let mut random = Random::new(u64::from(number) + 1);
        let offset = if self.sample_wins { -100_000 } else { 100_000 };
        let mut badness = |sampled: bool| {
            let base = if sampled { offset } else { 0 };
            match if sampled { self.sampled } else { self.others } {
                Values::Many => base + random.below(50_000) as Badness,
                Values::One => base,
                Values::Nan => NAN,
            }
        };
        sampled.into_iter().map(&mut badness).collect()
    }
}

/// Tests every misleading row, and one random row, by a method whose plan must be `steps`.
fn mislead<K: AdversarialKey>((rows, columns, k): (u32, u32, u32), best: Best, method: Method, steps: &str) {
    // As the kernels sample: every block contributes the same number of keys to each group.
    let shared = SamplePlan::grid_keys(columns).next_multiple_of(BLOCK_GROUP_KEYS);
    let sampled = if steps == "Block" { BLOCK_GROUP_KEYS } else { shared };
    let blocks = if let Method::Cluster { blocks } = method { blocks } else { 1 };
    let key = |badness| K::as_bad_as(badness, best);
    for misleading in MISLEADING {
        let batch: Vec<_> = (0..rows).map(|number| misleading.row(columns, k, number, sampled)).collect();
        let (plan, fallbacks) = select::<K>(&batch, k, best, method, key);
        is_by(&plan, steps);
        // Each block of a cluster counts every pass.
        let passes = fallbacks.exact_thresholds / 64 / u64::from(blocks);
        let any = u64::from(rows)..=6 * u64::from(rows);
        assert!(any.contains(&passes), "{misleading:?}, {plan}: {passes} radix passes");
    }
    let mut random = Random::new(5);
    let batch: Vec<Vec<_>> =
        (0..rows).map(|_| (0..columns).map(|_| random.below(50_000) as Badness).collect()).collect();
    let (plan, fallbacks) = select::<K>(&batch, k, best, method, key);
    assert_eq!(fallbacks, Fallbacks { exact_thresholds: 0, entry_sorts: 0, given_up: 0 }, "random keys, {plan}");
}

#[test]
fn samples_that_mislead_a_block() {
    for (threads, best) in [(32, Best::Smallest), (256, Best::Largest)] {
        mislead::<f32>((2, 6000, 100), best, Method::Block { threads }, "Block");
    }
    mislead::<f32>((1, 9000, 700), Best::Largest, Method::Block { threads: 512 }, "Block");
    mislead::<i32>((1, 6001, 100), Best::Largest, Method::Block { threads: 64 }, "Block");
    mislead::<i32>((1, 9000, 700), Best::Smallest, Method::Block { threads: 128 }, "Block");
}

#[test]
fn samples_that_mislead_many_blocks() {
    mislead::<f32>((2, 9001, 100), Best::Smallest, Method::Grid, "Grid");
    mislead::<f32>((1, 9000, 700), Best::Largest, Method::Grid, "Grid");
    mislead::<i32>((1, 9000, 100), Best::Largest, Method::Grid, "Grid");
    mislead::<i32>((2, 9000, 700), Best::Smallest, Method::Grid, "Grid");
}

#[test]
fn samples_that_mislead_clusters() {
    mislead::<f32>((2, 6000, 100), Best::Smallest, Method::Cluster { blocks: 1 }, "Cluster");
    mislead::<f32>((1, 9000, 700), Best::Largest, Method::Cluster { blocks: 4 }, "Cluster");
    mislead::<i32>((2, 6001, 100), Best::Largest, Method::Cluster { blocks: 2 }, "Cluster");
    mislead::<i32>((1, 9000, 700), Best::Smallest, Method::Cluster { blocks: 16 }, "Cluster");
}

#[test]
fn samples_by_several_blocks_that_mislead() {
    let columns = (BLOCK_GROUP_KEYS + 1) << 14;
    assert!(SamplePlan::grid_keys(columns) > BLOCK_GROUP_KEYS);
    mislead::<i32>((1, columns, 100), Best::Smallest, Method::Grid, "Grid");
}

#[test]
fn samples_that_mislead_lists() {
    // k exceeds shared memory, so every method becomes a plan of lists.
    mislead::<f32>((1, 9000, 3100), Best::Smallest, Method::Block { threads: 128 }, "List");
    mislead::<f32>((1, 9000, 3100), Best::Largest, Method::Grid, "List");
    mislead::<i32>((2, 9001, 3100), Best::Smallest, Method::Grid, "List");
    mislead::<i32>((1, 9000, 3100), Best::Largest, Method::Grid, "List");
}

/// Rows that fit into shared memory. Their keys are sorted by 20 bits, but they differ only in lower bits.
fn one_outlier<K: AdversarialKey>(key: impl Fn(Badness) -> K, best: Best) {
    for (columns, k) in [(2900, 2900), (2900, 700), (900, 10), (600, 590)] {
        for threads in [32, 256] {
            let mut row: Vec<Badness> = (0..columns).collect();
            row[0] = -1;
            Random::new(u64::from(columns as u32 + k)).shuffle(&mut row);
            let (plan, fallbacks) = select::<K>(&[row], k, best, Method::Block { threads }, &key);
            is_by(&plan, "Block");
            // A barrier counts once for each warp.
            assert_eq!(fallbacks.entry_sorts, u64::from(threads / 32), "{columns} keys, k = {k}, {plan}");
        }
    }
}

#[test]
fn outliers_that_hide_the_order_of_all_others() {
    for best in [Best::Smallest, Best::Largest] {
        let sign = if best == Best::Smallest { 1 } else { -1 };
        one_outlier::<i32>(
            |badness| match (badness, best) {
                (-1, Best::Smallest) => i32::MIN,
                (-1, Best::Largest) => i32::MAX,
                _ => sign * badness,
            },
            best,
        );
        one_outlier::<f32>(
            |badness| match badness {
                -1 => -3e38 * sign as f32,
                // Denormal.
                _ => f32::from_bits(badness as u32) * sign as f32,
            },
            best,
        );
    }
}

/// Groups of `size` ≤ 64 neighbouring numbers, about 512 in all, which spread over 2²⁹: sorting sees the upper 23 of 29
/// bits.
fn groups(size: i32) -> Vec<Badness> {
    let count = 512 / size;
    let distance = (1 << 29) / (count as u32).next_power_of_two() as i32;
    let mut row: Vec<Badness> = (0..count).flat_map(|group| (0..size).map(move |one| group * distance + one)).collect();
    Random::new(size as u64).shuffle(&mut row);
    row
}

#[test]
fn groups_of_equal_leading_bits_up_to_the_last_one_wanted() {
    // The longest group that one thread sorts has 16 entries. k falls inside a group, at its ends, and at a cut.
    for (size, sorted_as_entries) in [(2, 0), (15, 0), (16, 0), (17, 4), (40, 4)] {
        for k in [1, size, 5 * size - 1, 5 * size, 5 * size + 1, 5 * size + size / 2, 8 * size] {
            for best in [Best::Smallest, Best::Largest] {
                let row = groups(size);
                let key = |badness| i32::as_bad_as(badness, best);
                let (plan, fallbacks) =
                    select::<i32>(std::slice::from_ref(&row), k as u32, best, Method::Block { threads: 128 }, key);
                is_by(&plan, "Block");
                assert_eq!(fallbacks.entry_sorts, sorted_as_entries, "groups of {size}, k = {k}, {plan}");
            }
        }
    }
}

/// Groups of the sample that have only the worse value are far from the others, so those differ only in the last bits
/// of the sort keys.
#[test]
fn rows_of_two_values_need_no_exact_threshold() {
    let mut random = Random::new(5);
    let rows: Vec<Vec<Badness>> = (0..12).map(|_| (0..10_000).map(|_| random.below(2) as Badness).collect()).collect();
    let key = |badness| f32::as_bad_as(badness, Best::Smallest);
    let (plan, fallbacks) = select(&rows, 500, Best::Smallest, Method::Block { threads: 256 }, key);
    is_by(&plan, "Block");
    assert_eq!(fallbacks.exact_thresholds, 0);
}

/// ShortSelect takes its bound from the smallest keys of threads. With ties and NaN too many keys may be below the
/// bound; then ThresholdSelect selects from the row. The positions of the keys do not matter.
#[test]
fn rows_that_short_select_cannot_bound() {
    const COLUMNS: usize = 3_000;
    let mut random = Random::new(11);
    let mut many: Vec<Badness> = (0..COLUMNS as Badness).collect();
    let one = vec![5; COLUMNS];
    let mut few_better = one.clone();
    (0..7).for_each(|at| few_better[400 * at] = at as Badness - 9);
    let ascending = many.clone();
    let descending: Vec<Badness> = many.iter().rev().copied().collect();
    random.shuffle(&mut many);
    let with_nan = |count: u32, random: &mut Random| -> Vec<Badness> {
        let mut row = many.clone();
        (0..count).for_each(|_| row[random.below(COLUMNS)] = NAN);
        row
    };
    let (some_nan, most_nan) = (with_nan(40, &mut random), with_nan(8_000, &mut random));
    assert!(most_nan.iter().filter(|&&badness| badness != NAN).count() > 24);
    for (name, row, falls_back) in [
        ("many", many.clone(), Some(false)),
        ("one", one, Some(true)),
        ("few better", few_better, Some(true)),
        ("ascending", ascending, Some(false)),
        ("descending", descending, Some(false)),
        ("some NaN", some_nan, None),
        ("most NaN", most_nan, Some(true)),
    ] {
        for (threads, k, best) in [(32, 24, Best::Smallest), (128, 20, Best::Largest), (256, 3, Best::Smallest)] {
            // The bits of this NaN are below those of all numbers, but it is last in the order.
            let key = |badness| {
                if badness == NAN { f32::from_bits(0xFFC0_0001) } else { f32::as_bad_as(badness, best) }
            };
            let rows = [row.clone(), many.clone()];
            let (plan, fallbacks) = select::<f32>(&rows, k, best, Method::Short { threads }, key);
            is_by(&plan, "Short");
            // In the reversed order, such NaN are last by their bits as well.
            let falls_back = falls_back.filter(|_| name != "most NaN" || best == Best::Smallest);
            if let Some(falls_back) = falls_back {
                assert_eq!(fallbacks.given_up > 0, falls_back, "{name}, {plan}");
            }
        }
    }
}
