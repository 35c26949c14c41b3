//! The cost model (`warpann_measure::cost_model`) against counts: those of the real kernels on the emulator, and those
//! of a plain simulation of the published algorithm. Keys are permutations drawn evenly, as the model assumes.

use cuda_std::emulator::{self, Buffer, Operation, Profile};
use warpann_kernels::select::networks::{Step, sort_program};
use warpann_kernels::select::rows::{KeyTable, SelectedRows};
use warpann_kernels::select::warp_select::WarpSelectRows;
use warpann_measure::cost_model::WarpSelectShape;
use warpann_tests::data::Random;

/// `rows` permutations of 0..`columns`, one after the other.
fn permutations(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut keys = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        keys.extend((0..columns).map(|key| key as f32));
        let row = &mut keys[row * columns..];
        for last in (1..columns).rev() {
            row.swap(last, random.below(last + 1));
        }
    }
    keys
}

/// Asserts that `counted` is within `share` of `expected`.
fn assert_near(counted: f64, expected: f64, share: f64, name: &str) {
    let ratio = counted / expected;
    assert!((ratio - 1.0).abs() <= share, "{name}: {counted:.2} counted, {expected:.2} expected, ratio {ratio:.3}");
}

/// Warp-level executions on the one line of the kernel's source that contains `text`.
fn on_line(profile: &Profile, operation: Operation, text: &str) -> u64 {
    let source = include_str!("../../../kernels-rs/src/select/warp_select.rs");
    let lines: Vec<u32> = (1..).zip(source.lines()).filter(|(_, line)| line.contains(text)).map(|(n, _)| n).collect();
    let [line] = lines[..] else { panic!("{text:?} is on lines {lines:?} of warp_select.rs, not on one") };
    profile.executions(|site| {
        site.operation == operation && site.location.file.ends_with("warp_select.rs") && site.location.line == line
    })
}

/// Counts of the kernel for `rows` random rows, all together.
struct Counted {
    /// First votes, one for four steps of 32 keys.
    groups: u64,
    insertions: u64,
    merges: u64,
    /// Shuffles inside the sorting networks.
    network_shuffles: u64,
}

fn count(shape: WarpSelectShape, rows: usize, columns: usize) -> Counted {
    let keys = Buffer::from_slice(&permutations(rows, columns, 0x5E1EC7 + columns as u64));
    let k = shape.k();
    let mut found = Buffer::<f32>::new(rows * k as usize);
    let mut positions = Buffer::<u32>::new(rows * k as usize);
    let all = columns as u32;
    let launch = WarpSelectRows {
        table: KeyTable {
            keys: keys.as_ptr().as_bytes(),
            ids: None,
            stride: columns as u64,
            starts: None,
            lengths: None,
            columns: all,
            flip: 0,
        },
        segments: 1,
        segment_columns: all,
        rows: rows as u32,
        k,
        skip: 0,
        out: SelectedRows { keys: found.as_mut_ptr().as_bytes(), ids: positions.as_mut_ptr(), stride: k },
    };
    let kernel = WarpSelectRows::kernel(shape.warp_queue());
    // SAFETY: rows of `columns` keys, room for k results of each, a warp for each row.
    let profile = unsafe { emulator::profile(kernel, launch.config(), launch) }.unwrap();
    let smallest: Vec<f32> = (0..k).map(|key| if key < all { key as f32 } else { f32::INFINITY }).collect();
    assert!(found.to_vec().chunks(k as usize).all(|row| row == smallest));
    // Every row ends with one merge more, whose turn of the loop makes each of the votes once, whatever the keys.
    let ends = rows as u64;
    Counted {
        groups: on_line(&profile, Operation::Any, "finish | warp::any(FULL_MASK, candidate)") - ends,
        insertions: on_line(&profile, Operation::Any, "warp::any(FULL_MASK, self.waiting") - ends,
        // The new bound is one shuffle of 64 bits.
        merges: on_line(&profile, Operation::ShuffleIdx, "self.bound = warp::shuffle_idx") / 2,
        network_shuffles: profile.executions(|site| site.location.file.ends_with("networks.rs")),
    }
}

