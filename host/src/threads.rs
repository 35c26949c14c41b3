//! Threads that do the work of a call, and rules about which thread may wait for which.
//!
//! # Calls from anywhere
//! Any public call may be made from a thread of a rayon pool, from inside a parallel iterator, and from many threads at
//! once. Two properties of rayon can cause deadlocks. First, a pool thread that waits for its own parallel work runs
//! other tasks of the pool meanwhile, on the same stack. If the thread holds a lock and such a task takes the same
//! lock, the thread waits for itself for ever. Second, a pool thread that blocks does no work of the pool. If all
//! threads block, the work that they wait for is never done. Three rules exclude both:
//!
//! 1. **A device needs no pool.** Copies, launches and waits ([`Runtime`](crate::device::runtime::Runtime)) use threads
//!    of this file and of the emulator, which run no tasks of a pool ([`work_off`], [`apart`]).
//! 2. **The holder of a lock needs no pool.** A lock that is held across work is an [`Exclusive`]: its holder works
//!    apart from all pools, so the holder always finishes. Other locks are held for a few instructions that take a
//!    value out or put it back. A value whose computation needs a pool is computed outside the lock and then published
//!    (`ivf::Lists::directory`); two first searches may compute it twice.
//! 3. **No pool thread waits for a thread that may need the pool.** On a pool thread [`at_once`] and [`meanwhile`] put
//!    their jobs into that pool, where the waiting thread can do them itself. So the library also stays within pools
//!    that callers install.
//!
//! A lane of a device is not an [`Exclusive`], and a search may use a pool while it has one; the rules of
//! [`crate::device::lanes`] say why nobody waits for ever.
//!
//! A thread outside all pools may wait for anything, because pool threads wait for it only while it holds an
//! [`Exclusive`]. One case is left to the caller: if a task holds a lock of the caller during a call, another task of
//! its pool may run on the same stack and take the same lock, as with any use of rayon.
//!
//! # Threads that wait for work
//! Several devices work at the same time, each from one thread.
//!
//! ```text
//! at_once(jobs):  send each job but the first to a waiting thread (or a new one); do the first
//!                 wait until all are done; return the results in order, or resume the first panic
//! thread:         do the job; offer itself to the next caller; look for work a moment longer, then sleep
//! ```
//!
//! A search by several devices lasts a few milliseconds, and starting threads for it took a large part of one. Waking a
//! thread that sleeps is faster, and a thread that is still awake begins immediately. So the steps of a search (the
//! check of the queries, the devices, the copies) pay for waking once. With enough CPU threads a waiting thread stays
//! awake for as long as a search of 10,000 queries takes, so consecutive searches never wake one (flat, 16 lists, H200:
//! 0.84 ms instead of 0.88). There are as many threads as worked at the same time; they end with the program. Work that
//! fills a pool after a search lets them sleep before ([`rest`]).
//!
//! Median µs until the last job begins, and from the end of the last job until the caller continues; a virtual machine
//! of 64 CPU threads, 2026-11-22:
//!
//! | jobs | new threads, started by halves | rayon's pool | waiting threads | waiting threads, next step |
//! |---|---|---|---|---|
//! | 2 | 138, 56 | 123, 43 | 50, 4 | 2 |
//! | 4 | 273, 146 | 202, 35 | 70, 5 | 6 |
//! | 8 | 416, 402 | 188, 66 | 215, 8 | 8 |
//!
//! # Without waiting threads
//! [`allow_threads`] turns them off: jobs then run one after the other on the caller's thread, as they do if the system
//! refuses a thread.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::parallel::{Loop, turns};

/// How long a thread looks for work before it sleeps: longer than the caller takes from one step of a search to the
/// next.
const AWAKE: Duration = Duration::from_micros(100);
/// As [`AWAKE`] with at least [`SPARE_FROM`] threads: longer than the time from one search of thousands of queries to
/// the next.
const AWAKE_TO_SPARE: Duration = Duration::from_micros(1_500);
/// Number of CPU threads from which waiting threads may stay awake longer.
const SPARE_FROM: usize = 12;

