//! The cost model of WarpSelect (paper section 4.3 and appendix): how often a row of random keys makes a warp insert
//! and merge.
//!
//! # Problem
//! A warp reads a row of ℓ keys in N₁ = ⌈ℓ/32⌉ steps of 32. In N₂ of them some lane inserts a key into its thread queue
//! (length t); N₃ times the queues are sorted and merged. With costs C₁, C₂, C₃ of one each, a row costs
//! N₁C₁ + N₂C₂ + N₃C₃ ([`Counts::cost`]). Keys are distinct and in random order: all ℓ! orders are equally likely.
//!
//! # As published
//! [`WarpSelectShape::published_insertions`], [`WarpSelectShape::published_insertions_first_order`],
//! [`WarpSelectShape::published_merges_one_lane`] and [`WarpSelectShape::published_merges_bound`] are the appendix's
//! formulas. They show how the counts grow (as k·log ℓ, and as 1/t); they are not meant as predictions: against a
//! simulation of the published algorithm (k from 32 to 1024, rows of 1,024 to 102,400 keys) the insertions are up to
//! 2.3 times too low or, to first order, 10 times too high, and the bound on merges is 5 to 16 times too high. Each
//! function states its error.
//!
//! # As our kernel counts
//! [`WarpSelectShape::kernel_counts`] is exact for `warpann_kernels::select::warp_select`, except for numerical error
//! and an error of 1 % in the part beyond the first 32,768 keys. The kernel differs from the publication as follows:
//!
//! 1. A key is tested against the bound W_{k−1}, not against the lane's own T₀: fewer insertions (at k = 32, ℓ =
//!    100,000 less than half). T₀ of the paper is the largest of t leftovers of the last merge, hence above W_{k−1}.
//! 2. A merge starts when a lane has taken t keys below the bound since the last merge. That is exactly when the
//!    paper's T₀ drops below W_{k−1}, for leftovers lie above it: the merges are the published algorithm's, but for
//!    one.
//! 3. That one is the merge that ends every row; the paper leaves its final sort out of N₃.
//! 4. The bound changes at merges only, so it is that of the keys before the last merge; the published formulas take it
//!    as of all keys. This is what they miss.
//! 5. Groups of 4 keys a lane share a first vote. It lets a group through if and only if one of its steps has a key
//!    below the bound at its start, and each step votes again: neither count changes.
//!
//! Derivation. Let a merge have happened after n keys. Whether it did depends only on the rank of each key among the
//! keys before it, and these ranks are independent of the *set* of n keys. So the bound, as the fraction p of all
//! possible keys that lie below it, is distributed as the k-th smallest of n uniform numbers whatever came before:
//! Beta(k, n − k + 1); p = 1 while n < k, when the queue is not full. Given p, each later key is below the bound with
//! probability p independently, and the next merge comes when one of 32 binomial counters reaches t:
//!
//! ```text
//! P(no merge within j steps | p) = P(Binomial(j, p) < t)³²
//! P(a step inserts | p)          = 1 − (1 − p)³²              whatever the steps since the merge did
//! ```
//!
//! Merges are thus a Markov chain over the steps, solved from front to back: the first [`EXACT_STEPS`] steps one by
//! one. From there on keys below the bound are rare enough to come one at a time, a merge takes c of them where c balls
//! into 32 bins first fill one with t, and ln n grows from merge to merge by independent amounts with one mean μ:
//!
//! ```text
//! μ = E[1/k + 1/(k+1) + .. + 1/(k+c−1)],      N₃ grows by 1/μ and the keys taken by E[c]/μ for each e-fold of ℓ
//! ```
//!
//! (−ln p grows by that sum on average, as the k-th smallest of k − 1 + c uniform numbers shows, and ln n keeps pace.)

use cuda_std::warp::WARP_SIZE;
use serde::{Deserialize, Serialize};
use warpann_kernels::select::networks::{MAX_REGISTERS, Step, merge_steps, sort_program, sort_steps};
use warpann_kernels::select::warp_select::{QUEUES, thread_queue};

