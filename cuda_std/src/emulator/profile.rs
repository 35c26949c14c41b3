//! A launch that counts what warps execute, by source line.

use super::{
    counts::{SiteCount, Stats},
    launch,
    violation::Violation,
};
use crate::launch::{Kernel, KernelArgs, LaunchConfig};
use std::fmt;

/// Counts of a launch, and executions of its collectives by source line.
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

/// Runs `kernel` as [`launch`](super::launch()) does, checks included, and counts how often warps executed each
/// collective and barrier, by place in the source. Counting adds a few per cent to the run time; a launch that does not
/// count pays nothing for it.
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