/// How long a thread that waits for work looks for it before it sleeps.
pub(crate) fn awake() -> Duration {
    if rayon::current_num_threads() < SPARE_FROM { AWAKE } else { AWAKE_TO_SPARE }
}

/// The number of times that waiting threads were told to sleep ([`rest`]).
static RESTS: AtomicUsize = AtomicUsize::new(0);

/// Lets waiting threads sleep until there is work, for a caller whose own work in a pool begins now: threads that look
/// for work take processors from it.
pub(crate) fn rest() {
    RESTS.fetch_add(1, Ordering::Relaxed);
}

/// Smallest number of bytes that pays for a thread, for work that reads or copies them.
const THREAD_BYTES: usize = 128 << 10;
/// Largest number of threads that memory bandwidth keeps busy.
const MOST_THREADS: usize = 8;
/// Size of a piece in bytes: small enough for a thread's cache, and for a short wait for a thread that wakes late.
const PIECE_BYTES: usize = 64 << 10;

/// Number of rows of a piece for [`work_off`], at least 1.
pub(crate) fn piece_rows(row_bytes: usize) -> usize {
    (PIECE_BYTES / row_bytes.max(1)).max(1)
}

/// Number of threads that pays for one pass over `bytes` of memory, at least 1.
pub(crate) fn worth_threads(bytes: usize) -> usize {
    (bytes / THREAD_BYTES).clamp(1, MOST_THREADS.min(rayon::current_num_threads()))
}

/// Calls `work` for every piece of memory, `bytes` in all, in one pass. Each thread takes the next piece when it is
/// free. The call works [`apart`], so `work` must not use a pool.
pub(crate) fn work_off<P: Send>(pieces: impl Iterator<Item = P> + Send, bytes: usize, work: impl Fn(P) + Sync) {
    let threads = worth_threads(bytes);
    if threads == 1 {
        return pieces.for_each(work);
    }
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    apart(|| at_once(vec![(); threads], |()| std::iter::from_fn(next).for_each(&work)));
}