/// Number of steps of 32 keys that the model computes one by one; 1024 steps are 32,768 keys.
pub const EXACT_STEPS: usize = 1024;

const LANES: usize = WARP_SIZE as usize;

/// Probabilities below this limit are dropped. The error of a count is below the limit times the number of steps.
const NEGLIGIBLE: f64 = 1e-10;

/// The parameters of a WarpSelect: k and the lengths of its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parameters")]
pub struct WarpSelectShape {
    k: u32,
    warp_queue: u32,
    thread_queue: u32,
}

/// A [`WarpSelectShape`] as it was written, which has not been checked.
#[derive(Deserialize)]
struct Parameters {
    k: u32,
    warp_queue: u32,
    thread_queue: u32,
}

impl TryFrom<Parameters> for WarpSelectShape {
    type Error = String;

    fn try_from(Parameters { k, warp_queue, thread_queue }: Parameters) -> Result<Self, String> {
        let shape = Self::new(k, warp_queue, thread_queue);
        shape.ok_or_else(|| format!("no WarpSelect has k = {k} and queues of {warp_queue} and {thread_queue}"))
    }
}

/// Expected numbers of operations of a warp for one row, with the paper's names N₁, N₂, N₃.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// N₁: steps of 32 keys that are read and compared.
    pub steps: f64,
    /// N₂: steps in which at least one lane inserts.
    pub insertions: f64,
    /// N₃: sorts of the thread queues and merges with the warp queue.
    pub merges: f64,
}

/// Costs of the operations, with the paper's names C₁, C₂, C₃, in comparisons (or moves) of one register in all 32
/// lanes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Costs {
    /// C₁: cost of a step without an insertion.
    pub step: f64,
    /// C₂: cost of an insertion.
    pub insertion: f64,
    /// C₃: cost of a merge.
    pub merge: f64,
}

impl Counts {
    /// The row's cost N₁C₁ + N₂C₂ + N₃C₃ (paper section 4.3).
    pub fn cost(&self, costs: &Costs) -> f64 {
        self.steps * costs.step + self.insertions * costs.insertion + self.merges * costs.merge
    }
}

impl WarpSelectShape {
    /// A selection of the best `k` with a warp queue of `warp_queue` entries, a multiple of 32, and thread queues of
    /// `thread_queue`. `None` unless 1 ≤ k ≤ `warp_queue` ≤ 1024 and 1 ≤ `thread_queue` ≤ 32.
    pub fn new(k: u32, warp_queue: u32, thread_queue: u32) -> Option<Self> {
        let largest = MAX_REGISTERS as u32;
        let fits = 1 <= k && k <= warp_queue && warp_queue <= 32 * largest && warp_queue.is_multiple_of(32);
        (fits && (1..=largest).contains(&thread_queue)).then_some(Self { k, warp_queue, thread_queue })
    }

    /// The parameters of the kernel that selects `k` in one pass. `None` for k = 1, whose kernel has no queues, and for
    /// k = 0 and k > 1024.
    pub fn of_kernel(k: usize) -> Option<Self> {
        let k = u32::try_from(k).ok().filter(|&k| k > 1)?;
        let warp_queue = QUEUES.into_iter().find(|&queue| k <= queue)?;
        Self::new(k, warp_queue, thread_queue(warp_queue) as u32)
    }

    /// Number of keys that are selected.
    pub fn k(self) -> u32 {
        self.k
    }

    /// Number of entries of the warp queue.
    pub fn warp_queue(self) -> u32 {
        self.warp_queue
    }

    /// Number of entries of a lane's thread queue, the paper's t.
    pub fn thread_queue(self) -> u32 {
        self.thread_queue
    }

