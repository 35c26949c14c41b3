//! The butterfly family: each stage exchanges values with the lane whose number differs in one bit, so that after five
//! stages every lane knows about all 32.
//!
//! All of these are over the full warp: every lane must arrive, and pays one shuffle a stage and value.

use super::{FULL_MASK, Shuffle, lane_id, shuffle_up, shuffle_xor};
use crate::math;

/// A value with a smaller and a larger of two. For floating-point numbers NaN loses against a number.
pub trait MinMax: Shuffle {
    /// The smaller of two.
    fn lesser(self, other: Self) -> Self;
    /// The larger of two.
    fn greater(self, other: Self) -> Self;
}

macro_rules! min_max {
    ($($t:ty: $min:path, $max:path;)*) => {$(
        impl MinMax for $t {
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                $min(self, other)
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                $max(self, other)
            }
        }
    )*};
}

min_max! {
    f32: math::min_f32, math::max_f32;
    u32: Ord::min, Ord::max;
    i32: Ord::min, Ord::max;
    u64: Ord::min, Ord::max;
    i64: Ord::min, Ord::max;
}

/// A value that can be summed over lanes; integers modulo their size.
pub trait Sum: Shuffle {
    /// The sum of nothing.
    const ZERO: Self;
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
}

macro_rules! sum {
    ($($t:ty: $zero:expr, $plus:expr;)*) => {$(
        impl Sum for $t {
            const ZERO: Self = $zero;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }
        }
    )*};
}

sum! {
    f32: 0.0, core::ops::Add::add;
    f64: 0.0, core::ops::Add::add;
    u32: 0, u32::wrapping_add;
    i32: 0, i32::wrapping_add;
    u64: 0, u64::wrapping_add;
    i64: 0, i64::wrapping_add;
}

/// Exchanges `value` between the lanes of each pair (0, 1), (2, 3), ..: the result is the partner's value.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has 32 elements.
/// #[kernel]
/// pub unsafe fn swap_pairs(out: PtrMut<u32>) {
///     let lane = warp::lane_id();
///     // SAFETY: lane < 32.
///     unsafe { global::store(out.add(lane as usize), warp::pair_swap(10 * lane)) }
/// }
///
/// let mut out = Buffer::<u32>::new(32);
/// let launch = SwapPairs { out: out.as_mut_ptr() };
/// // SAFETY: `out` has 32 elements.
/// unsafe { emulator::launch(&SwapPairs::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec()[..4], [10, 0, 30, 20]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn pair_swap<T: Shuffle>(value: T) -> T {
    shuffle_xor(FULL_MASK, value, 1)
}

/// The largest value of the warp, to every lane.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `x` has 32 elements.
/// #[kernel]
/// pub unsafe fn spread_max(x: PtrMut<f32>) {
///     // SAFETY: lane < 32.
///     unsafe {
///         let p = x.add(warp::lane_id() as usize);
///         global::store(p, warp::butterfly_max(global::load(p)));
///     }
/// }
///
/// let mut x = Buffer::from_slice(&std::array::from_fn::<f32, 32, _>(|i| if i == 7 { 1000.0 } else { i as f32 }));
/// let launch = SpreadMax { x: x.as_mut_ptr() };
/// // SAFETY: `x` has 32 elements.
/// unsafe { emulator::launch(&SpreadMax::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(x.to_vec(), [1000.0; 32]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn butterfly_max<T: MinMax>(value: T) -> T {
    let mut value = value;
    // `while`, not an iterator over an array: the device build leaves such an array in local memory.
    let mut distance = 16;
    while distance > 0 {
        value = value.greater(shuffle_xor(FULL_MASK, value, distance));
        distance /= 2;
    }
    value
}

/// The smallest and the largest value of the warp, found at the same time, to every lane.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has 64 elements.
/// #[kernel]
/// pub unsafe fn extremes(out: PtrMut<u32>) {
///     let lane = warp::lane_id();
///     let (min, max) = warp::butterfly_min_max(100 + lane);
///     // SAFETY: 32 + lane < 64.
///     unsafe {
///         global::store(out.add(lane as usize), min);
///         global::store(out.add(32 + lane as usize), max);
///     }
/// }
///
/// let mut out = Buffer::<u32>::new(64);
/// let launch = Extremes { out: out.as_mut_ptr() };
/// // SAFETY: `out` has 64 elements.
/// unsafe { emulator::launch(&Extremes::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec(), [[100; 32], [131; 32]].concat());
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn butterfly_min_max<T: MinMax>(value: T) -> (T, T) {
    let (mut min, mut max) = (value, value);
    // `while`, not an iterator over an array: the device build leaves such an array in local memory.
    let mut distance = 16;
    while distance > 0 {
        min = min.lesser(shuffle_xor(FULL_MASK, min, distance));
        max = max.greater(shuffle_xor(FULL_MASK, max, distance));
        distance /= 2;
    }
    (min, max)
}

