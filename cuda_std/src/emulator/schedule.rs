//! Runs the threads of a block.
//!
//! A *pass* resumes each runnable lane of a warp once; each runs to its next collective, barrier or return. In the
//! common case all lanes of the warp then stand in one collective of all of them, which one comparison shows, and the
//! next pass follows. Otherwise the lanes are grouped by what they wait in; groups that are complete go on. If none is,
//! the warp waits at the block's barrier, or it is stuck: a violation.

use super::{
    arena::{Arena, Thread},
    block::Block,
    clock::{LANES, lanes},
    context::{self, CURRENT, Lane, Warp},
    stack::Stacks,
    violation::{Instead, Operation, SourceLocation, Violation, ViolationKind},
};
use crate::Site;
use std::{
    any::Any,
    cell::RefCell,
    panic::{self, AssertUnwindSafe},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a warp may do nothing but wait for other threads' stores.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of passes of a warp between two looks at the clock.
const PASSES: u64 = 1 << 14;
/// From this wait on, a waiting thread pauses and leaves the processor to others.
const SHORT_WAIT: Duration = Duration::from_millis(50);
/// How long it pauses.
const PAUSE: Duration = Duration::from_millis(1);

/// The state of a warp after its passes.
enum Warps {
    /// All threads have returned.
    Done,
    /// All wait at the block's barrier.
    Parked,
    /// It waits in a loop; other warps should run.
    Spinning,
}

thread_local! {
    /// The place of the last panic of an emulated thread.
    static PANICKED_AT: RefCell<Option<SourceLocation>> = const { RefCell::new(None) };
}

/// Makes panics of emulated threads silent and remembers their place; others go to the hook that was there before.
pub fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if CURRENT.get().is_null() {
                previous(info);
            } else {
                PANICKED_AT.set(info.location().map(SourceLocation::from));
            }
        }));
    });
}

/// Runs the blocks from `number` on of the launch, a cluster: one for each arena. `Ok(false)` if they were given up
/// because a block before them failed.
///
/// # Safety
/// The contract of the kernel behind `body`, for these blocks.
pub unsafe fn run_cluster(
    arenas: &mut [Arena],
    number: u64,
    body: &dyn Fn(),
    first_failure: &AtomicU64,
) -> Result<bool, Violation> {
    for (arena, number) in arenas.iter_mut().zip(number..) {
        arena.start_block(number);
    }
    let blocks: Vec<*mut Block> = arenas.iter_mut().map(|arena| &raw mut arena.block).collect();
    // SAFETY: lengthens the lifetime only; all coroutines end, or are unwound, before this function returns.
    let body: &'static dyn Fn() = unsafe { std::mem::transmute::<&dyn Fn(), &'static dyn Fn()>(body) };
    for arena in &mut *arenas {
        arena.block.cluster.blocks.clone_from(&blocks);
        arena.threads.clear();
        for (thread, lane) in arena.lanes.iter_mut().enumerate() {
            let lane: *mut Lane = lane;
            arena.threads.push(Some(Thread::with_stack(arena.stacks.pop(thread), move |yielder, ()| {
                // SAFETY: the lane outlives its coroutine, which runs on this OS thread only.
                unsafe { (*lane).yielder = yielder };
                body();
            })));
        }
    }
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| run_blocks(arenas, first_failure)));
    let running = CURRENT.replace(std::ptr::null_mut());
    // Unwinds the threads that were left in the middle.
    arenas.iter_mut().for_each(|arena| arena.threads.clear());
    match outcome {
        Ok(outcome) => outcome,
        Err(payload) => {
            if let Some(violation) = arenas.iter_mut().find_map(|arena| arena.block.violation.take()) {
                return Err(violation);
            }
            // SAFETY: the lanes are alive, and no thread runs any more.
            let Some(lane) = (unsafe { running.as_ref() }) else { panic::resume_unwind(payload) };
            let location = PANICKED_AT.take().unwrap_or_else(|| lane.site.into());
            let kind = ViolationKind::Panic { message: message(payload.as_ref()) };
            // SAFETY: the block of a lane is that of its arena.
            Err(context::violation(unsafe { &*lane.block }, lane.index, location, kind))
        }
    }
}

/// The text of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a value that is not text".to_owned()
    }
}

/// Gives the processor to the threads for which warps wait: at once at first, and with pauses if they wait for long.
fn rest(warps: &[Warp]) {
    let longest = warps.iter().filter_map(|warp| warp.spinning_since).map(|since| since.elapsed()).max();
    if longest.is_some_and(|waited| waited > SHORT_WAIT) {
        std::thread::sleep(PAUSE);
    } else {
        std::thread::yield_now();
    }
}

