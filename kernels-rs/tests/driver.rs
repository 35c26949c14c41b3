//! A kernel launched through the CUDA driver's functions, without the library: by the driver emulator, or on a GPU with
//! `cargo test -p warpann-kernels --test driver -- --ignored`. (A process has one driver, so one command runs one of
//! the two.)
//!
//! A new kernel is tested here in the same way: by a function such as [`gathers`], with its own arguments. The test
//! compiles this crate and a few small ones, and for the GPU that kernel alone. A test that needs the emulator's checks
//! and no driver calls `cuda_std::emulator::launch`, as README.md shows.
#![cfg(target_os = "linux")]

use cuda_std::launch::{Kernel, KernelArgs, LaunchConfig};
use cuda_std::{Ptr, PtrMut};
use cust_raw::*;
use std::ffi::CString;
use std::ptr::null_mut;
use warpann_kernels::NO_ROW;
use warpann_kernels::select::gather::Gather;

/// The driver's first device, with its primary context current in this thread, and what the test has on it.
struct Device {
    memory: Vec<CUdeviceptr>,
    modules: Vec<CUmodule>,
}

/// Panics with the driver's code unless it is success.
#[track_caller]
fn check(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

impl Device {
    fn open() -> Self {
        // Brings the loader's functions, which stand for libcuda, into the binary.
        assert!(cuda_loader::driver_present(), "no CUDA driver");
        let mut context = null_mut();
        // SAFETY: the driver is initialised before it is used, and the context is retained until `drop`.
        unsafe {
            check(cuInit(0));
            check(cuDevicePrimaryCtxRetain(&mut context, 0));
            check(cuCtxSetCurrent(context));
        }
        Self { memory: Vec::new(), modules: Vec::new() }
    }

    /// Device memory with a copy of `values`, until the device is dropped.
    fn upload<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> CUdeviceptr {
        let mut address = 0;
        // SAFETY: the allocation has as many bytes as `values`.
        unsafe {
            check(cuMemAlloc_v2(&mut address, size_of_val(values)));
            check(cuMemcpyHtoD_v2(address, values.as_ptr().cast(), size_of_val(values)));
        }
        self.memory.push(address);
        address
    }

    /// Copies device memory into `values`. The driver refuses an address without as many bytes.
    fn download<T: bytemuck::Pod>(&self, values: &mut [T], address: CUdeviceptr) {
        // SAFETY: `values` has that many bytes, and any bytes are values.
        check(unsafe { cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, size_of_val(values)) });
    }

    /// Loads the module `ptx`, launches `kernel` from it, and waits for the end.
    ///
    /// # Safety
    /// The kernel's own contract, for device memory.
    unsafe fn launch<A: KernelArgs>(&mut self, ptx: &str, kernel: &Kernel<A>, config: LaunchConfig, mut arguments: A) {
        let (text, name) = (CString::new(ptx).unwrap(), CString::new(kernel.name()).unwrap());
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

/// Gathers the payloads of four positions in two rows.
fn gathers(ptx: &str) {
    let mut device = Device::open();
    let payloads = device.upload(&[10u32, 11, 12, 20, 21, 22]);
    let positions = device.upload(&[2, 0, NO_ROW, 1]);
    let out = device.upload(&[0u32; 4]);
    let launch = Gather::<u32> {
        payloads: Ptr::new(std::ptr::without_provenance(payloads as usize), 6),
        stride: 3,
        starts: None,
        positions: Ptr::new(std::ptr::without_provenance(positions as usize), 4),
        out: PtrMut::new(std::ptr::without_provenance_mut(out as usize), 4),
        k: 2,
        slots: 4,
    };
    // SAFETY: two rows of three payloads, four positions below 3 or absent, four results.
    unsafe { device.launch(ptx, &Gather::<u32>::KERNEL, launch.config(), launch) };
    let mut found = [0; 4];
    device.download(&mut found, out);
    assert_eq!(found, [12, 10, u32::MAX, 21]);
}

/// The emulated driver reads the names of a module's entries, and runs the kernels of these names that the program is
/// linked with.
#[test]
fn on_the_driver_emulator() {
    cuda_driver_emulator::install(vec![Default::default()]).unwrap();
    gathers(&format!(".version 7.8\n.target sm_80\n.visible .entry {}(\n)\n", Gather::<u32>::KERNEL.name()));
    assert_eq!(cuda_driver_emulator::violations(), [""; 0]);
    assert_eq!(cuda_driver_emulator::usage(0), Default::default(), "memory, modules and context are released");
}

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu() {
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/cuda-builder");
    let builder = cuda_builder::CudaBuilder::new(env!("CARGO_MANIFEST_DIR")).target_dir(target);
    let built = builder.kernels([Gather::<u32>::KERNEL.name()]).build().unwrap();
    gathers(&built.modules[0].1);
}