/// The largest value of the warp to even lanes, the smallest to odd lanes.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has 32 elements.
/// #[kernel]
/// pub unsafe fn alternate(out: PtrMut<u32>) {
///     let lane = warp::lane_id();
///     // SAFETY: lane < 32.
///     unsafe { global::store(out.add(lane as usize), warp::even_odd_max_min(32 + lane)) }
/// }
///
/// let mut out = Buffer::<u32>::new(32);
/// let launch = Alternate { out: out.as_mut_ptr() };
/// // SAFETY: `out` has 32 elements.
/// unsafe { emulator::launch(&Alternate::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec(), [63, 32].repeat(16));
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn even_odd_max_min<T: MinMax>(value: T) -> T {
    let (min, max) = butterfly_min_max(value);
    if lane_id().is_multiple_of(2) { max } else { min }
}

/// The sum over the warp, to every lane: `v = v + shuffle_xor(v, m)` for m in 16, 8, 4, 2, 1, in that order.
///
/// Addition commutes, so all lanes get the same bits, and the same bits on every back end.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `x` has 32 elements.
/// #[kernel]
/// pub unsafe fn spread_sum(x: PtrMut<f64>) {
///     // SAFETY: lane < 32.
///     unsafe {
///         let p = x.add(warp::lane_id() as usize);
///         global::store(p, warp::butterfly_sum(global::load(p)));
///     }
/// }
///
/// let mut x = Buffer::from_slice(&std::array::from_fn::<f64, 32, _>(|i| i as f64));
/// let launch = SpreadSum { x: x.as_mut_ptr() };
/// // SAFETY: `x` has 32 elements.
/// unsafe { emulator::launch(&SpreadSum::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(x.to_vec(), [496.0; 32]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn butterfly_sum<T: Sum>(value: T) -> T {
    let mut value = value;
    // `while`, not an iterator over an array: the device build leaves such an array in local memory.
    let mut distance = 16;
    while distance > 0 {
        value = value.plus(shuffle_xor(FULL_MASK, value, distance));
        distance /= 2;
    }
    value
}

/// Prefix sum: lane `l` gets the sum over lanes 0..=l.
///
/// Five stages of doubling reach; in stage s lane l ≥ 2^s adds what lane l − 2^s holds *before* its own (so the order of
/// additions is fixed for floating-point numbers).
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has 32 elements.
/// #[kernel]
/// pub unsafe fn count_up(out: PtrMut<u32>) {
///     let lane = warp::lane_id();
///     // SAFETY: lane < 32.
///     unsafe { global::store(out.add(lane as usize), warp::inclusive_sum(lane)) }
/// }
///
/// let mut out = Buffer::<u32>::new(32);
/// let launch = CountUp { out: out.as_mut_ptr() };
/// // SAFETY: `out` has 32 elements.
/// unsafe { emulator::launch(&CountUp::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec()[..5], [0, 1, 3, 6, 10]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn inclusive_sum<T: Sum>(value: T) -> T {
    let lane = lane_id();
    let mut value = value;
    let mut reach = 1;
    while reach < 32 {
        let before = shuffle_up(FULL_MASK, value, reach);
        value = if lane >= reach { before.plus(value) } else { value };
        reach *= 2;
    }
    value
}

/// Prefix sum without the lane's own value: lane `l` gets the sum over lanes 0..l, lane 0 gets zero.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has 32 elements.
/// #[kernel]
/// pub unsafe fn offsets(out: PtrMut<f32>) {
///     let lane = warp::lane_id();
///     // SAFETY: lane < 32.
///     unsafe { global::store(out.add(lane as usize), warp::exclusive_sum(2.0f32)) }
/// }
///
/// let mut out = Buffer::<f32>::new(32);
/// let launch = Offsets { out: out.as_mut_ptr() };
/// // SAFETY: `out` has 32 elements.
/// unsafe { emulator::launch(&Offsets::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec()[..4], [0.0, 2.0, 4.0, 6.0]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn exclusive_sum<T: Sum>(value: T) -> T {
    let before = shuffle_up(FULL_MASK, inclusive_sum(value), 1);
    if lane_id() == 0 { T::ZERO } else { before }
}
