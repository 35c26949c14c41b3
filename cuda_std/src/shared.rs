//! Shared memory: what the threads of one block have in common.
//!
//! It is addressed by [`SharedPtr`], not by Rust pointers: those would become generic loads on the GPU, and the emulator
//! could not check them. Memory that no thread of the block has written holds nothing; reading it is a fault.

use crate::imp;
use core::{marker::PhantomData, panic::Location};

/// A place for a `T` in shared memory: a byte address in the block's window.
pub struct SharedPtr<T> {
    address: u32,
    of: PhantomData<*mut T>,
}

impl<T> Clone for SharedPtr<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// The place at byte `address` of the window. Forming it is harmless; the accesses are unsafe.
    #[inline(always)]
    pub const fn from_address(address: u32) -> Self {
        Self { address, of: PhantomData }
    }

    /// Byte address in the shared window, as PTX instructions take it.
    #[inline(always)]
    pub const fn address(self) -> u32 {
        self.address
    }

    /// The same place, seen as another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> SharedPtr<U> {
        SharedPtr::from_address(self.address)
    }

    /// The place `count` elements further on; wraps at 2³² bytes.
    ///
    /// # Safety
    /// The place lies in the same array (or one past its end).
    #[inline(always)]
    pub const unsafe fn add(self, count: u32) -> Self {
        Self::from_address(self.address.wrapping_add(count.wrapping_mul(size_of::<T>() as u32)))
    }
}

impl<T: Copy> SharedPtr<T> {
    /// The size of `T` must be one that a shared access has.
    const SIZE_FITS: () = assert!(
        matches!(size_of::<T>(), 1 | 2 | 4 | 8 | 16) && align_of::<T>() <= size_of::<T>(),
        "shared memory moves values of 1, 2, 4, 8 or 16 bytes"
    );

    /// The value here (`ld.shared`, one access; a `T` of 8 or 16 bytes needs that alignment).
    ///
    /// # Safety
    /// The place lies in the block's shared memory, is aligned to the size of `T`, holds a `T` that some thread wrote,
    /// and no other thread writes it before the next synchronisation.
    #[track_caller]
    #[inline(always)]
    pub unsafe fn load(self) -> T {
        const { Self::SIZE_FITS };
        // SAFETY: same contract, and the size was checked.
        unsafe { imp::shared::load(self.address, Location::caller()) }
    }

    /// Writes `value` here (`st.shared`, one access; a `T` of 8 or 16 bytes needs that alignment).
    ///
    /// # Safety
    /// The place lies in the block's shared memory, is aligned to the size of `T`, and no other thread accesses it before
    /// the next synchronisation.
    #[track_caller]
    #[inline(always)]
    pub unsafe fn store(self, value: T) {
        const { Self::SIZE_FITS };
        // SAFETY: same contract, and the size was checked.
        unsafe { imp::shared::store(self.address, value, Location::caller()) }
    }
}

/// The start of the dynamic shared memory, whose size the launch sets; aligned to 1024 bytes.
#[inline(always)]
pub fn dynamic<T>() -> SharedPtr<T> {
    SharedPtr::from_address(imp::shared::dynamic())
}

/// The array behind [`shared_array!`](crate::shared_array); `site` is the address of a static of the place of call.
#[doc(hidden)]
#[track_caller]
#[inline(always)]
pub fn static_array<T, const LEN: usize>(site: &'static u8) -> SharedPtr<T> {
    SharedPtr::from_address(imp::shared::static_array::<T, LEN>(core::ptr::from_ref(site).addr(), Location::caller()))
}

/// `shared_array!(T, LEN)`: a static shared array of `LEN` values of `T`, 16-byte aligned, as a
/// [`SharedPtr<T>`](crate::shared::SharedPtr).
///
/// One array per place in the source. On the GPU, every inlined copy of that place is an array of its own (two calls of a
/// function that holds one cost twice the memory), while the emulator has one for all: call it once in a kernel and pass
/// the pointer on.
///
/// ```
/// # use cuda_std::{PtrMut, emulator::{self, Buffer}, global, kernel, launch::LaunchConfig, shared_array, thread};
/// /// Reverses 64 values. One block of 64 threads.
/// ///
/// /// # Safety
/// /// `x` has 64 elements.
/// #[kernel(max_threads = 64)]
/// pub unsafe fn reverse(x: PtrMut<u32>) {
///     let t = thread::thread_idx_x();
///     let tile = shared_array!(u32, 64);
///     // SAFETY: t < 64 everywhere, and the barrier stands between writes and reads.
///     unsafe {
///         tile.add(t).store(global::load(x.add(t as usize)));
///         thread::sync_threads();
///         global::store(x.add(t as usize), tile.add(63 - t).load());
///     }
/// }
///
/// let mut x = Buffer::from_slice(&std::array::from_fn::<u32, 64, _>(|i| i as u32));
/// let launch = Reverse { x: x.as_mut_ptr() };
/// // SAFETY: `x` has 64 elements.
/// unsafe { emulator::launch(&Reverse::KERNEL, LaunchConfig::linear(1, 64), launch)? };
/// assert_eq!(x.to_vec()[..3], [63, 62, 61]);
/// # Ok::<(), emulator::Violation>(())
/// ```
#[macro_export]
macro_rules! shared_array {
    ($element:ty, $len:expr) => {{
        static SITE: u8 = 0;
        $crate::shared::static_array::<$element, { $len }>(&SITE)
    }};
}
