//! The threads that help a launch: each runs blocks beside the thread that launches.
//!
//! They are no rayon pool. A thread of a pool that waits in rayon takes up other tasks of its pool meanwhile, and runs
//! them on top of the launch: a task that then waits for what the launching code holds waits for ever. A GPU does
//! nothing of the kind to the thread that waits for it, and neither does the emulator: who launches runs blocks of this
//! launch, waits for helpers that run blocks of this launch, and does nothing else.
//!
//! Emulated threads have stacks, and a process can have at most [`MAX_THREADS_ALIVE`] of them. A launch waits until
//! there is room for the block that the launching thread runs; a helper for whose block there is none does not help.
//!
//! There are as many threads as the launch with the most helpers wanted; they end with the program. A helper that is
//! busy with another launch is not waited for: the launching thread does its share.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Emulated threads that may be alive at once: each has a guarded stack, two mappings of the 65,530 that Linux allows.
/// There are no more stacks than were in use at the same time ([`super::stack`]).
pub const MAX_THREADS_ALIVE: usize = 24 * 1024;

/// Emulated threads that may be alive now.
static ALIVE: Mutex<usize> = Mutex::new(0);
/// Told when [`ALIVE`] becomes smaller, so that a waiting launch looks again.
static FEWER: Condvar = Condvar::new();

/// Room for a block of this number of emulated threads.
struct Room(usize);

impl Room {
    /// Room, as soon as there is some. Those who have it wait for nobody that has none.
    fn wait(threads: usize) -> Room {
        let mut alive = lock(&ALIVE);
        while *alive + threads > MAX_THREADS_ALIVE {
            alive = FEWER.wait(alive).unwrap_or_else(PoisonError::into_inner);
        }
        *alive += threads;
        Room(threads)
    }

    /// Room, if there is some now.
    fn now(threads: usize) -> Option<Room> {
        let mut alive = lock(&ALIVE);
        if *alive + threads > MAX_THREADS_ALIVE {
            return None;
        }
        *alive += threads;
        Some(Room(threads))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        *lock(&ALIVE) -= self.0;
        FEWER.notify_all();
    }
}

/// A launch that wants help.
struct Job {
    /// Threads of a block, at most [`MAX_THREADS_ALIVE`].
    threads: usize,
    /// The work of a helper; alive until `run` returns.
    work: &'static (dyn Fn() + Sync),
    state: Mutex<State>,
    /// A helper is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of helpers that work on the job now.
    helping: usize,
    /// The first panic of a helper.
    panic: Option<Box<dyn Any + Send>>,
}

#[derive(Default)]
struct Queue {
    /// A job for each helper that it still wants.
    wanted: VecDeque<Arc<Job>>,
    threads: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { wanted: VecDeque::new(), threads: 0 });
/// Told when a job is added to [`QUEUE`].
static WANTED: Condvar = Condvar::new();

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on this thread and on up to `helpers` others at the same time. Returns when all have finished. `work`
/// runs blocks of `threads` emulated threads, and ends once no block is left to run, whichever thread ran it.
///
/// # Panics
/// If `work` panics on any of the threads.
pub fn run(helpers: usize, threads: usize, work: &(dyn Fn() + Sync)) {
    let _room = Room::wait(threads);
    if helpers == 0 {
        return work();
    }
    // SAFETY: lengthens the lifetime only. Below, the job is taken out of the queue and its helpers are waited for
    // before this function returns or goes on with a panic; nobody calls `work` after that.
    let work: &'static (dyn Fn() + Sync) = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), _>(work) };
    let job = Arc::new(Job { threads, work, state: Mutex::default(), done: Condvar::new() });
    want(&job, helpers);
    let own = catch_unwind(AssertUnwindSafe(work));
    lock(&QUEUE).wanted.retain(|wanted| !Arc::ptr_eq(wanted, &job));
    let mut state = lock(&job.state);
    while state.helping > 0 {
        state = job.done.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let panic = own.err().or(state.panic.take());
    drop(state);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Queues a job for `helpers` helpers, and starts threads if there are fewer. If the system gives none, the caller
/// works alone.
fn want(job: &Arc<Job>, helpers: usize) {
    let mut queue = lock(&QUEUE);
    while queue.threads < helpers && thread::Builder::new().name("emulator".to_owned()).spawn(help).is_ok() {
        queue.threads += 1;
    }
    queue.wanted.extend((0..helpers).map(|_| job.clone()));
    drop(queue);
    (0..helpers).for_each(|_| WANTED.notify_one());
}

/// Helps whoever wants help, for ever.
fn help() {
    let mut queue = lock(&QUEUE);
    loop {
        let Some(job) = queue.wanted.pop_front() else {
            queue = WANTED.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        // While the queue is locked: who takes its job out of the queue then sees every helper that has it.
        lock(&job.state).helping += 1;
        drop(queue);
        let result = match Room::now(job.threads) {
            Some(_room) => catch_unwind(AssertUnwindSafe(job.work)),
            None => Ok(()),
        };
        let mut state = lock(&job.state);
        state.helping -= 1;
        if let Err(panic) = result {
            state.panic.get_or_insert(panic);
        }
        job.done.notify_one();
        drop(state);
        queue = lock(&QUEUE);
    }
}
