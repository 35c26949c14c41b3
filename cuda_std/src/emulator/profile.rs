//! Counts what warps execute, by source line.

use super::{
    arena::Block,
    launch::{self, Stats},
    violation::{Operation, SourceLocation, Violation},
};
use crate::{
    Site,
    launch::{Kernel, KernelArgs, LaunchConfig},
};
use std::{collections::HashMap, fmt};

/// How often warps executed one collective or barrier of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteCount {
    /// The collective or barrier that was executed.
    pub operation: Operation,
    /// The call in the kernel's source (or in the code that the kernel calls).
    pub location: SourceLocation,
    /// Executions, all warps together: one for each set of lanes that met, as the hardware issues one instruction for them.
    /// A shuffle of 64 bits is two, for it is two instructions; a barrier is one for each warp that waits.
    pub executions: u64,
}

/// What a launch did, and what its collectives cost line by line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// As [`launch`](super::launch()) counts.
    pub stats: Stats,
    /// Every collective and barrier that was executed, by file, line, column and operation.
    pub sites: Vec<SiteCount>,
}

impl Profile {
    /// Executions of the collectives that `select` accepts: of a line, of a kind, of a file.
    pub fn executions(&self, select: impl Fn(&SiteCount) -> bool) -> u64 {
        self.sites.iter().filter(|site| select(site)).map(|site| site.executions).sum()
    }
}

/// One line for each site, the most executed first.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sites: Vec<_> = self.sites.iter().collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.executions));
        for SiteCount { operation, location, executions } in sites {
            writeln!(f, "{executions:>12}  {:<18} {location}", operation.name())?;
        }
        Ok(())
    }
}

/// Runs `kernel` as [`launch`](super::launch()) does, checks included, and counts how often warps executed each collective
/// and barrier, by place in the source. Counting adds a few per cent to the run time; a launch that does not count pays nothing for it.
///
/// ```
/// use cuda_std::emulator::{self, Operation};
/// use cuda_std::{kernel, launch::LaunchConfig, thread, warp};
///
/// /// Adds up the thread indices of each warp.
/// ///
/// /// # Safety
/// /// None is needed.
/// #[kernel]
/// pub unsafe fn sum_indices() {
///     let mut sum = thread::thread_idx_x();
///     for stride in [16, 8, 4, 2, 1] {
///         sum += warp::shuffle_xor(warp::FULL_MASK, sum, stride);
///     }
/// }
///
/// let config = LaunchConfig::linear(10, 64);
/// // SAFETY: the kernel asks for nothing.
/// let profile = unsafe { emulator::profile(&SumIndices::KERNEL, config, SumIndices {})? };
/// // Ten blocks of two warps, five shuffles each, all on one line.
/// assert_eq!(profile.sites.len(), 1);
/// assert_eq!(profile.executions(|site| site.operation == Operation::ShuffleXor), 10 * 2 * 5);
/// println!("{profile}");
/// # Ok::<(), emulator::Violation>(())
/// ```
///
/// # Safety
/// As [`launch`](super::launch()).
///
/// # Errors
/// As [`launch`](super::launch()).
#[track_caller]
pub unsafe fn profile<A: KernelArgs>(
    kernel: &Kernel<A>,
    config: LaunchConfig,
    arguments: A,
) -> Result<Profile, Violation> {
    // SAFETY: the same contract.
    let (stats, counter) = unsafe { launch::run(kernel, config, arguments, true) }?;
    Ok(Profile { stats, sites: counter.into_sites() })
}

/// Counts of one OS thread, by operation and address of the place.
#[derive(Default)]
pub struct Counter {
    counts: HashMap<(Operation, usize), (Site, u64)>,
}

impl Counter {
    /// Adds what another thread counted.
    pub fn add(&mut self, other: Self) {
        for (key, (site, count)) in other.counts {
            self.counts.entry(key).or_insert((site, 0)).1 += count;
        }
    }

    /// The counts in the source's order; the same place can have several addresses.
    fn into_sites(self) -> Vec<SiteCount> {
        let mut counts: Vec<_> =
            self.counts.into_iter().map(|((operation, _), (site, count))| (*site, operation, count)).collect();
        counts.sort_unstable_by_key(|&(site, operation, _)| (site, operation as u8));
        counts.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            if same {
                kept.2 += next.2;
            }
            same
        });
        let counts = counts.into_iter();
        counts
            .map(|(site, operation, executions)| SiteCount { operation, location: (&site).into(), executions })
            .collect()
    }
}

impl Block {
    /// Notes one execution by a warp, or by the lanes of it that met.
    #[inline(always)]
    pub fn count(&mut self, operation: Operation, site: Site, times: u64) {
        if let Some(counter) = &mut self.counter {
            let key = (operation, std::ptr::from_ref(site).addr());
            counter.counts.entry(key).or_insert((site, 0)).1 += times;
        }
    }
}
