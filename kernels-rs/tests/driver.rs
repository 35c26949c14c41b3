//! A kernel launched through the CUDA driver's functions, without the library: by the driver emulator, or on a GPU with
//! `cargo test -p warpann-kernels --test driver -- --ignored`.
#![cfg(target_os = "linux")]

mod device;

use device::Device;
use warpann_kernels::NO_ROW;
use warpann_kernels::select::gather::Gather;

/// Gathers the payloads of four positions in two rows.
fn gathers(mut device: Device) {
    let out = device.upload(&[0u32; 4]);
    let launch = Gather::<u32> {
        payloads: device.upload(&[10u32, 11, 12, 20, 21, 22]).into(),
        stride: 3,
        starts: None,
        positions: device.upload(&[2, 0, NO_ROW, 1]).into(),
        out,
        k: 2,
        slots: 4,
    };
    // SAFETY: two rows of three payloads, four positions below 3 or absent, four results.
    unsafe { device.launch(&Gather::<u32>::KERNEL, launch.config(), launch) };
    assert_eq!(device.download(out), [12, 10, u32::MAX, 21]);
}

#[test]
fn on_the_driver_emulator() {
    gathers(Device::emulated());
    assert_eq!(cuda_driver_emulator::violations(), [""; 0]);
    assert_eq!(cuda_driver_emulator::usage(0), Default::default(), "memory, modules and context are released");
}

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu() {
    gathers(Device::gpu());
}