/// Every kernel, rows from shorter than the queue to 100,000 keys: within 5 %. There are so many rows that sampling
/// moves the means by about 1 %.
#[test]
fn kernels_count_as_the_model_says() {
    let cases = [
        (2, 1_000, 2_000),
        (2, 10_000, 1_000),
        (10, 1_000, 1_200),
        (10, 100_000, 200),
        (32, 1_001, 600),
        (32, 10_000, 300),
        (32, 100_000, 120),
        (64, 10_000, 150),
        (65, 1_000, 150),
        (100, 100_000, 60),
        (128, 1_000, 60),
        (128, 10_017, 80),
        (128, 100_000, 40),
        (256, 10_000, 40),
        (512, 20_000, 24),
        (600, 10_000, 20),
        (1024, 1_000, 4),
        (1024, 10_000, 12),
        (1024, 100_000, 8),
    ];
    for (k, columns, rows) in cases {
        let shape = WarpSelectShape::of_kernel(k).unwrap();
        let counted = count(shape, rows, columns);
        let expected = shape.kernel_counts(columns as u64);
        let label = |name| format!("{name} of k = {k} in {columns}");
        println!(
            "k = {k:4}  columns = {columns:6}  insertions {:7.1} counted {:7.1} expected   merges {:5.2} counted {:5.2} expected",
            counted.insertions as f64 / rows as f64,
            expected.insertions,
            counted.merges as f64 / rows as f64,
            expected.merges,
        );
        assert_eq!(counted.groups, (rows * columns.div_ceil(128)) as u64, "{}", label("groups"));
        assert_eq!(expected.steps, columns.div_ceil(32) as f64, "{}", label("steps"));
        assert_near(counted.insertions as f64 / rows as f64, expected.insertions, 0.05, &label("insertions"));
        assert_near(counted.merges as f64 / rows as f64, expected.merges, 0.05, &label("merges"));

        // C₃: comparisons that cross lanes are two shuffles (a key, a payload); the others stay in a lane.
        let registers = shape.warp_queue() as usize / 32;
        let program = sort_program(shape.thread_queue() as usize);
        let inside = program.steps.iter().filter(|step| matches!(step, Step::Exchange(..))).count();
        let strides = (0..).take_while(|bit| 2usize << bit <= registers).count();
        let across = shape.kernel_costs().merge - (inside + strides * registers / 2) as f64;
        let shuffles = counted.network_shuffles as f64 / counted.merges as f64;
        assert_eq!(shuffles, 2.0 * across, "{}", label("shuffles of a merge"));
    }
}

/// Algorithm 3 of the paper, word by word, by sorting: insertions (groups of `lanes` keys in which a lane inserts) and
/// won ballots, without the final sort.
fn published(keys: &[f32], k: usize, thread_queue: usize, lanes: usize) -> (f64, f64) {
    // From the largest to the smallest, and from the smallest to the largest.
    let mut thread_queues = vec![vec![f32::INFINITY; thread_queue]; lanes];
    let mut warp_queue = vec![f32::INFINITY; k];
    let (mut insertions, mut merges) = (0, 0);
    for group in keys.chunks(lanes) {
        let mut inserted = false;
        for (&key, queue) in group.iter().zip(&mut thread_queues) {
            if key < queue[0] {
                inserted = true;
                queue[0] = key;
                queue.sort_by(|a, b| b.total_cmp(a));
            }
        }
        insertions += usize::from(inserted);
        if thread_queues.iter().any(|queue| queue[0] < warp_queue[k - 1]) {
            merges += 1;
            warp_queue.extend(thread_queues.iter().flatten());
            warp_queue.sort_by(f32::total_cmp);
            let rest = warp_queue.split_off(k);
            for (lane, queue) in thread_queues.iter_mut().enumerate() {
                *queue = (0..thread_queue).rev().map(|register| rest[register * lanes + lane]).collect();
            }
        }
    }
    (insertions as f64, merges as f64)
}

