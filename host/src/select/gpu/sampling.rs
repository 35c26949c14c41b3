//! A simulation of the guarantees of [`SamplePlan`]: of rows of random keys, hardly any has too few survivors or more
//! than the capacity.

use std::collections::HashSet;

use rayon::prelude::*;
use test_random::Random;
use warpann_kernels::select::sample::{BLOCK_GROUP_KEYS, SamplePlan};

use super::{expected_survivors, survivors};

/// Number of simulated rows of each shape.
const ROWS: u32 = 10_000;

/// The results of a simulation.
#[derive(Debug)]
struct Simulated {
    /// Number of rows with fewer than k survivors.
    too_few: u32,
    /// Number of rows with more survivors than the capacity.
    too_many: u32,
    /// Mean number of survivors of a row.
    mean: f64,
}

/// Draws samples of rows of `len` distinct random keys. Keys are their ranks; a sample has the number of different keys
/// of the plan.
fn simulate(plan: SamplePlan, k: u32, len: u32, room: u32) -> Simulated {
    let mut random = Random::new(0x5eed ^ u64::from(len) << 32 ^ u64::from(k));
    let mut ranks: Vec<u32> = (0..len).collect();
    let mut bests = vec![0; plan.groups as usize];
    let mut simulated = Simulated { too_few: 0, too_many: 0, mean: 0.0 };
    for _ in 0..ROWS {
        let mut drawn = 0;
        for best in &mut bests {
            *best = u32::MAX;
            for _ in 0..plan.group_keys {
                // The first entries were already drawn for this row.
                ranks.swap(drawn, drawn + random.below(len as usize - drawn));
                *best = ranks[drawn].min(*best);
                drawn += 1;
            }
        }
        // The threshold and all ranks before it pass.
        let (_, &mut threshold, _) = bests.select_nth_unstable(plan.rank as usize - 1);
        let survivors = threshold + 1;
        simulated.too_few += u32::from(survivors < k);
        simulated.too_many += u32::from(survivors > room);
        simulated.mean += f64::from(survivors) / f64::from(ROWS);
    }
    simulated
}

/// (k, len, largest number of keys of a group): for samples of one block, and for those of several blocks if the row is
/// long. Rows that fit into the capacity are not sampled.
fn shapes() -> Vec<(u32, u32, u32)> {
    let mut shapes = Vec::new();
    for len in [1000, 3000, 9000, 40_000, 300_000] {
        for k in [1, 10, 100, 1000, 5000, 20_000] {
            let shared = SamplePlan::grid_keys(len).next_multiple_of(BLOCK_GROUP_KEYS);
            let mut most_keys = vec![BLOCK_GROUP_KEYS, shared];
            most_keys.dedup();
            let sampled = |&most_keys: &u32| k < len && survivors(k, len, most_keys) < len;
            shapes.extend(most_keys.into_iter().filter(sampled).map(|most_keys| (k, len, most_keys)));
        }
    }
    shapes
}

#[test]
fn thresholds_of_random_rows_serve_nearly_all_of_them() {
    let shapes = shapes();
    assert!(shapes.len() > 15, "{shapes:?}");
    shapes.into_par_iter().for_each(|(k, len, most_keys)| {
        let plan = SamplePlan::new(k, len, most_keys);
        let simulated = simulate(plan, k, len, survivors(k, len, most_keys));
        let at = format!("k = {k} of {len}, {plan:?}: {simulated:?}");
        assert!(simulated.too_few < ROWS / 1000, "{at}");
        assert!(simulated.too_many < ROWS / 1000, "{at}");
        let (expected, _) = expected_survivors(plan, len);
        assert!((simulated.mean / expected - 1.0).abs() < 0.1, "{at}, {expected:.0} expected");
    });
}

/// The simulation detects a rank without margin, and a capacity without margin.
#[test]
fn margins_are_needed() {
    let (k, len) = (1000, 40_000);
    let plan = SamplePlan::new(k, len, BLOCK_GROUP_KEYS);
    let (hit, room) = (plan.group_keys as f64 * f64::from(k) / f64::from(len), survivors(k, len, BLOCK_GROUP_KEYS));
    let median = SamplePlan { rank: (f64::from(plan.groups) * hit) as u32, ..plan };
    assert!(simulate(median, k, len, room).too_few > ROWS / 10);
    assert!(simulate(plan, k, len, expected_survivors(plan, len).0 as u32).too_many > ROWS / 10);
}

#[test]
fn samples_are_different_keys_of_the_row() {
    for (k, len, most_keys) in shapes() {
        let plan = SamplePlan::new(k, len, most_keys);
        let mut seen = HashSet::new();
        for group in 0..plan.groups {
            for turn in 0..plan.group_keys {
                let position = plan.position(group, turn, len, len % 1000);
                assert!(position < len && seen.insert(position), "{plan:?}, {len} keys: {position}");
            }
        }
    }
}