thread_local! {
    /// Whether this thread keeps its jobs out of the pool that it belongs to.
    static APART: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work`, which must not use a pool, apart from all pools: jobs ([`at_once`], [`meanwhile`]) go to threads of
/// this file. So a pool thread runs no other tasks of its pool meanwhile.
pub(crate) fn apart<V>(work: impl FnOnce() -> V) -> V {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            APART.set(self.0);
        }
    }
    let _before = Before(APART.replace(true));
    work()
}

/// Whether this is a pool thread whose jobs go into its pool.
fn in_pool() -> bool {
    rayon::current_thread_index().is_some() && !APART.get()
}

/// A lock that may be held across long work. The holder works [`apart`], so it never waits for a thread that waits for
/// the lock.
#[derive(Debug, Default)]
pub(crate) struct Exclusive<V>(Mutex<V>);

impl<V> Exclusive<V> {
    pub(crate) fn new(value: V) -> Self {
        Exclusive(Mutex::new(value))
    }

    /// The value, which nobody else can have.
    pub(crate) fn get_mut(&mut self) -> &mut V {
        self.0.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Locks the value and calls `work`, which must not use a pool.
    pub(crate) fn with<W>(&self, work: impl FnOnce(&mut V) -> W) -> W {
        apart(|| work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Does all jobs at the same time, each on its own thread, and returns their results in order.
///
/// A thread of rayon's pool does them in the pool (rule 3), unless it works [`apart`].
///
/// # Panics
/// If a job panics, after all others are done.
pub(crate) fn at_once<J: Send, V: Send>(jobs: Vec<J>, work: impl Fn(J) -> V + Sync) -> Vec<V> {
    let slots: Vec<Slot<V>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let jobs: Vec<Mutex<Option<J>>> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    each_at_once(jobs.len(), &|at| {
        if let Some(job) = jobs[at].lock().unwrap_or_else(PoisonError::into_inner).take() {
            fill(&slots[at], || work(job));
        }
    });
    slots.into_iter().map(result).collect()
}

/// Calls `work`, which does not unwind, for each number below `count`. This is the part of [`at_once`] that is compiled
/// once for all types.
fn each_at_once(count: usize, work: &(dyn Fn(usize) + Sync)) {
    if in_pool() {
        return turns(0..count).with_max_len(1).for_each(work);
    }
    with_threads((1..count).map(|at| Box::new(move || work(at)) as Box<dyn FnOnce() + Send>), &mut || {
        if count > 0 {
            work(0);
        }
    });
}

/// Calls `own` on this thread and `other` on another at the same time, and returns both results. If the system has no
/// thread left, `other` runs first.
///
/// A thread of rayon's pool leaves `other` to the pool (rule 3), unless it works [`apart`].
///
/// # Panics
/// If one of them panics, after the other is done.
pub(crate) fn meanwhile<V: Send, W>(other: impl FnOnce() -> V + Send, own: impl FnOnce() -> W) -> (V, W) {
    let slot: Slot<V> = Mutex::new(None);
    let (mut own, mut done) = (Some(own), None);
    let fill_slot = Box::new(|| fill(&slot, other));
    both_at_once(fill_slot, &mut || done = own.take().map(|own| own()));
    match done {
        Some(own) => (result(slot), own),
        None => unreachable!("its own work is done once, or unwound"),
    }
}

/// Calls `own` on this thread and `other`, which does not unwind, at the same time. This is the part of [`meanwhile`]
/// that is compiled once.
fn both_at_once(other: Box<dyn FnOnce() + Send + '_>, own: &mut dyn FnMut()) {
    if in_pool() {
        rayon::in_place_scope(|scope| {
            scope.spawn(|_| other());
            own();
        });
    } else {
        with_threads(std::iter::once(other), own);
    }
}

/// Calls `own` on this thread and all tasks, which do not unwind, on waiting threads. All tasks are done when it
/// returns or unwinds.
fn with_threads<'a>(tasks: impl Iterator<Item = Box<dyn FnOnce() + Send + 'a>>, own: &mut dyn FnMut()) {
    let sent = Sent { left: Arc::new(Left { tasks: AtomicUsize::new(0), caller: thread::current() }) };
    for task in tasks {
        // SAFETY: only the lifetime changes. The drop of `sent` waits until the task has run and is dropped; that is
        // before this function returns or unwinds, and the borrows of a task outlive the call.
        sent.send(unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'a>, Box<dyn FnOnce() + Send>>(task) });
    }
    own();
    drop(sent);
}

/// Stores the result of `work`, or its panic, in `slot`.
fn fill<V>(slot: &Slot<V>, work: impl FnOnce() -> V) {
    let result = catch_unwind(AssertUnwindSafe(work));
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
}

/// The result of a finished job; resumes its panic.
fn result<V>(slot: Slot<V>) -> V {
    match slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(Ok(value)) => value,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("every task ran, and none unwinds"),
    }
}

/// The place for the result of a job, or for its panic.
type Slot<V> = Mutex<Option<Result<V, Box<dyn Any + Send>>>>;

/// The number of tasks that are not done, and the thread that waits for them.
struct Left {
    tasks: AtomicUsize,
    caller: Thread,
}

/// The tasks of one call. The drop waits for them.
struct Sent {
    left: Arc<Left>,
}

struct Task {
    run: Box<dyn FnOnce() + Send>,
    left: Arc<Left>,
}

/// The next task of a thread. A thread that offers itself gets one task. A channel of the standard library, which takes
/// any number of tasks, made the program of the library's page 35 KB larger (x86-64, 2026-11-25).
#[derive(Default)]
struct Mailbox {
    task: Mutex<Option<Task>>,
    filled: Condvar,
}

/// Whether calls may use threads of this library.
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Sets whether calls of this process may use threads that the library starts; true unless set.
///
/// The library starts threads, named `warpann`, for calls on several devices, for the host's work of a device other
/// than the CPU, and for some work of the CPU if the caller is not on a thread of a rayon pool. With `false` this work
/// runs on the caller's thread, one part after the other: devices of one index then work in turn, and transfers and
/// kernels of a device overlap less. All other work of the CPU stays in the caller's rayon pool. Results are the same.
/// A call on a thread of a rayon pool that uses only one CPU device starts no thread in any case.
///
/// Threads that exist already sleep until the program ends, and are used again after `true`.
pub fn allow_threads(allowed: bool) {
    ALLOWED.store(allowed, Ordering::Relaxed);
}

/// The waiting threads, in the order in which they finished their last tasks.
static WAITING: Mutex<Vec<Arc<Mailbox>>> = Mutex::new(Vec::new());

impl Sent {
    fn send(&self, run: Box<dyn FnOnce() + Send>) {
        self.left.tasks.fetch_add(1, Ordering::Relaxed);
        let task = Task { run, left: self.left.clone() };
        let waiting = || WAITING.lock().unwrap_or_else(PoisonError::into_inner).pop().or_else(new_thread);
        match ALLOWED.load(Ordering::Relaxed).then(waiting).flatten() {
            Some(thread) => thread.send(task),
            // Threads are not allowed, or the system refused one, so the caller runs the task.
            None => task.run_here(),
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let begin = Instant::now();
        // Acquire makes the writes of the tasks visible.
        while self.left.tasks.load(Ordering::Acquire) > 0 {
            if begin.elapsed() < AWAKE { thread::yield_now() } else { thread::park() }
        }
    }
}

impl Task {
    fn run_here(self) {
        (self.run)();
        self.left.done();
    }
}

impl Left {
    /// Counts a task as done. The task must not use any borrow after this call.
    fn done(&self) {
        if self.tasks.fetch_sub(1, Ordering::Release) == 1 {
            self.caller.unpark();
        }
    }
}

/// Starts a thread that waits for tasks; `None` if the system refuses it.
fn new_thread() -> Option<Arc<Mailbox>> {
    let mailbox = Arc::new(Mailbox::default());
    let own = Arc::clone(&mailbox);
    let live = move || {
        loop {
            let Task { run, left } = own.next();
            // A task catches the panics of its job, so this does not unwind.
            run();
            WAITING.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&own));
            left.done();
        }
    };
    thread::Builder::new().name("warpann".to_owned()).spawn(live).ok()?;
    Some(mailbox)
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Option<Task>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a task to the thread, which has none.
    fn send(&self, task: Task) {
        *self.lock() = Some(task);
        self.filled.notify_one();
    }

    /// Waits for the next task.
    fn next(&self) -> Task {
        let (begin, awake, rests) = (Instant::now(), awake(), RESTS.load(Ordering::Relaxed));
        while begin.elapsed() < awake && rests == RESTS.load(Ordering::Relaxed) {
            if let Some(task) = self.lock().take() {
                return task;
            }
            thread::yield_now();
        }
        let mut task = self.lock();
        loop {
            match task.take() {
                Some(task) => return task,
                None => task = self.filled.wait(task).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_are_done_at_once_and_in_the_pool_as_well() {
        let work = || at_once((0..7).collect(), |job: usize| at_once(vec![job, 1], |part| part * part));
        let expected: Vec<Vec<usize>> = (0..7).map(|job| vec![job * job, 1]).collect();
        assert_eq!(work(), expected);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        assert_eq!(pool.install(work), expected);
        assert!(at_once(Vec::<usize>::new(), |job| job).is_empty());
        // Each job waits for the others, so jobs in sequence would never end.
        let barrier = Barrier::new(3);
        at_once(vec![(); 3], |()| barrier.wait().is_leader());
    }

    /// No task is lost while threads are told to sleep.
    #[test]
    fn threads_that_rest_take_the_next_work() {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    rest();
                    thread::yield_now();
                }
            });
            for round in 0..2000usize {
                assert_eq!(at_once(vec![round; 3], |job| job + 1), [round + 1; 3]);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Calls `work` on another thread. If it hangs, the test fails and leaves the thread behind.
    fn ends(work: impl FnOnce() + Send + 'static) {
        let (done, wait) = channel();
        thread::spawn(move || {
            work();
            done.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(60)).expect("it ends, without a panic");
    }

    /// In a pool the holder does the first job itself, and threads outside the pool do the others. So the holder does
    /// not wait for the pool, and runs no task that waits for the lock.
    #[test]
    fn the_holder_of_a_lock_leaves_no_job_to_its_pool() {
        ends(|| {
            for threads in [1, 2, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let lock = Exclusive::new(0);
                let in_pool = || rayon::current_thread_index().is_some();
                let task = |_: usize| {
                    lock.with(|sum| {
                        assert_eq!(at_once(vec![(); 3], |()| in_pool()), [true, false, false]);
                        assert_eq!(meanwhile(in_pool, in_pool), (false, true));
                        let rows = (0..1_000).collect::<Vec<_>>();
                        work_off(rows.chunks(7), 1 << 20, |rows| assert!(rows.is_sorted()));
                        *sum += 1;
                    });
                };
                pool.install(|| turns(0..100).with_max_len(1).for_each(task));
                lock.with(|sum| assert_eq!(*sum, 100));
                // After the lock is released, jobs go into the pool again.
                assert_eq!(pool.install(|| at_once(vec![(); 3], |()| in_pool())), [true; 3]);
            }
        });
    }

    /// On a pool thread both closures run in the pool, which may have one thread.
    #[test]
    fn two_things_meanwhile() {
        ends(|| {
            for threads in [1, 2] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let sum = || {
                    let index = rayon::current_thread_index();
                    let in_same = || rayon::current_thread_index().is_some() == index.is_some();
                    let sum = || turns(0..100).reduce(|| 0, |a, b| a + b);
                    meanwhile(|| (in_same(), sum()), || (in_same(), sum()))
                };
                let expected = ((true, 4_950), (true, 4_950));
                assert_eq!((pool.install(sum), sum()), (expected, expected));
                // Outside the pool and apart from it, each waits for the other, so calls in sequence would never end.
                let barrier = Barrier::new(2);
                let both = || meanwhile(|| barrier.wait().is_leader(), || barrier.wait().is_leader());
                for (first, second) in [both(), pool.install(|| apart(both))] {
                    assert!(first != second);
                }
            }
        });
        for own in [false, true] {
            let done = AtomicBool::new(false);
            let work = |panics: bool| {
                if panics {
                    resume_unwind(Box::new(7));
                }
                thread::sleep(Duration::from_millis(20));
                done.store(true, Ordering::Relaxed);
            };
            let panic = catch_unwind(AssertUnwindSafe(|| meanwhile(|| work(!own), || work(own)))).unwrap_err();
            assert_eq!((panic.downcast_ref(), done.load(Ordering::Relaxed)), (Some(&7), true));
        }
    }

    /// Callers at the same time get different threads, and jobs borrow from their callers.
    #[test]
    fn callers_do_not_wait_for_each_other() {
        let barrier = Barrier::new(4 * 3);
        let callers = |caller: usize| {
            let own: Vec<usize> = (0..3).map(|job| 10 * caller + job).collect();
            let done = at_once(own.iter().collect(), |number: &usize| {
                barrier.wait();
                *number
            });
            assert_eq!(done, own);
        };
        thread::scope(|scope| {
            (0..4).for_each(|caller| {
                scope.spawn(move || callers(caller));
            });
        });
    }

    #[test]
    fn threads_wait_for_the_next_call() {
        // Another test may take a waiting thread meanwhile, but not in each of a hundred calls.
        let mut seen = HashSet::new();
        for _ in 0..100 {
            seen.extend(at_once(vec![(); 2], |()| thread::current().id()));
        }
        assert!(seen.len() < 100, "a hundred calls of two jobs started {} threads", seen.len() - 1);
    }

    #[test]
    fn a_panic_goes_on_once_all_others_are_done() {
        for bad in 0..3 {
            let done: Vec<AtomicBool> = (0..3).map(|_| AtomicBool::new(false)).collect();
            let panic = catch_unwind(AssertUnwindSafe(|| {
                at_once((0..3).collect(), |job: usize| {
                    if job == bad {
                        resume_unwind(Box::new(job));
                    }
                    thread::sleep(Duration::from_millis(20));
                    done[job].store(true, Ordering::Relaxed);
                })
            }));
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&bad));
            assert!((0..3).all(|job| done[job].load(Ordering::Relaxed) == (job != bad)));
        }
        assert_eq!(at_once(vec![1, 2, 3], |job| job), [1, 2, 3], "the threads are still there");
    }
}
