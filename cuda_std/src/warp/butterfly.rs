//! Butterfly reductions: in each stage a lane exchanges values with the lane whose number differs in one bit. After
//! five stages every lane has the result over all 32.
//!
//! All functions work on the full warp: every lane must arrive (the mask is [`FULL_MASK`]). Each stage takes one
//! `shfl.sync.bfly.b32` for 32 bits of each value; the prefix sums use `shfl.sync.up.b32` instead.

#[cfg(doc)]
use super::reduce_add;
use super::{FULL_MASK, Shuffle, lane_id, shuffle_up, shuffle_xor};
use crate::math;

/// A value that lanes exchange whole: a number, or a pair or a triple of such values. A struct implements it by
/// exchanging its fields one after the other.
pub trait Exchange: Copy {
    /// The value that lane `lane_id() ^ lane_mask` passed. `lane_mask` below 32; every lane of the warp arrives.
    #[track_caller]
    fn exchange(self, lane_mask: u32) -> Self;
}

impl<T: Shuffle> Exchange for T {
    #[inline(always)]
    fn exchange(self, lane_mask: u32) -> Self {
        shuffle_xor(FULL_MASK, self, lane_mask)
    }
}

impl<A: Exchange, B: Exchange> Exchange for (A, B) {
    #[inline(always)]
    fn exchange(self, lane_mask: u32) -> Self {
        (self.0.exchange(lane_mask), self.1.exchange(lane_mask))
    }
}

impl<A: Exchange, B: Exchange, C: Exchange> Exchange for (A, B, C) {
    #[inline(always)]
    fn exchange(self, lane_mask: u32) -> Self {
        (self.0.exchange(lane_mask), self.1.exchange(lane_mask), self.2.exchange(lane_mask))
    }
}

/// The values of all lanes, joined; every lane gets the result. It is computed by `v = join(v, v.exchange(m))` for m =
/// 16, 8, 4, 2, 1, in that order.
///
/// All lanes get the same bits if `join` commutes, and the result does not depend on the order of lanes if `join` is
/// associative as well. [`butterfly_sum`], [`butterfly_min`] and [`butterfly_argmin`] are butterflies with a `join` of
/// their own.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has two elements.
/// #[kernel]
/// pub unsafe fn factorial_and_greatest(out: PtrMut<u64>) {
///     let lane = u64::from(warp::lane_id());
///     let own = (if lane < 20 { lane + 1 } else { 1 }, lane);
///     let (product, greatest) = warp::butterfly(own, |a, b| (a.0 * b.0, a.1.max(b.1)));
///     // SAFETY: two elements.
///     unsafe {
///         if lane == 0 {
///             global::store(*out, product);
///             global::store(out.add(1), greatest);
///         }
///     }
/// }
///
/// let mut out = Buffer::<u64>::new(2);
/// let launch = FactorialAndGreatest { out: out.as_mut_ptr() };
/// // SAFETY: two elements.
/// unsafe { emulator::launch(&FactorialAndGreatest::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec(), [2432902008176640000, 31]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn butterfly<T: Exchange>(value: T, join: impl Fn(T, T) -> T) -> T {
    let mut value = value;
    // `while`, not an iterator over an array: the device build would put that array in local memory.
    let mut distance = 16;
    while distance > 0 {
        value = join(value, value.exchange(distance));
        distance /= 2;
    }
    value
}

/// A type with a minimum and a maximum. For floating-point numbers, the minimum and the maximum of NaN and a number are
/// the number.
pub trait MinMax: Shuffle {
    /// The smaller of `self` and `other`.
    fn lesser(self, other: Self) -> Self;
    /// The larger of `self` and `other`.
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
    f64: math::min_f64, math::max_f64;
    u32: Ord::min, Ord::max;
    i32: Ord::min, Ord::max;
    u64: Ord::min, Ord::max;
    i64: Ord::min, Ord::max;
}

/// A type with a total order: [`Ord`] for integers, and [`f32::total_cmp`] or [`f64::total_cmp`] for floating-point
/// numbers (−NaN, −∞, .., −0, +0, .., +∞, NaN).
pub trait TotalOrder: Shuffle {
    /// An integer of the same size that is exchanged and compared in place of the value, in the same order.
    #[doc(hidden)]
    type Key: Shuffle + Ord;
    #[doc(hidden)]
    fn to_key(self) -> Self::Key;
    #[doc(hidden)]
    fn from_key(key: Self::Key) -> Self;
}

macro_rules! total_order {
    ($($t:ty: $key:ty, $to_key:expr, $from_key:expr;)*) => {$(
        impl TotalOrder for $t {
            type Key = $key;
            #[inline(always)]
            fn to_key(self) -> $key {
                $to_key(self)
            }
            #[inline(always)]
            fn from_key(key: $key) -> Self {
                $from_key(key)
            }
        }
    )*};
}

/// Flips all bits except the sign if the sign is set. The results for the bits of floats compare as signed integers in
/// the total order of the floats. The function is its own inverse.
#[inline(always)]
fn ordered_32(bits: i32) -> i32 {
    bits ^ (bits >> 31) & i32::MAX
}