    /// The mean counts of `warpann_kernels::select::warp_select` for a row of `columns` keys that one warp reads in one
    /// pass, by the model of the module documentation. Tests require agreement with the kernel's counts within 5 %;
    /// they find 2 %, which is the error of their sample. O(columns²) operations up to [`EXACT_STEPS`] steps, O(1)
    /// beyond: 60 ms at most.
    ///
    /// ```
    /// use warpann_measure::cost_model::WarpSelectShape;
    ///
    /// let shape = WarpSelectShape::of_kernel(100).unwrap();
    /// let counts = shape.kernel_counts(128_000);
    /// assert_eq!(counts.steps, 4_000.0);
    /// // Most steps end after one vote, and a merge takes many insertions.
    /// assert!(counts.insertions < counts.steps / 5.0 && counts.merges < counts.insertions / 10.0);
    ///
    /// // And yet all merges together cost about as much as all steps.
    /// let costs = shape.kernel_costs();
    /// let shares = [counts.steps * costs.step, counts.merges * costs.merge].map(|cost| cost / counts.cost(&costs));
    /// assert!((0.3..0.6).contains(&shares[0]) && (0.3..0.6).contains(&shares[1]));
    /// ```
    pub fn kernel_counts(self, columns: u64) -> Counts {
        self.counts_from(columns, EXACT_STEPS)
    }

    /// [`Self::kernel_counts`], with `exact_steps` steps computed one by one.
    fn counts_from(self, columns: u64, exact_steps: usize) -> Counts {
        let steps = columns.div_ceil(LANES as u64);
        let (mut insertions, mut merges) = self.chain(columns.min((exact_steps * LANES) as u64) as usize);
        if steps > exact_steps as u64 {
            let (first, last) = (exact_steps as f64, columns as f64 / LANES as f64);
            let (taken, growth) = self.late_cycle();
            merges += (last / first).ln() / growth;
            // At step s, E[c]/μ/s keys are taken on average, and several of them may fall into one step.
            let taken = taken / growth;
            insertions += integrate_by_log(first, last, |s| -(-taken / s).exp_m1());
        }
        // The last merge always happens, even if the thread queues are empty.
        Counts { steps: steps as f64, insertions, merges: merges + 1.0 }
    }

    /// Expected insertions and merges in the first `columns` keys, by the chain over all steps.
    fn chain(self, columns: usize) -> (f64, f64) {
        let steps = columns.div_ceil(LANES);
        // Number of lanes that have a key in a step: all, except in an incomplete last step.
        let active = |step: usize| (columns - step * LANES).min(LANES);
        // after[s]: the probability that the queues are merged after s steps; they start empty.
        let mut after = vec![0.0; steps + 1];
        after[0] = 1.0;
        let mut insertions = 0.0;
        // The probability that a lane has taken 0, 1, .., t − 1 keys since the merge.
        let mut taken = vec![0.0; self.thread_queue as usize];
        for merged in 0..steps {
            if after[merged] < NEGLIGIBLE {
                continue;
            }
            for (weight, p) in bounds(self.k, merged * LANES) {
                let weight = weight * after[merged];
                taken.fill(0.0);
                taken[0] = 1.0;
                let (mut lane_waits, mut all_wait) = (1.0, 1.0);
                let full_step_inserts = 1.0 - power(1.0 - p, LANES);
                for step in merged..steps {
                    let active = active(step);
                    let full = active == LANES;
                    insertions +=
                        weight * all_wait * if full { full_step_inserts } else { 1.0 - power(1.0 - p, active) };
                    for i in (1..taken.len()).rev() {
                        taken[i] += p * (taken[i - 1] - taken[i]);
                    }
                    taken[0] -= p * taken[0];
                    let waits: f64 = taken.iter().sum();
                    let now = if full {
                        power(waits, LANES)
                    } else {
                        power(waits, active) * power(lane_waits, LANES - active)
                    };
                    after[step + 1] += weight * (all_wait - now);
                    (lane_waits, all_wait) = (waits, now);
                    if weight * all_wait < NEGLIGIBLE {
                        break;
                    }
                }
            }
        }
        (insertions, after[1..].iter().sum())
    }

