//! Stacks for threads: guarded, reused, and coloured.
//!
//! A new stack costs three system calls, and a page fault when its thread starts. A launch therefore takes its stacks
//! from a pool of the process and returns them. The pool belongs to no OS thread: many OS threads launch, and few of
//! them at the same time.
//!
//! Stacks of equal size put the hot words of all lanes into the same L1 cache sets. Shifting the top of each by 64
//! bytes times its number cuts a switch pair from 8.8 to 2.6 ns.

#[cfg(windows)]
use corosensei::stack::StackTebFields;
use corosensei::stack::{DefaultStack, Stack, StackPointer};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a stack; only touched pages cost memory.
const SIZE: usize = 256 * 1024;
/// Cache line: a colour.
const LINE: usize = 64;
/// Distinct colours: a page of lines less a few, odd so that lanes of neighbouring warps differ too. On Windows only
/// the first page of a new stack may be written from another stack, as the start of a thread does, so there is one
/// colour.
const COLOURS: usize = if cfg!(windows) { 1 } else { 61 };

/// A stack whose usable top lies some cache lines below the real one.
pub struct ColouredStack {
    inner: DefaultStack,
    shift: usize,
}

// SAFETY: base and limit are those of a valid stack, the base lowered by less than its size and still a multiple of 16.
unsafe impl Stack for ColouredStack {
    fn base(&self) -> StackPointer {
        let base = self.inner.base().get() - self.shift;
        StackPointer::new(base).unwrap_or_else(|| self.inner.base())
    }

    fn limit(&self) -> StackPointer {
        self.inner.limit()
    }

    #[cfg(windows)]
    fn teb_fields(&self) -> StackTebFields {
        self.inner.teb_fields()
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.inner.update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}

/// Stacks that no launch uses at present.
struct Pool(Mutex<Vec<DefaultStack>>);

static POOL: Pool = Pool(Mutex::new(Vec::new()));

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<DefaultStack>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `count` stacks, of which new ones are made only when the pool is empty.
    fn take(&self, count: usize) -> Vec<DefaultStack> {
        let mut idle = self.lock();
        let kept = idle.len().saturating_sub(count);
        let mut stacks = idle.split_off(kept);
        drop(idle);
        stacks.resize_with(count, map_stack);
        stacks
    }

    fn give(&self, mut stacks: Vec<DefaultStack>) {
        self.lock().append(&mut stacks);
    }
}

/// # Panics
/// If the system has no memory for another stack.
fn map_stack() -> DefaultStack {
    DefaultStack::new(SIZE).expect("memory for an emulated thread's stack")
}

/// The stacks of a block's threads, for one launch on one OS thread.
pub struct Stacks(Vec<DefaultStack>);

impl Stacks {
    /// Stacks for `threads` threads. There are never more stacks than threads of all launches that run at the same
    /// time: a launch whose threads have no room waits before it takes any ([`super::workers`]).
    ///
    /// # Panics
    /// If the system has no memory for another stack.
    pub fn take(threads: usize) -> Self {
        Self(POOL.take(threads))
    }

    /// A stack with the colour of thread `thread`.
    ///
    /// # Panics
    /// If the system has no memory for another stack.
    pub fn pop(&mut self, thread: usize) -> ColouredStack {
        // None is left where a block was given up: its threads took their stacks with them.
        let inner = self.0.pop().unwrap_or_else(map_stack);
        ColouredStack { inner, shift: thread % COLOURS * LINE }
    }

    /// Takes back the stack of a thread that has returned.
    pub fn push(&mut self, stack: ColouredStack) {
        self.0.push(stack.inner);
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        POOL.give(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bases(stacks: &[DefaultStack]) -> Vec<usize> {
        let mut bases: Vec<usize> = stacks.iter().map(|stack| stack.base().get()).collect();
        bases.sort_unstable();
        bases
    }

    #[test]
    fn os_threads_reuse_the_stacks_of_one_another() {
        let pool = Pool(Mutex::new(Vec::new()));
        let eight = pool.take(8);
        let first = bases(&eight);
        pool.give(eight);
        // The stacks of the first OS thread are alive in the pool, so a new one has another address.
        let (five, four) = std::thread::scope(|scope| {
            scope.spawn(|| (pool.take(5), pool.take(4))).join().expect("the thread takes stacks")
        });
        let mut taken: Vec<DefaultStack> = five.into_iter().chain(four).collect();
        assert_eq!(taken.len(), 9);
        assert_eq!(taken.iter().filter(|stack| first.contains(&stack.base().get())).count(), 8);
        let all = bases(&taken);
        pool.give(taken.split_off(2));
        pool.give(taken);
        assert_eq!(bases(&pool.take(9)), all);
    }

    #[test]
    fn a_block_that_was_given_up_leaves_no_stack_and_the_next_gets_new_ones() {
        let mut stacks = Stacks(Vec::new());
        let (first, second) = (stacks.pop(0), stacks.pop(1));
        let colour = 1 % COLOURS * LINE;
        assert_eq!(first.base().get() - first.limit().get(), second.base().get() - second.limit().get() + colour);
        stacks.push(second);
        assert_eq!(stacks.0.len(), 1);
    }
}