/// [`ordered_32`] for 64 bits.
#[inline(always)]
fn ordered_64(bits: i64) -> i64 {
    bits ^ (bits >> 63) & i64::MAX
}

total_order! {
    u32: u32, core::convert::identity, core::convert::identity;
    i32: i32, core::convert::identity, core::convert::identity;
    u64: u64, core::convert::identity, core::convert::identity;
    i64: i64, core::convert::identity, core::convert::identity;
    f32: i32, |x: f32| ordered_32(x.to_bits() as i32), |key| f32::from_bits(ordered_32(key) as u32);
    f64: i64, |x: f64| ordered_64(x.to_bits() as i64), |key| f64::from_bits(ordered_64(key) as u64);
}

/// A type that lanes can sum. Integers wrap around.
pub trait Sum: Shuffle {
    /// The sum of no values.
    const ZERO: Self;
    /// `self + other`; integers wrap around.
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

/// The largest value of the warp; every lane gets it.
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
    butterfly(value, T::greater)
}

/// The smallest value of the warp; every lane gets it.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `out` has 32 elements.
/// #[kernel]
/// pub unsafe fn spread_min(out: PtrMut<i32>) {
///     let lane = warp::lane_id();
///     // SAFETY: lane < 32.
///     unsafe { global::store(out.add(lane as usize), warp::butterfly_min(7 - lane as i32)) }
/// }
///
/// let mut out = Buffer::<i32>::new(32);
/// let launch = SpreadMin { out: out.as_mut_ptr() };
/// // SAFETY: `out` has 32 elements.
/// unsafe { emulator::launch(&SpreadMin::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(out.to_vec(), [-24; 32]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn butterfly_min<T: MinMax>(value: T) -> T {
    butterfly(value, T::lesser)
}

/// The smallest value of the warp in the order of [`TotalOrder`], and the `payload` of its lane; every lane gets both.
/// Among lanes with equal values, the smallest payload wins.
///
/// ```
/// # use cuda_std::{Ptr, PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, warp};
/// /// # Safety
/// /// `values` has 32 elements, `first` one.
/// #[kernel]
/// pub unsafe fn where_smallest(values: Ptr<f32>, first: PtrMut<u32>) {
///     let lane = warp::lane_id();
///     // SAFETY: lane < 32; one element.
///     unsafe {
///         let (_, at) = warp::butterfly_argmin(global::load(values.add(lane as usize)), lane);
///         if lane == 0 {
///             global::store(*first, at);
///         }
///     }
/// }
///
/// let values = Buffer::from_slice(&std::array::from_fn::<f32, 32, _>(|i| if i % 10 == 4 { -0.5 } else { i as f32 }));
/// let mut first = Buffer::<u32>::new(1);
/// let launch = WhereSmallest { values: values.as_ptr(), first: first.as_mut_ptr() };
/// // SAFETY: 32 elements and one.
/// unsafe { emulator::launch(&WhereSmallest::KERNEL, LaunchConfig::linear(1, 32), launch)? };
/// assert_eq!(first.to_vec(), [4]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[track_caller]
#[inline(always)]
pub fn butterfly_argmin<T: TotalOrder, P: Shuffle + Ord>(value: T, payload: P) -> (T, P) {
    let best = butterfly((value.to_key(), payload), |best, other| if other < best { other } else { best });
    (T::from_key(best.0), best.1)
}

/// The largest value of the warp in the order of [`TotalOrder`], and the `payload` of its lane; every lane gets both.
/// Among lanes with equal values, the smallest payload wins. NaN is the largest float. [`butterfly_argmin`] has an
/// example.
#[track_caller]
#[inline(always)]
pub fn butterfly_argmax<T: TotalOrder, P: Shuffle + Ord>(value: T, payload: P) -> (T, P) {
    let best = butterfly((value.to_key(), payload), |best, other| {
        if other.0 > best.0 || other.0 == best.0 && other.1 < best.1 { other } else { best }
    });
    (T::from_key(best.0), best.1)
}

/// The smallest and the largest value of the warp; every lane gets both.
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
    butterfly((value, value), |a, b| (a.0.lesser(b.0), a.1.greater(b.1)))
}

/// Returns the largest value of the warp in even lanes and the smallest in odd lanes.
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

/// The sum over the warp; every lane gets it. It is computed by `v = v + shuffle_xor(v, m)` for m = 16, 8, 4, 2, 1, in
/// that order.
///
/// Addition commutes, so all lanes get the same bits, and every back end gives the same bits. For floating-point
/// numbers the order is a tree: first the values of lanes l and l + 16 are added, then the sums of l and l + 8, and so
/// on; each addition rounds to nearest (`add.rn.f32`, `add.rn.f64`). −0 and NaN follow the rules of addition. For
/// 32-bit integers, [`reduce_add`] is one instruction.
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
    butterfly(value, T::plus)
}

/// Prefix sum: lane `l` gets the sum over lanes 0..=l.
///
/// There are five stages. In stage s, each lane l ≥ 2^s adds the value of lane l − 2^s as the left operand and its
/// value as the right one, so the order of additions is fixed for floating-point numbers.
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

/// Exclusive prefix sum: lane `l` gets the sum over lanes 0..l, and lane 0 gets zero.
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