/// The state of a block after its warps ran.
enum Stopped {
    /// All threads have returned.
    Returned,
    /// All threads wait at the barrier of the cluster.
    AtClusterBarrier,
    /// Warps wait in loops for others; another block should run.
    Spinning,
    /// A block before it failed.
    GivenUp,
}

/// Runs the blocks of a cluster, from barrier to barrier of the cluster, until all threads have returned. `Ok(false)`
/// if a block before them failed.
fn run_blocks(arenas: &mut [Arena], first_failure: &AtomicU64) -> Result<bool, Violation> {
    let alone = arenas.len() == 1;
    loop {
        let (mut waiting, mut spinning) = (0, false);
        for number in 0..arenas.len() {
            let arena = &mut arenas[number];
            if arena.block.cluster.returned {
                continue;
            }
            if !arena.at_cluster_barrier {
                match run_warps(arena, alone, first_failure)? {
                    Stopped::Returned => {
                        arena.block.cluster.returned = true;
                        check_left_alone(arenas, number)?;
                        continue;
                    }
                    Stopped::AtClusterBarrier => arena.at_cluster_barrier = true,
                    Stopped::Spinning => {
                        spinning = true;
                        continue;
                    }
                    Stopped::GivenUp => return Ok(false),
                }
            }
            waiting += 1;
        }
        if spinning {
            std::thread::yield_now();
        } else if waiting > 0 {
            release_cluster_barrier(arenas)?;
        } else {
            return Ok(true);
        }
    }
}

/// Fails if a peer has accessed the shared memory of block `number`, which has returned, since the last barrier of the
/// cluster: on a GPU the block could have returned before that.
fn check_left_alone(arenas: &[Arena], number: usize) -> Result<(), Violation> {
    let Some(by) = arenas[number].block.shared.accessed_by_peer() else { return Ok(()) };
    let accessor = &arenas[by.peer.rank as usize];
    let index = accessor.lanes[by.peer.thread as usize].index;
    let kind = ViolationKind::PeerExited { access: by.kind, rank: number as u32 };
    Err(context::violation(&accessor.block, index, by.site.into(), kind))
}

/// No block of the cluster can run: the barrier opens if all blocks wait at it.
fn release_cluster_barrier(arenas: &mut [Arena]) -> Result<(), Violation> {
    if let Some(missing) = arenas.iter().position(|arena| !arena.at_cluster_barrier) {
        let waits = arenas.iter().find(|arena| arena.at_cluster_barrier);
        let waits = waits.unwrap_or(&arenas[missing]);
        let here = &waits.lanes[0];
        let kind = ViolationKind::ClusterIncomplete { missing: missing as u32 };
        return Err(context::violation(&waits.block, here.index, here.site.into(), kind));
    }
    for arena in arenas {
        arena.at_cluster_barrier = false;
        arena.block.cluster.barriers += 1;
        open_barrier(arena);
        arena.block.shared.pass_cluster_barrier();
    }
    Ok(())
}

/// Runs all warps of a block, from barrier to barrier, until all threads have returned or wait at the barrier of the
/// cluster. A block that is not `alone` in its cluster does not wait for stores of its peers.
fn run_warps(arena: &mut Arena, alone: bool, first_failure: &AtomicU64) -> Result<Stopped, Violation> {
    loop {
        let (mut parked, mut spinning) = (0, 0);
        for number in 0..arena.warps.len() {
            let warp = &mut arena.warps[number];
            if warp.exited == warp.existing {
                continue;
            }
            if warp.parked {
                parked += 1;
                continue;
            }
            if first_failure.load(Ordering::Relaxed) < arena.block.number {
                return Ok(Stopped::GivenUp);
            }
            let first = number * LANES;
            let count = warp.existing.count_ones() as usize;
            let (threads, lanes) = (&mut arena.threads[first..first + count], &mut arena.lanes[first..first + count]);
            match run_warp(warp, threads, lanes, &mut arena.block, &mut arena.stacks)? {
                Warps::Done => {}
                Warps::Parked => {
                    arena.warps[number].parked = true;
                    parked += 1;
                }
                Warps::Spinning => spinning += 1,
            }
        }
        if spinning > 0 {
            rest(&arena.warps);
            if !alone {
                return Ok(Stopped::Spinning);
            }
        } else if parked > 0 {
            if !release_barrier(arena)? {
                return Ok(Stopped::AtClusterBarrier);
            }
        } else {
            return Ok(Stopped::Returned);
        }
    }
}

