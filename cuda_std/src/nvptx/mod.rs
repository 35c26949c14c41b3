//! The GPU back end. Each collective is an LLVM intrinsic wherever one exists: intrinsics are convergent, so LLVM
//! neither duplicates them nor moves them across branches. It does both with `asm!`.

pub mod async_copy;
pub mod atomic;
pub mod cluster;
pub mod global;
pub mod math;
pub mod mma;
pub mod shared;
pub mod thread;
pub mod warp;
pub mod wgmma;

/// A kernel that panics stops the whole launch with an error (`trap`); the message is lost.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: ends the launch; nothing runs after it.
    unsafe { core::arch::nvptx::trap() }
}
