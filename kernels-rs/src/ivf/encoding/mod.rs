//! What the bytes of a stored vector mean to a scan, a file for each encoding.
//!
//! | module | encoding |
//! |---|---|
//! | [`flat`] | vectors as they were added, scanned by their f16 operands |
//! | [`pq`] | product-quantizer codes of residuals |

use cuda_std::shared::SharedPtr;

use crate::ivf::list_scan::ScanLists;

pub(crate) mod flat;
pub(crate) mod pq;

/// Where the f16 operands of a list's rows come from.
pub(crate) trait Rows: Copy {
    /// Whether a launch may have no items: dense use.
    const DENSE: bool;

    /// The rows of a launch.
    fn of(launch: &ScanLists) -> Self;

    /// Stages of the ring; with one, a stage is filled just before it is used.
    const STAGES: u32;

    /// Work before the first item. All threads of the block; a barrier follows.
    ///
    /// # Safety
    /// `to` has the room that the launch gave for it.
    unsafe fn begin(&mut self, to: SharedPtr<u8>, thread: u32);

    /// What a thread fetches for the next stage while this one is used.
    type Ahead: Copy;

    /// Fetches it: for components 64·`chunk` .. of rows `first` .. `first` + 128 of the storage.
    ///
    /// # Safety
    /// The rows exist.
    unsafe fn ahead(&self, first: u32, chunk: u32, thread: u32) -> Self::Ahead;

    /// Brings components 64·`chunk` .. of rows `first` .. `first` + 128 of the storage, which belong to `list`, into a stage. All
    /// threads of the block; complete after a commit, the wait for it, and a barrier.
    ///
    /// # Safety
    /// The rows exist, and the stage has room for 16 KiB; `ahead` was fetched for them.
    unsafe fn fill(&self, to: SharedPtr<u8>, list: u32, first: u32, chunk: u32, thread: u32, ahead: Self::Ahead);
}