fn simulate(k: usize, thread_queue: usize, lanes: usize, columns: usize, rows: usize) -> (f64, f64) {
    let keys = permutations(rows, columns, 0xA16 + (k * columns) as u64);
    let (insertions, merges) = keys
        .chunks(columns)
        .map(|row| published(row, k, thread_queue, lanes))
        .fold((0.0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    (insertions / rows as f64, merges / rows as f64)
}

/// The published algorithm merges as ours does but for the merge that ends a row, and inserts more. The published
/// formulas are as far off as their documentation says, and no further.
#[test]
fn published_formulas_are_as_good_as_they_say() {
    // Multiples of 32: others the paper rounds up.
    let cases = [
        (32, 1_024, 100),
        (32, 10_240, 60),
        (32, 102_400, 20),
        (64, 10_240, 40),
        (128, 2_048, 40),
        (128, 102_400, 8),
        (256, 5_120, 20),
        (256, 30_720, 8),
        (512, 30_720, 4),
        (1024, 102_400, 2),
    ];
    for (k, columns, rows) in cases {
        let shape = WarpSelectShape::of_kernel(k).unwrap();
        let (insertions, merges) = simulate(k, shape.thread_queue() as usize, 32, columns, rows);
        let columns = columns as u64;
        let kernel = shape.kernel_counts(columns);
        let label = |name| format!("{name} of k = {k} in {columns}");
        let unexpanded = insertions / shape.published_insertions(columns);
        let first_order = shape.published_insertions_first_order(columns) / insertions;
        let bound = shape.published_merges_bound(columns) / merges;
        println!(
            "k = {k:4}  columns = {columns:6}  insertions {insertions:7.1} (ours {:7.1}), times the unexpanded sum \
             {unexpanded:.2}, first order {first_order:.2} times that   merges {merges:5.2}, bound {bound:.2} times that",
            kernel.insertions,
        );
        assert_near(merges, kernel.merges - 1.0, 0.05, &label("merges"));
        assert!(insertions >= kernel.insertions * 0.99, "{}", label("insertions"));
        assert!((1.0..2.4).contains(&unexpanded), "{}: {unexpanded}", label("insertions, unexpanded"));
        assert!((0.7..10.5).contains(&first_order), "{}: {first_order}", label("insertions, first order"));
        assert!((4.5..17.0).contains(&bound), "{}: {bound}", label("bound on merges"));
    }
}

/// Equations 16 to 18 by their letter.
fn one_lane(columns: usize, k: usize, thread_queue: usize) -> f64 {
    let mut gamma = vec![1.0];
    for n in 1..=columns {
        let alpha = if n <= k { 1.0 } else { k as f64 / n as f64 };
        let of = |m: usize| gamma.get(m).copied().unwrap_or(0.0);
        gamma = (0..=n).map(|m| if m == 0 { 0.0 } else { of(m - 1) * alpha + of(m) * (1.0 - alpha) }).collect();
    }
    let delta = |won: usize| (won * thread_queue..(won + 1) * thread_queue).filter_map(|m| gamma.get(m)).sum::<f64>();
    (1..=columns / thread_queue).map(|won| won as f64 * delta(won)).sum()
}

#[test]
fn one_lane_is_as_the_equations_say_and_near_the_algorithm() {
    for (k, thread_queue, columns, rows) in
        [(1, 1, 1_000, 2_000), (10, 1, 1_000, 300), (10, 2, 1_000, 300), (10, 8, 1_000, 300), (64, 3, 2_000, 40)]
    {
        let shape = WarpSelectShape::new(k, k.next_multiple_of(32), thread_queue).unwrap();
        let formula = shape.published_merges_one_lane(columns);
        let literal = one_lane(columns as usize, k as usize, thread_queue as usize);
        let label = format!("one lane, k = {k}, t = {thread_queue}");
        assert_near(formula, literal, 1e-9, &label);
        let (_, merges) = simulate(k as usize, thread_queue as usize, 1, columns as usize, rows);
        println!("{label}: {merges:.2} counted, {formula:.2} published");
        if thread_queue == 1 {
            let harmonic: f64 = (u64::from(k) + 1..=columns).map(|n| 1.0 / n as f64).sum();
            assert_near(formula, f64::from(k) * (1.0 + harmonic), 1e-9, &label);
            assert_near(merges, formula, 0.02, &label);
        } else {
            assert!((1.01..1.3).contains(&(merges / formula)), "{label}: {merges} counted, {formula} published");
        }
    }
}