    /// `E[c]` and μ of the module documentation: keys taken between two merges late in a row, and the growth of ln n.
    fn late_cycle(self) -> (f64, f64) {
        // c balls, thrown into 32 bins until one has t: P(c > m) = m!/32^m · [z^m] (Σ_{i<t} z^i/i!)³².
        let thread_queue = self.thread_queue as usize;
        let mut bin = vec![1.0; thread_queue];
        for i in 1..thread_queue {
            bin[i] = bin[i - 1] / i as f64;
        }
        let mut bins = vec![1.0];
        for _ in 0..LANES {
            let mut product = vec![0.0; bins.len() + thread_queue - 1];
            for (i, a) in bins.iter().enumerate() {
                for (j, b) in bin.iter().enumerate() {
                    product[i + j] += a * b;
                }
            }
            bins = product;
        }
        let (mut taken, mut growth) = (0.0, 0.0);
        let mut orders = 1.0;
        for (m, coefficient) in bins.iter().enumerate() {
            let more = coefficient * orders;
            taken += more;
            growth += more / (f64::from(self.k) + m as f64);
            orders *= (m + 1) as f64 / LANES as f64;
        }
        (taken, growth)
    }

    /// N₂ as published, before its last step: Σ over steps c = 1..⌈ℓ/32⌉ of 1 − (1 − (k+t)/(32c))³² (paper appendix,
    /// equation 15, left side; a fraction above 1 counts as 1). O(`columns`/32).
    ///
    /// It takes a lane's T₀ for the (k+t)-th smallest key so far. That is low, for T₀ is a leftover of the last merge,
    /// most of them beyond the (k + 32(t−1))-th: the published algorithm inserts 1.03 to 2.3 times as often, the more,
    /// the longer the row and the smaller k/(32t). (The kernel of this crate, which has no T₀, is within 6 % of it.)
    pub fn published_insertions(self, columns: u64) -> f64 {
        let wanted = f64::from(self.k + self.thread_queue);
        let lane = |step: u64| (wanted / (LANES as f64 * step as f64)).min(1.0);
        (1..=columns.div_ceil(LANES as u64)).map(|step| 1.0 - (1.0 - lane(step)).powi(LANES as i32)).sum()
    }

    /// N₂ as published: (k+t)·(1 + 1/2 + .. + 1/c), c = ⌈ℓ/32⌉, which is about (k+t)·ln(c) (paper appendix, equation
    /// 15, right side, and the sum after it). O(`columns`/32).
    ///
    /// The first-order term of [`Self::published_insertions`]: close to it if most steps come after the (k+t)-th. In
    /// short rows it exceeds the number of steps. It is 0.7 to 10 times the count of the published algorithm.
    pub fn published_insertions_first_order(self, columns: u64) -> f64 {
        let harmonic: f64 = (1..=columns.div_ceil(LANES as u64)).map(|step| 1.0 / step as f64).sum();
        f64::from(self.k + self.thread_queue) * harmonic
    }

    /// N₃ as published for a single lane, π(ℓ, k, t, 1): the expectation of ⌊D/t⌋, where D counts the keys that are
    /// among the k smallest when they are read (paper appendix, equations 16 to 18). O(`columns` · t).
    ///
    /// Exact for t = 1, where it is k + k(H_ℓ − H_k). For longer queues it is low by 1 to 21 % (t from 2 to 8): keys
    /// that no longer are among the k smallest pass a bound that waits for the next merge.
    pub fn published_merges_one_lane(self, columns: u64) -> f64 {
        // ⌊D/t⌋ = (D − D mod t)/t, so the distribution of D mod t is enough; γ(ℓ, m, k) itself would need ℓ² terms.
        let thread_queue = self.thread_queue as usize;
        let mut total = 0.0;
        let mut rest = vec![0.0; thread_queue];
        rest[0] = 1.0;
        for n in 1..=columns {
            let among = (f64::from(self.k) / n as f64).min(1.0);
            total += among;
            let wrapped = rest[thread_queue - 1];
            for i in (1..thread_queue).rev() {
                rest[i] += among * (rest[i - 1] - rest[i]);
            }
            rest[0] += among * (wrapped - rest[0]);
        }
        let rest: f64 = rest.iter().enumerate().map(|(i, probability)| i as f64 * probability).sum();
        (total - rest) / f64::from(self.thread_queue)
    }

