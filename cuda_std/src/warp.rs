//! Warp collectives: shuffles, votes, matches, reductions, and the butterfly family built on them.
//!
//! Each function with a `mask` follows the rule of the crate's section "Who must arrive". Lane `l` of a warp is the
//! thread whose index in its block (x fastest) is `l` modulo 32.

use crate::{Site, imp};
use core::panic::Location;

mod butterfly;
mod words;

pub use butterfly::{
    Exchange, MinMax, Sum, TotalOrder, butterfly, butterfly_argmax, butterfly_argmin, butterfly_max, butterfly_min,
    butterfly_min_max, butterfly_sum, even_odd_max_min, exclusive_sum, inclusive_sum, pair_swap,
};
pub(crate) use words::Words;

/// Number of lanes of a warp.
pub const WARP_SIZE: u32 = 32;

/// The mask that names all lanes.
pub const FULL_MASK: u32 = u32::MAX;

/// This thread's lane, 0..32 (`%laneid`).
#[inline(always)]
pub fn lane_id() -> u32 {
    imp::warp::lane_id()
}

/// This thread's warp within a one-dimensional block: `thread_idx_x() / 32`.
#[inline(always)]
pub fn warp_id() -> u32 {
    crate::thread::thread_idx_x() / WARP_SIZE
}

/// Waits until the lanes of `mask` have arrived. What each wrote before is then visible to all of them
/// (`bar.warp.sync`).
#[track_caller]
#[inline(always)]
pub fn sync_warp(mask: u32) {
    imp::warp::sync_warp(mask, Location::caller());
}

mod sealed {
    pub trait Sealed {}
}

/// A value that lanes can exchange: one shuffle for 32 bits, two for 64.
pub trait Shuffle: Copy + sealed::Sealed {
    #[doc(hidden)]
    type Pattern: Words;
    #[doc(hidden)]
    fn into_pattern(self) -> Self::Pattern;
    #[doc(hidden)]
    fn from_pattern(bits: Self::Pattern) -> Self;
}

macro_rules! shuffle {
    ($($t:ty: $bits_type:ty, $bits:expr, $back:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Shuffle for $t {
            type Pattern = $bits_type;
            #[inline(always)]
            fn into_pattern(self) -> $bits_type {
                $bits(self)
            }
            #[inline(always)]
            fn from_pattern(bits: $bits_type) -> Self {
                $back(bits)
            }
        }
    )*};
}

shuffle! {
    u32: u32, core::convert::identity, core::convert::identity;
    i32: u32, i32::cast_unsigned, u32::cast_signed;
    f32: u32, f32::to_bits, f32::from_bits;
    u64: u64, core::convert::identity, core::convert::identity;
    i64: u64, i64::cast_unsigned, u64::cast_signed;
    f64: u64, f64::to_bits, f64::from_bits;
}

/// The value that lane `lane_id() ^ lane_mask` passed (`shfl.sync.bfly.b32`). `lane_mask` below 32.
#[track_caller]
#[inline(always)]
pub fn shuffle_xor<T: Shuffle>(mask: u32, value: T, lane_mask: u32) -> T {
    T::from_pattern(imp::warp::shuffle_xor(mask, value.into_pattern(), lane_mask, Location::caller()))
}

/// The value that lane `lane_id() - delta` passed, or the value of the calling lane if there is no such lane
/// (`shfl.sync.up.b32`).
#[track_caller]
#[inline(always)]
pub fn shuffle_up<T: Shuffle>(mask: u32, value: T, delta: u32) -> T {
    T::from_pattern(imp::warp::shuffle_up(mask, value.into_pattern(), delta, Location::caller()))
}

/// The value that lane `lane_id() + delta` passed, or the value of the calling lane if there is no such lane
/// (`shfl.sync.down.b32`).
#[track_caller]
#[inline(always)]
pub fn shuffle_down<T: Shuffle>(mask: u32, value: T, delta: u32) -> T {
    T::from_pattern(imp::warp::shuffle_down(mask, value.into_pattern(), delta, Location::caller()))
}

/// The value that lane `lane % 32` passed (`shfl.sync.idx.b32`).
#[track_caller]
#[inline(always)]
pub fn shuffle_idx<T: Shuffle>(mask: u32, value: T, lane: u32) -> T {
    T::from_pattern(imp::warp::shuffle_idx(mask, value.into_pattern(), lane, Location::caller()))
}

