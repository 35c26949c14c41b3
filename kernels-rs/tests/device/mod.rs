//! A device for tests of kernels, through the CUDA driver's functions and without the library: the driver emulator, or
//! a GPU. A process has one driver, so a test program's run has one of the two.

use std::ffi::CString;
use std::ptr::{null_mut, without_provenance_mut};

use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};
use cuda_std::{Ptr, PtrMut};
use cust_raw::*;

/// The driver's first device, with its primary context current in this thread, and what the test has on it.
pub struct Device {
    /// Whether kernels are compiled for the device. The driver emulator runs those that the program is linked with.
    compiles: bool,
    memory: Vec<CUdeviceptr>,
    modules: Vec<CUmodule>,
}

/// Panics with the driver's code unless it is success.
#[track_caller]
fn check(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

impl Device {
    /// A device of the driver emulator.
    pub fn emulated() -> Self {
        cuda_driver_emulator::install(vec![Default::default()]).unwrap();
        Self::open(false)
    }

    /// The first GPU of the machine.
    pub fn gpu() -> Self {
        Self::open(true)
    }

    fn open(compiles: bool) -> Self {
        // Brings the loader's functions, which stand for libcuda, into the binary.
        assert!(cuda_loader::driver_present(), "no CUDA driver");
        let mut context = null_mut();
        // SAFETY: the driver is initialised before it is used, and the context is retained until `drop`.
        unsafe {
            check(cuInit(0));
            check(cuDevicePrimaryCtxRetain(&mut context, 0));
            check(cuCtxSetCurrent(context));
        }
        Self { compiles, memory: Vec::new(), modules: Vec::new() }
    }

    /// Device memory with a copy of `values`, until the device is dropped.
    pub fn upload<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> PtrMut<T> {
        let mut address = 0;
        // SAFETY: the allocation has as many bytes as `values`.
        unsafe {
            check(cuMemAlloc_v2(&mut address, size_of_val(values)));
            check(cuMemcpyHtoD_v2(address, values.as_ptr().cast(), size_of_val(values)));
        }
        self.memory.push(address);
        PtrMut::new(without_provenance_mut(address as usize), values.len())
    }

    /// A copy of device memory. The driver refuses an address without as many bytes.
    pub fn download<T: bytemuck::Pod>(&self, from: impl Into<Ptr<T>>) -> Vec<T> {
        let from: Ptr<T> = from.into();
        let mut values = vec![T::zeroed(); from.len()];
        let (to, bytes) = (values.as_mut_ptr().cast(), size_of_val(&values[..]));
        // SAFETY: `values` has that many bytes, and any bytes are values.
        check(unsafe { cuMemcpyDtoH_v2(to, (*from).addr() as CUdeviceptr, bytes) });
        values
    }

    /// The PTX of a kernel: compiled for a GPU; for the driver emulator a module with the kernel's name, of which it
    /// reads only the names.
    fn ptx(&self, kernel: &str) -> String {
        if !self.compiles {
            return format!(".version 7.8\n.target sm_80\n.visible .entry {kernel}(\n)\n");
        }
        let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/cuda-builder");
        let builder = cuda_builder::CudaBuilder::new(env!("CARGO_MANIFEST_DIR")).target_dir(target);
        builder.kernels([kernel]).build().unwrap().modules.remove(0).1
    }

    /// Loads `kernel`, launches it, and waits for the end.
    ///
    /// # Safety
    /// The kernel's own contract, for device memory.
    pub unsafe fn launch<A: KernelArgs>(&mut self, kernel: &Kernel<A>, config: LaunchConfig, mut arguments: A) {
        let (text, name) = (CString::new(self.ptx(kernel.name())).unwrap(), CString::new(kernel.name()).unwrap());
        let (mut module, mut function) = (null_mut(), null_mut());
        let [x, y, z] = config.grid.map(|blocks| u32::try_from(blocks).unwrap());
        let ([in_x, in_y, in_z], shared) = (config.block, config.shared_bytes);
        let mut raw = arguments.as_raw();
        let (raw, stream, none) = (raw.as_mut_ptr(), null_mut(), null_mut());
        // SAFETY: text and name end with NUL, `raw` has the address of each argument, and the caller has the kernel's
        // contract.
        unsafe {
            check(cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 0, null_mut(), null_mut()));
            self.modules.push(module);
            check(cuModuleGetFunction(&mut function, module, name.as_ptr()));
            check(cuLaunchKernel(function, x, y, z, in_x, in_y, in_z, shared, stream, raw, none));
            check(cuStreamSynchronize(stream));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: memory, modules and context belong to this value. The codes are not looked at: after a failed launch
        // the driver may refuse these calls, and the test has that failure to report.
        unsafe {
            for &address in &self.memory {
                let _ = cuMemFree_v2(address);
            }
            for &module in &self.modules {
                let _ = cuModuleUnload(module);
            }
            let _ = cuDevicePrimaryCtxRelease_v2(0);
        }
    }
}