/// Runs a warp's passes until it can do no more by itself.
fn run_warp(
    warp: &mut Warp,
    threads: &mut [Option<Thread>],
    lanes: &mut [Lane],
    block: &mut Block,
    stacks: &mut Stacks,
) -> Result<Warps, Violation> {
    // The lanes reach warp and block by raw pointers while they run, so this function does too.
    let (warp, block): (*mut Warp, *mut Block) = (warp, block);
    loop {
        // SAFETY: both are alive, and no lane runs between two passes.
        unsafe {
            pass(warp, threads, lanes, stacks);
            let warp = &mut *warp;
            let block = &mut *block;
            block.stats.lane_collectives += u64::from(warp.arrived);
            if warp.pass.is_multiple_of(PASSES) && warp.exited != warp.existing {
                let lane = &lanes[(warp.existing & !warp.exited).trailing_zeros() as usize];
                if let Err(kind) = context::check_time(block, lane, lane.site) {
                    return Err(context::violation(block, lane.index, lane.site.into(), kind));
                }
            }
            let uniform = !warp.mixed && warp.exited == 0 && warp.arrived == warp.existing.count_ones();
            if uniform
                && warp.mask == warp.existing
                && !warp.operation.is_barrier()
                && warp.operation != Operation::Spin
            {
                warp.clock.meet_all();
                warp.spinning_since = None;
                block.count(warp.operation, warp.site, lanes[0].words);
            } else if uniform && warp.operation.is_barrier() {
                return Ok(Warps::Parked);
            } else if warp.exited == warp.existing {
                return Ok(Warps::Done);
            } else if let Some(stop) = resolve(warp, lanes, block)? {
                return Ok(stop);
            }
        }
    }
}

/// Resumes each runnable lane once.
///
/// # Safety
/// `warp` is the warp of these lanes and not referenced elsewhere.
#[inline(always)]
unsafe fn pass(warp: *mut Warp, threads: &mut [Option<Thread>], lanes: &mut [Lane], stacks: &mut Stacks) {
    // SAFETY: the warp is alive; lanes touch it only while they run.
    unsafe {
        (*warp).arrived = 0;
        (*warp).mixed = false;
        (*warp).pass += 1;
        let mut remaining = (*warp).runnable;
        while remaining != 0 {
            let lane = remaining.trailing_zeros() as usize;
            remaining &= remaining - 1;
            let slot = &mut threads[lane];
            let Some(thread) = slot else { continue };
            CURRENT.set(&mut lanes[lane]);
            if thread.resume(()).as_return().is_some() {
                (*warp).exited |= 1 << lane;
                if let Some(thread) = slot.take() {
                    stacks.push(thread.into_stack());
                }
            }
        }
        (*warp).parity ^= 1;
        // From here on a panic is the emulator's own.
        CURRENT.set(std::ptr::null_mut());
    }
}

/// Decides which lanes go on when not all of them stand in one collective. `Some` if none can for now.
fn resolve(warp: &mut Warp, all: &[Lane], block: &mut Block) -> Result<Option<Warps>, Violation> {
    let waiting = warp.existing & !warp.exited;
    let (mut next, mut spinning, mut stuck, mut visited) = (0u32, 0u32, 0u32, 0u32);
    for lane in lanes(waiting) {
        let here = &all[lane];
        if visited >> lane & 1 == 1 {
            continue;
        }
        if here.operation == Operation::Spin {
            spinning |= 1 << lane;
            continue;
        }
        let group = lanes(waiting).filter(|&other| together(here, &all[other])).fold(0, |set, other| set | 1 << other);
        visited |= group;
        if here.operation.is_barrier() {
            continue;
        }
        let unnamed = group & !here.mask;
        if unnamed != 0 {
            let lane = &all[unnamed.trailing_zeros() as usize];
            let kind = ViolationKind::LaneNotInMask { operation: lane.operation, mask: lane.mask, lane: lane.lane };
            return Err(context::violation(block, lane.index, lane.site.into(), kind));
        }
        if here.mask & !waiting != 0 {
            return Err(incomplete(warp, all, block, here, group));
        }
        if group == here.mask {
            next |= group;
            block.count(here.operation, here.site, here.words);
            if group == warp.existing { warp.clock.meet_all() } else { warp.clock.meet(group) }
        } else {
            stuck |= group;
        }
    }
    if next != 0 {
        warp.spinning_since = None;
    } else if spinning != 0 {
        let since = *warp.spinning_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            let lane = &all[spinning.trailing_zeros() as usize];
            return Err(context::violation(block, lane.index, lane.site.into(), ViolationKind::Livelock));
        }
    } else if stuck != 0 {
        let here = &all[stuck.trailing_zeros() as usize];
        let group = lanes(waiting).filter(|&other| together(here, &all[other])).fold(0, |set, other| set | 1 << other);
        return Err(incomplete(warp, all, block, here, group));
    } else {
        return park(warp, all, block).map(Some);
    }
    let idle_only = next == 0;
    next |= spinning;
    // The words that the others deposited must be there when their turn comes.
    let (from, to) = (warp.parity ^ 1, warp.parity);
    for lane in lanes(waiting & !next) {
        warp.exchange[to][lane] = warp.exchange[from][lane];
        warp.wide[to][lane] = warp.wide[from][lane];
    }
    warp.runnable = next;
    Ok(idle_only.then_some(Warps::Spinning))
}

