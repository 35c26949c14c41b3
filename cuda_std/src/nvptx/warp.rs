//! Shuffles, votes, matches and reductions, all through convergent intrinsics.

use crate::{Site, warp::Words};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    fn match_any_(mask: u32, value: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_add(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    fn redux_min(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_max(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.min"]
    fn redux_min_i32(value: i32, mask: u32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    fn redux_max_i32(value: i32, mask: u32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.and"]
    fn redux_and(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    fn redux_or(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.xor"]
    fn redux_xor(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp(mask: u32);
    #[link_name = "llvm.nvvm.read.ptx.sreg.laneid"]
    fn laneid() -> u32;
}

/// The c operand of `shfl`: no sub-warps, and the last lane is 31 (the first is 0 for `up`).
const LAST_LANE: u32 = 31;

macro_rules! shuffles {
    ($($name:ident = $word:ident, $clamp:expr;)*) => {$(
        #[inline(always)]
        pub fn $name<B: Words>(mask: u32, value: B, lane: u32, _: Site) -> B {
            // SAFETY: the caller ensures that the lanes of the mask arrive; the emulator checks it.
            value.map(|word| unsafe { $word(mask, word, lane, $clamp) })
        }
    )*};
}

shuffles! {
    shuffle_xor = shfl_bfly, LAST_LANE;
    shuffle_up = shfl_up, 0;
    shuffle_down = shfl_down, LAST_LANE;
    shuffle_idx = shfl_idx, LAST_LANE;
}

macro_rules! collectives {
    ($($name:ident($mask:ident, $($argument:ident: $t:ty),*) -> $result:ty = $call:expr;)*) => {$(
        #[inline(always)]
        pub fn $name($mask: u32, $($argument: $t,)* _: Site) -> $result {
            // SAFETY: the caller ensures that the lanes of the mask arrive; the emulator checks it.
            unsafe { $call }
        }
    )*};
}

collectives! {
    any(mask, predicate: bool) -> bool = vote_any(mask, predicate);
    all(mask, predicate: bool) -> bool = vote_all(mask, predicate);
    ballot(mask, predicate: bool) -> u32 = vote_ballot(mask, predicate);
    match_any(mask, value: u32) -> u32 = match_any_(mask, value);
    reduce_add(mask, value: u32) -> u32 = redux_add(value, mask);
    reduce_min(mask, value: u32) -> u32 = redux_min(value, mask);
    reduce_max(mask, value: u32) -> u32 = redux_max(value, mask);
    reduce_min_i32(mask, value: i32) -> i32 = redux_min_i32(value, mask);
    reduce_max_i32(mask, value: i32) -> i32 = redux_max_i32(value, mask);
    reduce_and(mask, value: u32) -> u32 = redux_and(value, mask);
    reduce_or(mask, value: u32) -> u32 = redux_or(value, mask);
    reduce_xor(mask, value: u32) -> u32 = redux_xor(value, mask);
}

#[inline(always)]
pub fn lane_id() -> u32 {
    // SAFETY: reads a special register.
    unsafe { laneid() }
}

#[inline(always)]
pub fn sync_warp(mask: u32, _: Site) {
    // SAFETY: the caller ensures that the lanes of the mask arrive; the emulator checks it.
    unsafe { bar_warp(mask) }
}
