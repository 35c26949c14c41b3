//! The state of a running thread, of its warp and of its block, and the meetings of threads in collectives.

use super::{
    block::Block,
    clock::{LANES, WarpClock},
    records::Accessor,
    violation::{Operation, SourceLocation, Violation, ViolationKind},
};
use crate::Site;
use corosensei::Yielder;
use std::{
    cell::Cell,
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Number of accesses of a thread between two looks at the clock.
const ACCESSES: u32 = 1 << 20;
/// After this time the block says where it is.
const LONG: Duration = Duration::from_secs(10);
/// Milliseconds after which a block is stopped.
static MOST_MILLISECONDS: AtomicU64 = AtomicU64::new(120_000);

/// Sets how long a block may run before its launch is stopped with [`ViolationKind::Endless`]: 120 seconds at first.
/// The setting is the process's.
pub fn stop_after(time: Duration) {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    MOST_MILLISECONDS.store(milliseconds, Ordering::Relaxed);
}

/// Prints once that the block runs for long, and where its thread is.
///
/// # Errors
/// [`ViolationKind::Endless`] after the time of [`stop_after`].
pub fn check_time(block: &mut Block, lane: &Lane, site: Site) -> Result<(), ViolationKind> {
    let time = block.first_look.get_or_insert_with(Instant::now).elapsed();
    let most = MOST_MILLISECONDS.load(Ordering::Relaxed);
    if time.as_millis() > u128::from(most) {
        return Err(ViolationKind::Endless { milliseconds: most });
    }
    if time > LONG && !block.told {
        block.told = true;
        let (kernel, index, thread, place) = (block.kernel, block.index, lane.index, SourceLocation::from(site));
        eprintln!(
            "kernel {kernel} on the emulator: block {index:?} has run for {} s; thread {thread:?} is at {place}. A loop \
             without end is stopped after {} s.",
            time.as_secs(),
            most / 1000
        );
    }
    Ok(())
}

/// A thread of the block that runs.
pub struct Lane {
    /// How it suspends; set when it starts.
    pub yielder: *const Yielder<(), ()>,
    pub warp: *mut Warp,
    pub block: *mut Block,
    /// Number in the warp.
    pub lane: u32,
    /// Number in the block, x fastest.
    pub thread: u32,
    /// Index in the block.
    pub index: [u32; 3],
    /// The operation in which the lane waits, its mask and its place.
    pub operation: Operation,
    pub mask: u32,
    pub site: Site,
    /// Words that it exchanges there, each of which counts as one operation.
    pub words: u64,
    /// Asynchronous copies that the lane started and has not waited for.
    pub copies: Copies,
    /// Products of its warpgroup that it has not waited for: where its warp's rows of A start, where B starts, and the
    /// rows of B.
    pub products: Vec<(u32, u32, u32)>,
    /// Grows with each access, for [`access`].
    pub accesses: u32,
}

impl Lane {
    /// The thread as its accesses are recorded.
    ///
    /// # Safety
    /// `lane` is the running thread, and the result is used for one access only.
    #[inline(always)]
    pub unsafe fn accessor<'a>(lane: *const Lane) -> Accessor<'a> {
        // SAFETY: the lane and its warp outlive the access that is being checked, and their clocks stand still
        // meanwhile.
        unsafe {
            let warp = (*lane).warp;
            Accessor { lane: (*lane).lane, warp: (*warp).number, clock: &(*warp).clock }
        }
    }
}

/// A copy that was started.
pub struct Copy {
    pub dst: u32,
    pub src: *const u8,
    /// Bytes to read, then bytes to write (the rest zeros).
    pub src_bytes: u32,
    pub bytes: u32,
    /// Whether the launch may write the source.
    pub recorded: bool,
    pub site: Site,
}

/// A thread's unfinished copies, oldest first.
#[derive(Default)]
pub struct Copies {
    pub queue: VecDeque<Copy>,
    /// Copies in each closed group.
    pub groups: VecDeque<usize>,
    /// Copies that no group holds yet.
    pub open: usize,
}

/// Words that a lane can deposit in a collective of matrices.
pub const WIDE: usize = 6;

/// 32 lanes that run in turn.
///
/// Values are exchanged through `exchange` (and `wide`): a lane writes its slot, suspends, and reads others' slots when
/// resumed. There are two sets of slots, used in turn by pass, because a lane resumed early writes its next value
/// before later lanes have read the last one.
pub struct Warp {
    pub exchange: [[u64; LANES]; 2],
    pub wide: Box<[[[u32; WIDE]; LANES]; 2]>,
    /// The set that the running pass deposits in.
    pub parity: usize,
    /// Number of the running pass.
    pub pass: u64,
    /// Lanes that arrived somewhere in this pass, and where the first did.
    pub arrived: u32,
    pub operation: Operation,
    pub mask: u32,
    pub site: Site,
    /// Whether a later one arrived elsewhere.
    pub mixed: bool,
    /// A result that all lanes of a collective share, computed by the first: pass, mask, value.
    pub shared_result: (u64, u32, u32),
    /// Operands of matrix products, decoded by the first lane.
    pub products: Box<Products>,
    /// The same of products of the warp's group.
    pub chunks: GroupProducts,
    /// Lanes that the block has, that have returned, and that the next pass resumes.
    pub existing: u32,
    pub exited: u32,
    pub runnable: u32,
    /// Whether the warp waits at the block's barrier.
    pub parked: bool,
    /// Since when all it does is wait in loops.
    pub spinning_since: Option<std::time::Instant>,
    /// Number of the warp in the block.
    pub number: u32,
    /// Order of accesses within the warp (see `shared_memory`).
    pub clock: WarpClock,
}

/// Decoded operands of the pass `pass`, with inner dimension `K`: A row by row, B column by column.
pub struct Product<N, const K: usize> {
    pub pass: u64,
    pub a: [[N; K]; 16],
    pub b: [[N; K]; 8],
}

impl<N: Default + std::marker::Copy, const K: usize> Default for Product<N, K> {
    fn default() -> Self {
        Self { pass: 0, a: [[N::default(); K]; 16], b: [[N::default(); K]; 8] }
    }
}

/// The operands of a warp's products.
#[derive(Default)]
pub struct Products {
    pub of_16_bits: Product<f32, 16>,
    pub of_tf32: Product<f32, 8>,
    pub of_bytes: Product<i32, 32>,
}

/// Decoded operands of the pass `pass`: the warp's 16 rows of A, and all rows of B.
pub struct Chunks<N, const K: usize> {
    pub pass: u64,
    pub a: [[N; K]; 16],
    pub b: [[N; K]; 128],
}

impl<N: Default + std::marker::Copy, const K: usize> Default for Chunks<N, K> {
    fn default() -> Self {
        Self { pass: 0, a: [[N::default(); K]; 16], b: [[N::default(); K]; 128] }
    }
}

/// The operands of a warp's part of products of its group, made by the first product.
#[derive(Default)]
pub struct GroupProducts {
    pub of_halves: Option<Box<Chunks<f32, 64>>>,
    pub of_bytes: Option<Box<Chunks<i32, 128>>>,
}

thread_local! {
    /// The thread that runs on this OS thread, if any.
    pub static CURRENT: Cell<*mut Lane> = const { Cell::new(std::ptr::null_mut()) };
}

/// The emulated thread that runs on this OS thread.
///
/// # Panics
/// Outside a launch.
#[inline(always)]
pub fn current() -> *mut Lane {
    let lane = CURRENT.get();
    if lane.is_null() {
        outside();
    }
    lane
}

#[cold]
#[inline(never)]
fn outside() -> ! {
    panic!("device functions of cuda_std run inside emulator::launch only");
}

/// Waits for the lanes of `mask` (for all threads of the block, if the operation is a barrier).
///
/// # Safety
/// `lane` is the running thread. No reference into its warp, its block or itself is held across the call.
#[inline(always)]
pub unsafe fn meet(lane: *mut Lane, operation: Operation, mask: u32, site: Site) {
    // SAFETY: the running thread's lane and warp live as long as its block runs, on this OS thread only.
    unsafe {
        (*lane).operation = operation;
        (*lane).mask = mask;
        (*lane).site = site;
        let warp = (*lane).warp;
        if (*warp).arrived == 0 {
            (*warp).operation = operation;
            (*warp).mask = mask;
            (*warp).site = site;
        } else if (*warp).operation != operation
            || (*warp).mask != mask
            || operation.is_aligned() && !std::ptr::eq((*warp).site, site)
        {
            (*warp).mixed = true;
        }
        (*warp).arrived += 1;
        (*(*lane).yielder).suspend(());
    }
}

/// Makes an access of the running thread: `check` checks and records it, and a violation stops the thread. Now and then
/// this looks at the clock: a loop of accesses may have no end.
///
/// # Safety
/// `lane` is the running thread.
#[inline(always)]
pub unsafe fn access(
    lane: *mut Lane,
    site: Site,
    check: impl FnOnce(&mut Block, Accessor<'_>) -> Result<(), ViolationKind>,
) {
    // SAFETY: the running thread's lane and block are alive, and nobody else on this OS thread runs.
    unsafe {
        let (accesses, all) = (*lane).accesses.overflowing_add(u32::MAX / ACCESSES);
        (*lane).accesses = accesses;
        if all {
            look(lane, site);
        }
        if let Err(kind) = check(&mut *(*lane).block, Lane::accessor(lane)) {
            fail(lane, site, kind);
        }
    }
}

/// The rare part of [`access`].
///
/// # Safety
/// `lane` is the running thread.
#[cold]
#[inline(never)]
unsafe fn look(lane: *mut Lane, site: Site) {
    // SAFETY: the running thread's lane and block are alive, and nobody else on this OS thread runs.
    unsafe {
        if let Err(kind) = check_time(&mut *(*lane).block, &*lane, site) {
            fail(lane, site, kind);
        }
    }
}

/// The payload with which a thread unwinds after it reported a violation.
struct Stop;

/// Reports a violation by the running thread and ends it.
///
/// # Safety
/// `lane` is the running thread.
#[cold]
#[inline(never)]
pub unsafe fn fail(lane: *mut Lane, site: Site, kind: ViolationKind) -> ! {
    // SAFETY: the running thread's lane and block are alive, and nobody else on this OS thread runs.
    unsafe {
        let block = (*lane).block;
        (*block).violation = Some(violation(&*block, (*lane).index, site.into(), kind));
    }
    std::panic::resume_unwind(Box::new(Stop))
}

/// A violation by a thread of `block`.
pub fn violation(block: &Block, thread: [u32; 3], location: SourceLocation, kind: ViolationKind) -> Violation {
    Violation { kernel: block.kernel, block: block.index, thread, location, kind: Box::new(kind) }
}
