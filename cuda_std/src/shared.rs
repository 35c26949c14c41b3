//! Shared memory: memory that the threads of one block share.
//!
//! A kernel addresses it by [`SharedPtr`], not by Rust pointers: accesses through Rust pointers would be generic on the
//! GPU, and the emulator could not check them. Shared memory is uninitialised when the block starts; reading bytes that
//! no thread of the block has written is a fault.

use crate::imp;
use core::{marker::PhantomData, panic::Location};

/// A pointer to a `T` in shared memory: a byte address in the block's shared window.
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
    /// The pointer to byte `address` of the shared window. Making the pointer is safe; accesses through it are unsafe.
    #[inline(always)]
    pub const fn from_address(address: u32) -> Self {
        Self { address, of: PhantomData }
    }

    /// Byte address in the shared window, as PTX instructions take it.
    #[inline(always)]
    pub const fn address(self) -> u32 {
        self.address
    }

    /// The same address as a pointer to another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> SharedPtr<U> {
        SharedPtr::from_address(self.address)
    }

    /// The pointer `count` elements further on. The address wraps at 2³² bytes.
    ///
    /// # Safety
    /// The result points into the same array or one past its end.
    #[inline(always)]
    pub const unsafe fn add(self, count: u32) -> Self {
        Self::from_address(self.address.wrapping_add(count.wrapping_mul(size_of::<T>() as u32)))
    }
}

impl<T: Copy> SharedPtr<T> {
    /// Fails to compile unless a shared access can have the size of `T`.
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
    /// The place lies in the block's shared memory, is aligned to the size of `T`, and no other thread accesses it
    /// before the next synchronisation.
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

/// The array of [`shared_array!`](crate::shared_array). `site` identifies the call: it is the address of a static
/// variable there.
#[doc(hidden)]
#[track_caller]
#[inline(always)]
pub fn static_array<T, const LEN: usize>(site: &'static u8) -> SharedPtr<T> {
    SharedPtr::from_address(imp::shared::static_array::<T, LEN>(core::ptr::from_ref(site).addr(), Location::caller()))
}

/// `shared_array!(T, LEN)`: a static shared array of `LEN` values of `T`, 16-byte aligned, as a
/// [`SharedPtr<T>`](crate::shared::SharedPtr).
///
/// Each place in the source declares one array. On the GPU, every inlined copy of that place declares another array, so
/// two calls of a function that contains one take twice the memory; the emulator has one array for all of them. Call
/// the macro once in a kernel and pass the pointer on.
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