/// Whether any lane of `mask` passed `true` (`vote.sync.any`).
#[track_caller]
#[inline(always)]
pub fn any(mask: u32, predicate: bool) -> bool {
    imp::warp::any(mask, predicate, Location::caller())
}

/// Whether every lane of `mask` passed `true` (`vote.sync.all`).
#[track_caller]
#[inline(always)]
pub fn all(mask: u32, predicate: bool) -> bool {
    imp::warp::all(mask, predicate, Location::caller())
}

/// The lanes of `mask` that passed `true`, as a bit set (`vote.sync.ballot`).
#[track_caller]
#[inline(always)]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    imp::warp::ballot(mask, predicate, Location::caller())
}

/// The lanes of `mask` that passed the same value as the calling lane, as a bit set (`match.any.sync.b32`).
#[track_caller]
#[inline(always)]
pub fn match_any(mask: u32, value: u32) -> u32 {
    imp::warp::match_any(mask, value, Location::caller())
}

/// `(mask, true)` if all lanes of `mask` passed the same value, else `(0, false)`.
///
/// The implementation uses `match.any.sync`, because the intrinsic of `match.all.sync` returns a type that Rust cannot
/// name. The result is the same.
#[track_caller]
#[inline(always)]
pub fn match_all(mask: u32, value: u32) -> (u32, bool) {
    let equal = imp::warp::match_any(mask, value, Location::caller()) == mask;
    (if equal { mask } else { 0 }, equal)
}

/// A 32-bit integer. A warp reduces one value per lane in one instruction (sm_80 and later).
///
/// For floating-point numbers there is no such instruction; [`butterfly_sum`], [`butterfly_min`] and [`butterfly_max`]
/// reduce them over the full warp.
pub trait Reduce: Shuffle {
    #[doc(hidden)]
    fn to_word(self) -> u32;
    #[doc(hidden)]
    fn from_word(word: u32) -> Self;
    #[doc(hidden)]
    fn reduce_min(self, mask: u32, site: &'static Location<'static>) -> Self;
    #[doc(hidden)]
    fn reduce_max(self, mask: u32, site: &'static Location<'static>) -> Self;
}

macro_rules! reducible {
    ($($t:ty: $min:ident, $max:ident;)*) => {$(
        impl Reduce for $t {
            #[inline(always)]
            fn to_word(self) -> u32 {
                self as u32
            }
            #[inline(always)]
            fn from_word(word: u32) -> Self {
                word as Self
            }
            #[inline(always)]
            fn reduce_min(self, mask: u32, site: Site) -> Self {
                imp::warp::$min(mask, self, site)
            }
            #[inline(always)]
            fn reduce_max(self, mask: u32, site: Site) -> Self {
                imp::warp::$max(mask, self, site)
            }
        }
    )*};
}

reducible! {
    u32: reduce_min, reduce_max;
    i32: reduce_min_i32, reduce_max_i32;
}

/// The smallest value over the lanes of `mask`; each of them gets it (`redux.sync.min.u32` or `.s32`).
#[track_caller]
#[inline(always)]
pub fn reduce_min<T: Reduce>(mask: u32, value: T) -> T {
    value.reduce_min(mask, Location::caller())
}

/// The largest value over the lanes of `mask`; each of them gets it (`redux.sync.max.u32` or `.s32`).
#[track_caller]
#[inline(always)]
pub fn reduce_max<T: Reduce>(mask: u32, value: T) -> T {
    value.reduce_max(mask, Location::caller())
}

macro_rules! reduce {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        #[inline(always)]
        pub fn $name<T: Reduce>(mask: u32, value: T) -> T {
            T::from_word(imp::warp::$name(mask, value.to_word(), Location::caller()))
        }
    )*};
}

reduce! {
    /// The sum modulo 2³² over the lanes of `mask`; each of them gets it (`redux.sync.add.s32`, whose result has the
    /// same bits as `.u32`). For floating-point numbers and 64-bit integers, use [`butterfly_sum`].
    reduce_add;
    /// The bitwise and over the lanes of `mask`; each of them gets it (`redux.sync.and.b32`).
    reduce_and;
    /// The bitwise or over the lanes of `mask`; each of them gets it (`redux.sync.or.b32`).
    reduce_or;
    /// The bitwise exclusive or over the lanes of `mask`; each of them gets it (`redux.sync.xor.b32`).
    reduce_xor;
}
