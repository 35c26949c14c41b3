//! Clusters: accesses to the shared memory of other blocks, checked and recorded there.

use crate::{
    Site,
    emulator::{
        block::Block,
        context::{Lane, access, current, fail, meet},
        shared_memory::Peer,
        violation::{Access, Operation, ViolationKind},
    },
};

/// Bits of an address within a block. The rank of the block, plus one, stands above them.
const ADDRESS_BITS: u32 = 24;

#[inline(always)]
pub fn block_rank() -> u32 {
    // SAFETY: the running thread's block is alive.
    unsafe { (*(*current()).block).cluster.rank }
}

#[inline(always)]
pub fn block_count() -> u32 {
    // SAFETY: the running thread's block is alive.
    unsafe { (*(*current()).block).config.cluster }
}

#[inline(always)]
pub fn sync(site: Site) {
    // SAFETY: the running thread, holding no reference.
    unsafe { meet(current(), Operation::SyncCluster, u32::MAX, site) }
}

/// # Safety
/// As `cluster::peer`.
pub unsafe fn peer(address: u32, rank: u32, site: Site) -> u32 {
    let (lane, blocks) = (current(), block_count());
    if rank >= blocks {
        // SAFETY: the running thread.
        unsafe { fail(lane, site, ViolationKind::NoSuchPeer { rank, blocks }) }
    }
    (rank + 1) << ADDRESS_BITS | address
}

/// Checks and records an access of the running thread, or stops it. Returns the host address of the place.
///
/// # Safety
/// `lane` is the running thread.
#[inline(never)]
unsafe fn place<const BYTES: u32>(lane: *mut Lane, mapped: u32, kind: Access, site: Site) -> *mut u8 {
    let address = mapped & ((1 << ADDRESS_BITS) - 1);
    let rank = (mapped >> ADDRESS_BITS).wrapping_sub(1);
    // SAFETY: the blocks of the cluster are alive, and nothing else runs on this OS thread. The peer is another block
    // than the thread's own where both are borrowed.
    unsafe {
        let own: *mut Block = (*lane).block;
        let cluster = &(*own).cluster;
        let Some(&owner) = cluster.blocks.get(rank as usize) else {
            fail(lane, site, ViolationKind::NoSuchPeer { rank, blocks: cluster.blocks.len() as u32 })
        };
        if rank == cluster.rank {
            match kind {
                Access::Read => super::shared::read::<BYTES>(lane, address, site),
                Access::Atomic => super::shared::atomic::<BYTES>(lane, address, site),
                _ => super::shared::write::<BYTES>(lane, address, kind, site),
            }
            return (*own).shared.place(address);
        }
        let owner = &mut *owner;
        access(lane, site, |block, by| {
            if block.cluster.barriers == 0 {
                return Err(ViolationKind::PeerNotStarted { access: kind, rank });
            }
            if owner.cluster.returned {
                return Err(ViolationKind::PeerExited { access: kind, rank });
            }
            let peer = Peer { rank: block.cluster.rank, thread: by.thread(), epoch: block.shared.epoch() };
            owner.shared.access_by_peer(peer, address, BYTES, kind, site)
        });
        owner.shared.place(address)
    }
}

/// As [`place`], for an access of the size of `T`.
///
/// # Safety
/// As [`place`]; the size of `T` is 4 or 8.
#[inline(always)]
unsafe fn sized<T>(mapped: u32, kind: Access, site: Site) -> *mut T {
    let lane = current();
    // SAFETY: same contract.
    let place = unsafe {
        if size_of::<T>() == 4 { place::<4>(lane, mapped, kind, site) } else { place::<8>(lane, mapped, kind, site) }
    };
    place.cast()
}

/// # Safety
/// As `PeerPtr::load`.
#[inline(always)]
pub unsafe fn load<T: Copy>(address: u32, site: Site) -> T {
    // SAFETY: the access was checked, so the place is inside the memory.
    unsafe { sized::<T>(address, Access::Read, site).read() }
}

/// # Safety
/// As `PeerPtr::store`.
#[inline(always)]
pub unsafe fn store<T: Copy>(address: u32, value: T, site: Site) {
    // SAFETY: as for load.
    unsafe { sized::<T>(address, Access::Write, site).write(value) }
}

/// # Safety
/// As `cluster::add_u32`.
#[inline(always)]
pub unsafe fn add_u32(address: u32, value: u32, site: Site) -> u32 {
    // SAFETY: as for load.
    unsafe {
        let place = sized::<u32>(address, Access::Atomic, site);
        let old = place.read();
        place.write(old.wrapping_add(value));
        (*(*current()).block).stats.shared_atomics += 1;
        old
    }
}
