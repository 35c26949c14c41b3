//! Launches a kernel on the CPU.

use super::{
    arena::Arena,
    arguments::Arguments,
    counts::{Counter, Stats},
    padding::Padding,
    schedule::{self, run_cluster},
    violation::{Violation, ViolationKind},
    workers,
};
use crate::launch::{ArgumentRange, Kernel, KernelArgs, LaunchConfig, MOST_BLOCKS, MOST_CLUSTER_BLOCKS};
use std::{
    panic::Location,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Dynamic shared memory that the largest GPUs give a block.
const MAX_SHARED: u32 = 227 * 1024;

/// Runs `kernel` on the CPU and checks it. Returns when all blocks are done, or the first violation: of the blocks that
/// fail, the one with the lowest number.
///
/// The launch may access the memory of its arguments: the elements of each [`Ptr`](crate::Ptr), and those of each
/// [`PtrMut`](crate::PtrMut), which it may also write. Each of them lies in one [`Buffer`](super::Buffer).
///
/// # Safety
/// The kernel's own contract. The buffers that it uses stay alive until the launch returns, and nobody else accesses
/// them meanwhile. (Stray accesses through the functions of this crate are caught; those by plain pointers are not.)
///
/// # Errors
/// A [`Violation`], see [`ViolationKind`].
#[track_caller]
pub unsafe fn launch<A: KernelArgs>(
    kernel: &Kernel<A>,
    config: LaunchConfig,
    arguments: A,
) -> Result<Stats, Violation> {
    // SAFETY: the same contract.
    unsafe { run(kernel, config, arguments, false) }.map(|(stats, _)| stats)
}

/// The body of [`launch`] and of [`profile`](super::profile()); the counts are empty unless `profiled`.
///
/// # Safety
/// As [`launch`].
#[track_caller]
pub unsafe fn run<A: KernelArgs>(
    kernel: &Kernel<A>,
    config: LaunchConfig,
    arguments: A,
    profiled: bool,
) -> Result<(Stats, Counter), Violation> {
    let entry = Entry { name: kernel.name(), max_threads: kernel.max_threads() };
    let ranges: Vec<ArgumentRange> = arguments.ranges().collect();
    let Some(body) = kernel.body() else { return Err(at_launch(entry, ViolationKind::NotCompiled)) };
    // SAFETY: the caller has the kernel's contract.
    let body = || unsafe { body(&arguments) };
    // SAFETY: the same contract.
    unsafe { run_body(entry, config, &ranges, &body, profiled) }
}

/// The properties of a kernel that a launch needs, whatever its arguments are.
#[derive(Clone, Copy)]
struct Entry {
    name: &'static str,
    max_threads: Option<u32>,
}

/// The rest of [`run`], compiled once for all kernels: `body` runs one thread.
///
/// # Safety
/// As [`launch`].
#[track_caller]
unsafe fn run_body(
    entry: Entry,
    config: LaunchConfig,
    ranges: &[ArgumentRange],
    body: &(dyn Fn() + Sync),
    profiled: bool,
) -> Result<(Stats, Counter), Violation> {
    check(entry, config)?;
    schedule::install_panic_hook();
    let memory = match Arguments::new(ranges.iter().copied()) {
        Ok(memory) => memory,
        Err(kind) => return Err(at_launch(entry, kind)),
    };
    let padding = Padding::new(ranges.iter().filter(|range| range.writable).map(|range| range.address));
    let blocks = config.grid.iter().product::<u64>();
    let cluster = u64::from(config.cluster);
    let threads = (config.block.iter().product::<u32>() * config.cluster) as usize;
    let next = AtomicU64::new(0);
    let first_failure = AtomicU64::new(u64::MAX);
    let result = Mutex::new(((Stats::default(), Counter::default()), None::<Violation>));
    let work = || {
        let mut arenas: Vec<Arena> = (0..cluster).map(|_| Arena::take(entry.name, config, &memory, profiled)).collect();
        let mut failure = None;
        loop {
            let number = next.fetch_add(cluster, Ordering::Relaxed);
            if number >= blocks || first_failure.load(Ordering::Relaxed) < number {
                break;
            }
            // SAFETY: the caller has the kernel's contract.
            match unsafe { run_cluster(&mut arenas, number, &body, &first_failure) } {
                Ok(_) => {}
                Err(violation) => {
                    first_failure.fetch_min(number, Ordering::Relaxed);
                    failure = Some((number, violation));
                    break;
                }
            }
        }
        let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
        for arena in &mut arenas {
            result.0.0.add(&arena.block.stats);
            if let Some(counter) = arena.block.counter.take() {
                result.0.1.add(counter);
            }
        }
        if let Some((number, violation)) = failure
            && number == first_failure.load(Ordering::Relaxed)
        {
            result.1 = Some(violation);
        }
        arenas.into_iter().for_each(Arena::give_back);
    };
    let workers = (rayon::current_num_threads() as u64).clamp(1, (blocks / cluster).max(1)) as usize;
    workers::run(workers - 1, threads, &work);
    match result.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (_, Some(violation)) => Err(violation),
        // SAFETY: the caller keeps the buffers alive and to this launch, whose threads are done.
        (counts, None) => match unsafe { padding.overwritten() } {
            // A plain pointer leaves no trace of the thread.
            Some(kind) => Err(at_launch(entry, kind)),
            None => Ok(counts),
        },
    }
}

/// Whether a GPU would take the launch.
#[track_caller]
fn check(entry: Entry, config: LaunchConfig) -> Result<(), Violation> {
    let threads = config.block.iter().map(|&n| u64::from(n)).product();
    let limits = [
        ("grid x", config.grid[0], MOST_BLOCKS[0]),
        ("grid y", config.grid[1], MOST_BLOCKS[1]),
        ("grid z", config.grid[2], MOST_BLOCKS[2]),
        ("block x", config.block[0].into(), 1024),
        ("block y", config.block[1].into(), 1024),
        ("block z", config.block[2].into(), 64),
        ("threads of a block", threads, 1024),
        ("threads of a block (max_threads)", threads, entry.max_threads.unwrap_or(1024).into()),
    ];
    let exceeded = limits
        .into_iter()
        .find_map(|(what, asked, limit): (_, u64, u64)| match asked {
            0 => Some((what, asked, 1)),
            asked => (asked > limit).then_some((what, asked, limit)),
        })
        .or_else(|| {
            (config.shared_bytes > MAX_SHARED).then_some((
                "dynamic shared memory",
                config.shared_bytes.into(),
                MAX_SHARED.into(),
            ))
        })
        .or_else(|| {
            (!config.clusters_fit()).then_some((
                "blocks of a cluster, a power of two that divides grid x,",
                config.cluster.into(),
                MOST_CLUSTER_BLOCKS.into(),
            ))
        });
    let Some((what, asked, limit)) = exceeded else { return Ok(()) };
    Err(at_launch(entry, ViolationKind::LaunchLimit { what, asked, limit }))
}

/// A violation of the launch as a whole: at the launch, in the first thread.
#[track_caller]
fn at_launch(entry: Entry, kind: ViolationKind) -> Violation {
    Violation {
        kernel: entry.name,
        block: [0; 3],
        thread: [0; 3],
        location: Location::caller().into(),
        kind: Box::new(kind),
    }
}
