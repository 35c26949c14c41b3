//! Clusters: blocks that run at the same time on neighbouring multiprocessors, and access each other's shared memory
//! (compute capability 9.0 and later).
//!
//! The launch forms the clusters ([`LaunchConfig::with_cluster`](crate::launch::LaunchConfig::with_cluster)). In a
//! launch without clusters every block is a cluster of its own. A kernel that uses this module is for architectures
//! from `sm_90` on (`arch = "sm_90"` of [`kernel`](macro@crate::kernel)).
//!
//! # Order
//! [`sync`] is the only order between the blocks of a cluster that the emulator follows. The shared memory of a peer
//! exists from the first [`sync`] of the cluster on, and until its block returns. So a kernel calls [`sync`] before the
//! first access to a peer and after the last one.

use crate::{imp, shared::SharedPtr};
use core::{marker::PhantomData, panic::Location};

/// Rank of this block in its cluster (`%cluster_ctarank`).
#[inline(always)]
pub fn block_rank() -> u32 {
    imp::cluster::block_rank()
}

/// Number of blocks of the cluster (`%cluster_nctarank`).
#[inline(always)]
pub fn block_count() -> u32 {
    imp::cluster::block_count()
}

/// Waits until every thread of every block of the cluster has arrived. What each thread wrote before, in global memory
/// or in the shared memory of any of the blocks, is then visible to all of them (`barrier.cluster.arrive`,
/// `barrier.cluster.wait`, which release and acquire).
///
/// Every thread of the cluster must arrive. It is a fault if a thread has returned or waits at another barrier.
#[track_caller]
#[inline(always)]
pub fn sync() {
    imp::cluster::sync(Location::caller());
}

/// A pointer to a `T` in the shared memory of a block of the cluster: a byte address in the cluster's shared window.
pub struct PeerPtr<T> {
    address: u32,
    of: PhantomData<*mut T>,
}

impl<T> Clone for PeerPtr<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PeerPtr<T> {}

/// The place in the shared memory of block `rank` of the cluster that `place` is in this block's
/// (`mapa.shared::cluster`).
///
/// # Safety
/// The cluster has a block `rank`. `place` is a place in this block's shared memory; the blocks have the same layout.
#[track_caller]
#[inline(always)]
pub unsafe fn peer<T>(place: SharedPtr<T>, rank: u32) -> PeerPtr<T> {
    // SAFETY: same contract.
    PeerPtr { address: unsafe { imp::cluster::peer(place.address(), rank, Location::caller()) }, of: PhantomData }
}

impl<T> PeerPtr<T> {
    /// The pointer `count` elements further on.
    ///
    /// # Safety
    /// The result points into the same array or one past its end.
    #[inline(always)]
    pub const unsafe fn add(self, count: u32) -> Self {
        let address = self.address.wrapping_add(count.wrapping_mul(size_of::<T>() as u32));
        Self { address, of: PhantomData }
    }
}

impl<T: Copy> PeerPtr<T> {
    /// Fails to compile unless an access can have the size of `T`.
    const SIZE_FITS: () = assert!(
        matches!(size_of::<T>(), 4 | 8) && align_of::<T>() <= size_of::<T>(),
        "accesses to a peer move values of 4 or 8 bytes"
    );

    /// The value here (`ld.shared::cluster`, one access).
    ///
    /// # Safety
    /// The place lies in the shared memory of a block that has started and does not return before the next [`sync`]. It
    /// is aligned to the size of `T`, and holds a `T` that some thread wrote. No thread writes it between the last
    /// [`sync`] and the next one.
    #[track_caller]
    #[inline(always)]
    pub unsafe fn load(self) -> T {
        const { Self::SIZE_FITS };
        // SAFETY: same contract, and the size was checked.
        unsafe { imp::cluster::load(self.address, Location::caller()) }
    }

    /// Writes `value` here (`st.shared::cluster`, one access).
    ///
    /// # Safety
    /// As [`Self::load`], except that nobody need have written the place, and that no other thread accesses it between
    /// the last [`sync`] and the next one.
    #[track_caller]
    #[inline(always)]
    pub unsafe fn store(self, value: T) {
        const { Self::SIZE_FITS };
        // SAFETY: same contract, and the size was checked.
        unsafe { imp::cluster::store(self.address, value, Location::caller()) }
    }
}

/// Adds `value` modulo 2³² to the place in the shared memory of a block of the cluster, and returns the value before
/// (`atom.relaxed.cluster.shared::cluster.add.u32`).
///
/// # Safety
/// As [`PeerPtr::load`], except that other threads may access the place by atomic operations.
#[track_caller]
#[inline(always)]
pub unsafe fn add_u32(p: PeerPtr<u32>, value: u32) -> u32 {
    // SAFETY: same contract.
    unsafe { imp::cluster::add_u32(p.address, value, Location::caller()) }
}
