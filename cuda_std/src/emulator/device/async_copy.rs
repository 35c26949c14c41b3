//! Asynchronous copies: recorded when started, performed when waited for, so that a missing wait shows.

use super::global::{check, record};
use crate::{
    Site,
    emulator::{
        context::{Copy, Lane, current, fail},
        violation::{Access, ViolationKind},
    },
};

/// # Safety
/// As `async_copy::copy_16`.
#[inline(always)]
pub unsafe fn copy<const BYTES: u32>(dst: u32, src: *const u8, site: Site) {
    // SAFETY: same contract.
    unsafe { copy_zfill::<BYTES>(dst, src, BYTES, site) }
}

/// # Safety
/// As `async_copy::copy_16_zfill`.
#[inline(always)]
pub unsafe fn copy_zfill<const BYTES: u32>(dst: u32, src: *const u8, src_bytes: u32, site: Site) {
    let lane = current();
    // SAFETY: the running thread, whose block is alive; nothing else runs on this OS thread.
    unsafe {
        if src_bytes > BYTES {
            fail(lane, site, ViolationKind::AsyncCopySize { asked: src_bytes, limit: BYTES });
        }
        if !src.addr().is_multiple_of(BYTES as usize) {
            fail(lane, site, ViolationKind::GlobalMisaligned { address: src.addr(), alignment: BYTES as usize });
        }
        let mut recorded = false;
        if src_bytes > 0 {
            recorded = check(lane, src.addr(), src_bytes as usize, 1, Access::Read, site);
        }
        if recorded {
            record(lane, src.addr(), src_bytes as usize, Access::Read, site);
        }
        (*(*lane).block).stats.global_load_bytes += u64::from(src_bytes);
        super::shared::write::<BYTES>(lane, dst, Access::AsyncCopy, site);
        let copies = &mut (*lane).copies;
        copies.queue.push_back(Copy { dst, src, src_bytes, bytes: BYTES, recorded, site });
        copies.open += 1;
    }
}

pub fn commit(_: Site) {
    // SAFETY: the running thread's lane is alive; nothing else runs on this OS thread.
    let copies = unsafe { &mut (*current()).copies };
    copies.groups.push_back(std::mem::take(&mut copies.open));
}

#[inline(always)]
pub fn wait_group<const N: u32>(_: Site) {
    wait(N as usize);
}

pub fn wait_all(site: Site) {
    commit(site);
    wait(0);
}

/// Performs the copies of all but the latest `unfinished` groups.
fn wait(unfinished: usize) {
    let lane = current();
    // SAFETY: the running thread's lane and block are alive; nothing else runs on this OS thread. Sources and
    // destinations were checked when the copies were started, and both outlive the launch.
    unsafe {
        let (copies, block) = (&mut (*lane).copies, &mut *(*lane).block);
        while copies.groups.len() > unfinished {
            let count = copies.groups.pop_front().unwrap_or(0);
            for copy in copies.queue.drain(..count) {
                if copy.recorded {
                    let (from, bytes) = (copy.src.addr(), copy.src_bytes as usize);
                    if let Err(kind) =
                        block.global.access(Lane::accessor(lane), from..from + bytes, Access::Read, copy.site)
                    {
                        fail(lane, copy.site, kind);
                    }
                }
                let place = block.shared.place(copy.dst);
                std::ptr::copy_nonoverlapping(copy.src, place, copy.src_bytes as usize);
                place.add(copy.src_bytes as usize).write_bytes(0, (copy.bytes - copy.src_bytes) as usize);
                block.shared.complete(Lane::accessor(lane), copy.dst, copy.bytes, copy.site);
            }
        }
    }
}
