//! The types of keys and payloads in the kernels.

use cuda_std::launch::Kernel;
use half::{bf16, f16};
use warpann_kernels::select::gather::Gather;
use warpann_kernels::select::keys::{self, Key as _, KeyType};

/// A key type of the kernels. Public only so that it can seal [`crate::select::Key`].
pub trait DeviceKey: Copy + 'static {
    /// The key type whose kernels are launched.
    const KERNELS: KeyType;
    /// A mask whose exclusive or with a key reverses the order of keys.
    const FLIP: u32;
    /// Whether WarpSelect, which supports only f32, selects these keys.
    const WARP_SELECT: bool = matches!(Self::KERNELS, KeyType::F32);
}

macro_rules! device_keys {
    ($($key:ty, $name:ident, $of_kernels:ident;)*) => {$(
        impl DeviceKey for $key {
            const KERNELS: KeyType = KeyType::$name;
            const FLIP: u32 = keys::$of_kernels::FLIP;
        }
    )*};
}
device_keys! {
    f32, F32, F32Key;
    f16, F16, F16Key;
    bf16, Bf16, Bf16Key;
    i32, I32, I32Key;
    u32, U32, U32Key;
}

/// A type of payloads in the kernels. Public only so that it can seal [`crate::select::Payload`].
pub trait DevicePayload: Copy + 'static {
    /// The kernel that looks up the payloads of selected keys.
    const GATHER: Kernel<Gather<Self>>;
}

impl DevicePayload for u32 {
    const GATHER: Kernel<Gather<u32>> = Gather::<u32>::KERNEL;
}

impl DevicePayload for u64 {
    const GATHER: Kernel<Gather<u64>> = Gather::<u64>::KERNEL;
}