    /// N₃ as published for a warp: the upper bound w/t · (⌈k/w⌉ + Σ_{i=1}^{⌈ℓ/w⌉−⌈k/w⌉} k/(w(⌈k/w⌉ + i))), w = 32
    /// (paper appendix, equation 19, divided by t as the sentence after it says; it assumes k ≥ 32). O(`columns`/32).
    ///
    /// It counts a separate merge for each lane, but the warp merges all lanes at once: it is 5 to 16 times the true
    /// count.
    pub fn published_merges_bound(self, columns: u64) -> f64 {
        let lanes = LANES as u64;
        let full = u64::from(self.k).div_ceil(lanes);
        let steps = columns.div_ceil(lanes);
        let later: f64 = (full + 1..=steps).map(|step| f64::from(self.k) / (lanes * step) as f64).sum();
        LANES as f64 / f64::from(self.thread_queue) * (full.min(steps) as f64 + later)
    }

    /// Costs as published: C₁ = 1 comparison with T₀; C₂ = t for an insertion sort; C₃ = O(t·log(32t)² + k·log max(k,
    /// 32t)) (paper section 4.3), with the constants of its networks: each of t registers takes part in every step of
    /// the sort, each of t + k/32 in every step of the merge ([`sort_steps`], [`merge_steps`]).
    pub fn published_costs(self) -> Costs {
        let thread_queue = self.thread_queue as usize;
        let registers = self.warp_queue as usize / LANES;
        let sort = thread_queue * sort_steps(LANES * thread_queue);
        let merge = (registers + thread_queue) * merge_steps(self.warp_queue as usize, LANES * thread_queue);
        Costs { step: 1.0, insertion: f64::from(self.thread_queue), merge: (sort + merge) as f64 }
    }

    /// Costs of the kernel of this crate: C₁ = 1, the comparison with the bound; C₂ = t moves, for the queues are
    /// stacks; C₃ the comparisons of the networks as they are
    /// (`warpann_kernels::select::networks::{warp_sort, warp_merge_keep}`), which drop the entries that a merge pushes
    /// out of the warp queue.
    pub fn kernel_costs(self) -> Costs {
        let thread_queue = self.thread_queue as usize;
        let registers = self.warp_queue as usize / LANES;
        let program = sort_program(thread_queue);
        let sort: usize = program.steps[..program.len]
            .iter()
            .map(|step| match step {
                Step::None => 0,
                Step::Exchange(..) => 1,
                Step::ExchangeReversed(..) => 2,
                Step::MergeLanes(_) => 5,
                Step::SortLanes(_) => 15,
            })
            .sum();
        // The smaller of each pair, the strides of 32 and more (all within a lane), the five below.
        let merge = thread_queue.min(registers) + registers / 2 * registers.ilog2() as usize + 5 * registers;
        Costs { step: 1.0, insertion: f64::from(self.thread_queue), merge: (sort + merge) as f64 }
    }
}

/// The bound after `seen` keys, as weighted fractions of all possible keys below it: those of Beta(k, seen − k + 1),
/// and 1 where `seen` is below k.
///
/// The trapezoidal rule over x = ln(p/(1−p)), where the density is e^{kx}/(1 + e^x)^{seen+1} but for a factor: smooth,
/// and falling off exponentially on both sides, so that steps of half a standard deviation leave an error below 10⁻⁵.
fn bounds(k: u32, seen: usize) -> Vec<(f64, f64)> {
    let (k, seen) = (f64::from(k), seen as f64);
    if seen < k {
        return vec![(1.0, 1.0)];
    }
    let others = seen - k + 1.0;
    let log_density = |x: f64| k * x - (seen + 1.0) * x.exp().ln_1p();
    let centre = (k / others).ln();
    let step = (1.0 / k + 1.0 / others).sqrt() / 2.0;
    let peak = log_density(centre);
    let side = |direction: f64| {
        (0..)
            .map(move |i| centre + step * direction * (f64::from(i) + 0.5))
            .map(move |x| ((log_density(x) - peak).exp(), 1.0 / (1.0 + (-x).exp())))
            .take_while(|&(weight, _)| weight > NEGLIGIBLE)
    };
    let mut points: Vec<_> = side(-1.0).chain(side(1.0)).collect();
    let total: f64 = points.iter().map(|point| point.0).sum();
    points.iter_mut().for_each(|point| point.0 /= total);
    points
}

