//! The emulator as a device. Device memory is host memory that is registered with the emulator, and every operation
//! finishes before it returns.

use std::borrow::Cow;

use cuda_std::emulator::{self, Buffer};
use cuda_std::global::U32x4;
use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig, MOST_CLUSTER_BLOCKS};

use super::backend::{Backend, ResultArray, TakeResults, WriteRows};
use super::limits::{Limits, Products, check_launch};
use crate::{Error, Result};

/// The checking emulator of `cuda_std` as a device.
#[derive(Clone)]
pub(crate) struct Emulator;

/// The stream of the emulator. Its operations finish before they return.
pub(crate) struct Immediate;

#[cfg(test)]
thread_local! {
    /// Number of bytes that this thread has copied to emulated devices.
    static SENT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The number of bytes that `work` copies to emulated devices on this thread.
#[cfg(test)]
pub(crate) fn bytes_sent(work: impl FnOnce()) -> u64 {
    let before = SENT.get();
    work();
    SENT.get() - before
}

impl Backend for Emulator {
    type Memory = Buffer<U32x4>;
    type Stream = Immediate;

    fn describe(&self) -> String {
        format!("GPU emulator on {} CPU threads", rayon::current_num_threads())
    }

    fn limits(&self) -> &Limits {
        // Few multiprocessors, so that small tests cut rows into segments and tiles into shares. Shared memory suffices
        // for k up to about 1,000, so that small tests also reach the selection by lists.
        static LIMITS: Limits = Limits {
            device: Cow::Borrowed("emulator"),
            multiprocessors: 2,
            shared_bytes: 48 << 10,
            emulated: true,
            products: Products::Both,
            largest_cluster: MOST_CLUSTER_BLOCKS,
        };
        &LIMITS
    }

    fn free_memory(&self) -> Result<u64> {
        // The emulator is for small cases, so a constant replaces the free memory of the host.
        Ok(1 << 30)
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer<U32x4>> {
        let available = self.free_memory()?;
        if bytes as u64 > available {
            return Err(Error::OutOfDeviceMemory { device: self.describe(), asked: bytes as u64, available });
        }
        // The memory is poisoned, so that a kernel that reads unwritten memory gives wrong results and not zeros that
        // happen to be right.
        Ok(Buffer::new_poisoned(bytes.div_ceil(size_of::<U32x4>())))
    }

    fn allocate_on(&self, _: &Immediate, bytes: usize) -> Result<Buffer<U32x4>> {
        self.allocate(bytes)
    }

    fn make_ready(&self, _: &Immediate, _: usize) -> Result<()> {
        Ok(())
    }

    fn address(&self, memory: &Buffer<U32x4>) -> *mut u8 {
        memory.as_ptr().cast_mut().cast()
    }

    fn stream(&self) -> Result<Immediate> {
        Ok(Immediate)
    }

    fn urgent_stream(&self) -> Result<Immediate> {
        Ok(Immediate)
    }

    unsafe fn copy_rows_to_device(
        &self,
        _: &Immediate,
        to: *mut u8,
        rows: usize,
        row_bytes: usize,
        write: &WriteRows<'_>,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        #[cfg(test)]
        SENT.set(SENT.get() + (rows * row_bytes) as u64);
        // SAFETY: the caller promises that `to` has room, and nothing is launched before `write` returns.
        let to = unsafe { std::slice::from_raw_parts_mut(to, rows * row_bytes) };
        // A third of the rows at a time, so that small uploads have several pieces.
        let each = rows.div_ceil(3).max(1);
        to.chunks_mut((each * row_bytes).max(1)).enumerate().for_each(|(at, to)| {
            write(at * each..at * each + to.len() / row_bytes, to);
        });
        Ok(())
    }

    unsafe fn copy_to_host(&self, _: &Immediate, to: &mut [u8], from: *const u8) -> Result<()> {
        // SAFETY: the caller promises that `from` has the bytes of `to`.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
        Ok(())
    }

    unsafe fn copy_results_to_host(
        &self,
        _: &Immediate,
        rows: usize,
        arrays: &[ResultArray],
        take: &mut TakeResults<'_>,
    ) -> Result<()> {
        // Few rows at a time, so that the results of small searches have several parts.
        const ROWS: usize = 5;
        for first in (0..rows).step_by(ROWS) {
            let some = first..rows.min(first + ROWS);
            // SAFETY: the caller promises that the arrays have these rows, all written, and nothing is launched before
            // `take` returns.
            let part = |array: &ResultArray| unsafe {
                std::slice::from_raw_parts(
                    array.from.wrapping_add(first * array.row_bytes),
                    some.len() * array.row_bytes,
                )
            };
            let parts: Vec<&[u8]> = arrays.iter().map(part).collect();
            take(some, &parts);
        }
        Ok(())
    }

    unsafe fn copy(&self, _: &Immediate, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that both ranges exist and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }

    unsafe fn copy_from_device(
        &self,
        stream: &Immediate,
        to: *mut u8,
        _: &Emulator,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller promises the contract of `copy`; all emulators share one memory.
        unsafe { self.copy(stream, to, from, bytes) }
    }

    unsafe fn fill(&self, _: &Immediate, to: *mut u8, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that `to` has room for `bytes` bytes.
        unsafe { to.write_bytes(byte, bytes) };
        Ok(())
    }

    unsafe fn launch<A: KernelArgs>(
        &self,
        _: &Immediate,
        kernel: &Kernel<A>,
        config: LaunchConfig,
        args: A,
    ) -> Result<()> {
        check_launch(kernel.name(), kernel.max_threads(), config)?;
        // SAFETY: the caller promises that the kernel's contract holds.
        match unsafe { emulator::launch(kernel, config, args) } {
            Ok(_) => Ok(()),
            Err(violation) => Err(Error::KernelViolation { violation: Box::new(violation) }),
        }
    }

    #[cfg(any(feature = "cuda", test))]
    fn load<A: KernelArgs>(&self, _: &Kernel<A>, _: &LaunchConfig) -> Result<()> {
        Ok(())
    }

    fn wait_for(&self, _: &Immediate, _: &Immediate) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, _: &Immediate) -> Result<()> {
        Ok(())
    }
}
