//! Faults that are set for a test, and the record of calls.

use std::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A failure to cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Number of calls that succeed before the first failure.
    pub after: u64,
    /// The code that the failing call returns (CUresult).
    pub code: i32,
    /// Whether one call fails or all later calls.
    pub lasts: Lasts,
}

/// The duration of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// Only one call fails.
    Once,
    /// One call and all later calls fail.
    ForGood,
}

/// A call that failed because of a [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// Name of the driver function.
    pub name: &'static str,
    /// The code that the call returned (CUresult).
    pub code: i32,
}

/// A call that [`watch`](crate::watch) recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// Name of the driver function.
    pub name: &'static str,
    /// A number for the place of the call in the program: equal for calls from the same place with the same callers.
    pub site: u64,
}

struct Plan {
    fault: Option<Fault>,
    /// Number of calls since the fault was set.
    calls: u64,
    failed: Option<Failed>,
    watched: Option<Vec<Call>>,
}

static PLAN: Mutex<Plan> = Mutex::new(Plan { fault: None, calls: 0, failed: None, watched: None });

fn plan() -> MutexGuard<'static, Plan> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn set(fault: Option<Fault>) -> Option<Failed> {
    let mut plan = plan();
    plan.fault = fault;
    plan.calls = 0;
    plan.failed.take()
}

pub fn watch<V>(work: impl FnOnce() -> V) -> (V, Vec<Call>) {
    plan().watched = Some(Vec::new());
    let result = work();
    (result, plan().watched.take().unwrap_or_default())
}

/// Whether a call has failed because of the fault since [`set`].
pub fn fired() -> bool {
    plan().failed.is_some()
}

/// Counts a call. Returns the error code if the call must fail.
pub fn count(name: &'static str) -> Option<c_int> {
    let mut plan = plan();
    if let Some(watched) = &mut plan.watched {
        watched.push(Call { name, site: site() });
    }
    let Fault { after, code, lasts } = plan.fault?;
    let number = plan.calls;
    plan.calls += 1;
    let fails = match lasts {
        Lasts::Once => number == after,
        Lasts::ForGood => number >= after,
    };
    if !fails {
        return None;
    }
    plan.failed.get_or_insert(Failed { name, code });
    Some(code)
}

/// Number of stack frames that identify a place: those of this crate, the function that makes the call, and its
/// callers.
const FRAMES: usize = 7;

/// The place of the call: a hash of the return addresses of the innermost frames.
fn site() -> u64 {
    struct Frames {
        addresses: [usize; FRAMES],
        count: usize,
    }
    // SAFETY: the unwinder that the standard library is linked with has these functions, with these signatures.
    unsafe extern "C" {
        fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }
    extern "C" fn visit(context: *mut c_void, argument: *mut c_void) -> c_int {
        const NO_REASON: c_int = 0;
        const END_OF_STACK: c_int = 5;
        // SAFETY: the argument is the `Frames` below, and no other code uses it during the call.
        let frames = unsafe { &mut *argument.cast::<Frames>() };
        if frames.count == FRAMES {
            return END_OF_STACK;
        }
        // SAFETY: the unwinder passes a valid context.
        frames.addresses[frames.count] = unsafe { _Unwind_GetIP(context) };
        frames.count += 1;
        NO_REASON
    }
    let mut frames = Frames { addresses: [0; FRAMES], count: 0 };
    // SAFETY: `visit` uses the pointer only during the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut frames).cast()) };
    let mut hasher = DefaultHasher::new();
    frames.addresses.hash(&mut hasher);
    hasher.finish()
}