/// xⁿ for n up to 32: the lanes of a warp, mostly all of them.
#[inline]
fn power(x: f64, n: usize) -> f64 {
    if n == LANES {
        let x4 = (x * x) * (x * x);
        let x16 = (x4 * x4) * (x4 * x4);
        x16 * x16
    } else {
        x.powi(n as i32)
    }
}

/// ∫ f(s) ds from `first` to `last`, by the midpoint rule in ln s. For f that is smooth in ln s.
fn integrate_by_log(first: f64, last: f64, f: impl Fn(f64) -> f64) -> f64 {
    const PIECES: u32 = 1000;
    let width = (last / first).ln() / f64::from(PIECES);
    let place = |i: u32| first * (width * (f64::from(i) + 0.5)).exp();
    (0..PIECES).map(place).map(|s| f(s) * s * width).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) -> bool {
        (a - b).abs() <= tolerance * b.abs()
    }

    #[test]
    fn shapes_are_the_kernels() {
        let queues =
            |k| WarpSelectShape::of_kernel(k).map(|shape| (shape.k(), shape.warp_queue(), shape.thread_queue()));
        for k in [0, 1, 1025, usize::MAX] {
            assert_eq!(queues(k), None);
        }
        assert_eq!(queues(2), Some((2, 32, 2)));
        assert_eq!(queues(33), Some((33, 64, 3)));
        assert_eq!(queues(1024), Some((1024, 1024, 8)));
        assert_eq!(WarpSelectShape::new(33, 32, 2), None);
        assert_eq!(WarpSelectShape::new(32, 32, 0), None);
        assert_eq!(WarpSelectShape::new(32, 32, 33), None);
        assert_eq!(WarpSelectShape::new(2, 33, 2), None);
        assert_eq!(WarpSelectShape::new(2, 2048, 2), None);
    }

    /// The quadrature has the moments of the beta distribution: mean k/(n+1), variance k(n−k+1)/((n+1)²(n+2)).
    #[test]
    fn bounds_have_the_beta_distribution() {
        for (k, seen) in [(1, 1), (1, 32), (1, 32_768), (10, 32), (32, 32), (32, 64), (1000, 1024), (1024, 32_768)] {
            let (kf, n) = (f64::from(k), seen as f64);
            let points = bounds(k, seen);
            let mean: f64 = points.iter().map(|(weight, p)| weight * p).sum();
            let variance: f64 = points.iter().map(|(weight, p)| weight * (p - mean).powi(2)).sum();
            assert!(close(mean, kf / (n + 1.0), 1e-5), "{k} of {seen}: {mean}");
            let expected = kf * (n - kf + 1.0) / ((n + 1.0).powi(2) * (n + 2.0));
            assert!(close(variance, expected, 1e-5), "{k} of {seen}: {variance}, not {expected}");
            assert!(points.len() < 100);
        }
        assert_eq!(bounds(33, 32), [(1.0, 1.0)]);
    }

    /// Rows that fill the queue in lockstep: every step inserts, every t-th merges, and one merge ends the row.
    #[test]
    fn short_rows_are_counted_exactly() {
        let shape = WarpSelectShape::of_kernel(1024).unwrap();
        for (columns, steps, merges) in
            [(0, 0.0, 1.0), (1, 1.0, 1.0), (255, 8.0, 2.0), (256, 8.0, 2.0), (1000, 32.0, 5.0)]
        {
            let counts = shape.kernel_counts(columns);
            assert_eq!(counts.steps, steps);
            assert!(
                close(counts.insertions, steps, 1e-9) && close(counts.merges, merges, 1e-9),
                "{columns}: {counts:?}"
            );
        }
    }

    /// A balls-in-bins sum that is known: two in one of 32 bins take 1 + Q(32) balls, Q Ramanujan's function.
    #[test]
    fn late_cycles_are_those_of_balls_in_bins() {
        let ramanujan: f64 = (1..=32).map(|m| (0..m).map(|i| 1.0 - f64::from(i) / 32.0).product::<f64>()).sum();
        let (taken, _) = WarpSelectShape::new(32, 32, 2).unwrap().late_cycle();
        assert!(close(taken, 1.0 + ramanujan, 1e-12), "{taken}");
        // With t = 1 each key is a merge: one ball, and ln n grows by 1/k.
        assert_eq!(WarpSelectShape::new(4, 32, 1).unwrap().late_cycle(), (1.0, 0.25));
    }

    /// Another 1024 steps give the same counts, computed one by one or by the rates of late rows.
    #[test]
    fn the_continuation_agrees_with_the_chain() {
        for k in [2, 10, 32, 64, 128, 256, 512, 1024] {
            let shape = WarpSelectShape::of_kernel(k).unwrap();
            let columns = (2 * EXACT_STEPS * LANES) as u64;
            let [before, late] = [columns / 2, columns].map(|columns| shape.kernel_counts(columns));
            let chain = shape.counts_from(columns, 2 * EXACT_STEPS);
            let [merges, insertions] = [late.merges - before.merges, late.insertions - before.insertions];
            assert!(close(merges, chain.merges - before.merges, 0.02), "k = {k}: {before:?} {late:?} {chain:?}");
            assert!(close(insertions, chain.insertions - before.insertions, 0.01), "k = {k}: {late:?} {chain:?}");
        }
    }

    /// The published formulas by hand, for k = 32, t = 2.
    #[test]
    fn published_formulas_are_the_papers() {
        let shape = WarpSelectShape::of_kernel(32).unwrap();
        // c = 1: a lane inserts for certain, for k + t > 32. c = 2: with probability 34/64.
        assert_eq!(shape.published_insertions(32), 1.0);
        assert!(close(shape.published_insertions(64), 2.0 - (30.0f64 / 64.0).powi(32), 1e-12));
        assert_eq!(shape.published_insertions_first_order(33), 34.0 * 1.5);
        // 32/2 · (1 + 32/(32·2) + 32/(32·3)).
        assert!(close(shape.published_merges_bound(96), 16.0 * (1.0 + 0.5 + 1.0 / 3.0), 1e-12));
        // The first k keys are among the k smallest: D = 32 and ⌊D/2⌋ = 16.
        assert_eq!(shape.published_merges_one_lane(32), 16.0);
        let empty = [
            shape.published_insertions(0),
            shape.published_insertions_first_order(0),
            shape.published_merges_one_lane(0),
            shape.published_merges_bound(0),
        ];
        assert_eq!(empty, [0.0; 4]);
    }

    #[test]
    fn costs_add_up() {
        let counts = Counts { steps: 100.0, insertions: 10.0, merges: 2.0 };
        assert_eq!(counts.cost(&Costs { step: 1.0, insertion: 3.0, merge: 50.0 }), 230.0);
        // k = 32, t = 2: the sort of 64 entries (two of 32, two reversed, two merges of 5); one comparison and a merge
        // of 5.
        let shape = WarpSelectShape::of_kernel(32).unwrap();
        assert_eq!(shape.kernel_costs(), Costs { step: 1.0, insertion: 2.0, merge: (30 + 2 + 10 + 1 + 5) as f64 });
        // ½·6·7 steps of two registers; log₂ 64 + 1 of three.
        assert_eq!(shape.published_costs(), Costs { step: 1.0, insertion: 2.0, merge: (2 * 21 + 3 * 7) as f64 });
        for k in [2, 64, 128, 256, 512, 1024] {
            let shape = WarpSelectShape::of_kernel(k).unwrap();
            assert!(shape.kernel_costs().merge < shape.published_costs().merge);
        }
    }
}