/// Whether two lanes wait in the same collective.
fn together(a: &Lane, b: &Lane) -> bool {
    a.operation == b.operation
        && (a.operation.is_barrier() || a.mask == b.mask)
        && (!a.operation.is_aligned() || same_site(a.site, b.site))
}

/// Whether two places are one; the same place can have several addresses.
fn same_site(a: Site, b: Site) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// All lanes that have not returned wait at a barrier: fine if none has returned and it is one barrier.
fn park(warp: &mut Warp, all: &[Lane], block: &Block) -> Result<Warps, Violation> {
    let waiting = warp.existing & !warp.exited;
    let first = &all[waiting.trailing_zeros() as usize];
    let elsewhere = lanes(waiting).find(|&lane| !together(first, &all[lane]));
    let (missing, instead) = if let Some(lane) = elsewhere {
        (lane, waits_elsewhere(&all[lane]))
    } else if warp.exited != 0 {
        (warp.exited.trailing_zeros() as usize, Instead::HasReturned)
    } else {
        return Ok(Warps::Parked);
    };
    let kind = ViolationKind::BarrierIncomplete { operation: first.operation, missing: all[missing].thread, instead };
    Err(context::violation(block, first.index, first.site.into(), kind))
}

/// The violation of a collective that `group` waits in and that cannot complete.
fn incomplete(warp: &Warp, all: &[Lane], block: &Block, here: &Lane, group: u32) -> Violation {
    let absent = here.mask & !group;
    let gone = absent & !(warp.existing & !warp.exited);
    let missing = if gone != 0 { gone } else { absent }.trailing_zeros();
    let instead = if warp.existing >> missing & 1 == 0 {
        Instead::DoesNotExist
    } else if warp.exited >> missing & 1 == 1 {
        Instead::HasReturned
    } else {
        waits_elsewhere(&all[missing as usize])
    };
    let kind = ViolationKind::CollectiveIncomplete {
        operation: here.operation,
        mask: here.mask,
        arrived: group,
        missing,
        instead,
    };
    context::violation(block, here.index, here.site.into(), kind)
}

fn waits_elsewhere(lane: &Lane) -> Instead {
    Instead::WaitsElsewhere { operation: lane.operation, mask: lane.mask, location: lane.site.into() }
}

/// Every warp is parked or done: the barrier opens if all are parked at the same operation. `Ok(false)` if they wait at
/// the barrier of the cluster, which does not open here.
fn release_barrier(arena: &mut Arena) -> Result<bool, Violation> {
    let first = arena.warps.iter().find(|warp| warp.parked).map_or(0, |warp| warp.number as usize);
    let here = &arena.lanes[first * LANES];
    for warp in &arena.warps {
        let other = &arena.lanes[warp.number as usize * LANES];
        let instead = if !warp.parked {
            Instead::HasReturned
        } else if other.operation != here.operation {
            waits_elsewhere(other)
        } else {
            continue;
        };
        let kind = ViolationKind::BarrierIncomplete { operation: here.operation, missing: other.thread, instead };
        return Err(context::violation(&arena.block, here.index, here.site.into(), kind));
    }
    let of_block = here.operation != Operation::SyncCluster;
    if of_block {
        open_barrier(arena);
    }
    Ok(of_block)
}

/// Lets all warps of a block go on behind the barrier at which they wait.
fn open_barrier(arena: &mut Arena) {
    for warp in &mut arena.warps {
        let first = &arena.lanes[warp.number as usize * LANES];
        arena.block.count(first.operation, first.site, first.words);
        warp.parked = false;
        warp.runnable = warp.existing;
        warp.clock.meet_all();
        warp.spinning_since = None;
    }
    arena.block.or_result = std::mem::take(&mut arena.block.or_gathered);
    arena.block.shared.pass_barrier();
    arena.block.global.pass_barrier();
    arena.block.stats.barriers += 1;
}
