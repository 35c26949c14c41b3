//! What a launch needs: the typed handle that [`kernel`](macro@crate::kernel) makes, arguments, and the shape of the grid.

use std::ffi::c_void;

/// A kernel that takes the arguments `A`, a tuple. Made by [`kernel`](macro@crate::kernel) under the kernel's name in capitals.
///
/// It proves that the arguments have the right types and order, not that pointers are valid or grids large enough.
#[derive(Debug)]
pub struct Kernel<A> {
    name: &'static str,
    module: &'static str,
    max_threads: Option<u32>,
    min_blocks: Option<u32>,
    call: unsafe fn(&A),
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

impl<A> Kernel<A> {
    /// For the output of `#[kernel]` only.
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        module: &'static str,
        max_threads: Option<u32>,
        min_blocks: Option<u32>,
        call: unsafe fn(&A),
    ) -> Self {
        Self { name, module, max_threads, min_blocks, call }
    }

    /// The entry point's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Path of the module that defines it, from the crate's name on.
    pub const fn module(&self) -> &'static str {
        self.module
    }

    /// Most threads a block may have, where the kernel sets a bound.
    pub const fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }

    /// Blocks that the compiler was asked to fit on a multiprocessor.
    pub const fn min_blocks(&self) -> Option<u32> {
        self.min_blocks
    }

    /// Runs one thread of the kernel on this stack.
    ///
    /// # Safety
    /// The kernel's own contract; called by a thread of the emulator.
    pub(crate) unsafe fn call(&self, arguments: &A) {
        // SAFETY: same contract.
        unsafe { (self.call)(arguments) }
    }
}

/// Size of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z; none zero.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; none zero, 1024 in all at most.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory a block has.
    pub shared_bytes: u32,
}

mod sealed {
    pub trait Sealed {}
}

/// A kernel's parameter: a raw pointer or a scalar.
pub trait Param: Copy + sealed::Sealed {
    /// Where a kernel may write by it; for the emulator.
    #[doc(hidden)]
    fn written(&self) -> Option<usize> {
        None
    }
}

macro_rules! params {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Param for $t {}
    )*};
}

params! { u8 u16 u32 u64 usize i8 i16 i32 i64 f32 f64 }

impl<T> sealed::Sealed for *const T {}
impl<T> Param for *const T {}
impl<T> sealed::Sealed for *mut T {}
impl<T> Param for *mut T {
    fn written(&self) -> Option<usize> {
        Some(self.addr())
    }
}

/// Most parameters of a kernel.
pub const MAX_PARAMS: usize = 26;

/// The addresses of a launch's arguments, as the driver takes them (`cuLaunchKernel`, `kernelParams`).
#[derive(Debug, Clone, Copy)]
pub struct RawArgs {
    addresses: [*mut c_void; MAX_PARAMS],
    len: usize,
}

impl RawArgs {
    /// The addresses, one a parameter.
    pub fn as_slice(&self) -> &[*mut c_void] {
        &self.addresses[..self.len]
    }

    /// The first of the addresses, for the driver; valid as long as `self`.
    pub fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        self.addresses.as_mut_ptr()
    }
}

/// A tuple of up to [`MAX_PARAMS`] parameters.
pub trait KernelArgs: Copy + sealed::Sealed {
    /// The address of each element, valid as long as `self` is neither moved nor dropped.
    fn as_raw(&mut self) -> RawArgs;

    /// The `*mut` pointers' addresses; for the emulator.
    #[doc(hidden)]
    fn written(&self) -> impl Iterator<Item = usize>;

    /// The elements that lie at these addresses.
    ///
    /// # Safety
    /// `addresses` has as many addresses as the tuple elements, each of a value of its element's type.
    unsafe fn from_raw(addresses: *const *mut c_void) -> Self;
}

macro_rules! kernel_args {
    ($($name:ident)*) => {
        impl<$($name: Param),*> sealed::Sealed for ($($name,)*) {}
        impl<$($name: Param),*> KernelArgs for ($($name,)*) {
            #[allow(non_snake_case, reason = "each variable is named after its type")]
            fn as_raw(&mut self) -> RawArgs {
                let ($($name,)*) = self;
                let given: &[*mut c_void] = &[$(std::ptr::from_mut($name).cast()),*];
                let mut addresses = [std::ptr::null_mut(); MAX_PARAMS];
                addresses[..given.len()].copy_from_slice(given);
                RawArgs { addresses, len: given.len() }
            }

            #[allow(non_snake_case, reason = "each variable is named after its type")]
            fn written(&self) -> impl Iterator<Item = usize> {
                let ($($name,)*) = self;
                let given: [Option<usize>; _] = [$($name.written()),*];
                given.into_iter().flatten()
            }

            #[allow(non_snake_case, reason = "each variable is named after its type")]
            #[allow(unused, clippy::unused_unit, reason = "the empty tuple has no elements")]
            unsafe fn from_raw(addresses: *const *mut c_void) -> Self {
                let mut number = 0;
                $(
                    // SAFETY: the caller promises an address of a value for each element.
                    let $name = unsafe { addresses.add(number).read().cast::<$name>().read_unaligned() };
                    number += 1;
                )*
                ($($name,)*)
            }
        }
    };
}

/// Implements for the tuple of all names and for every shorter one.
macro_rules! kernel_args_up_to {
    () => { kernel_args! {} };
    ($first:ident $($rest:ident)*) => {
        kernel_args! { $first $($rest)* }
        kernel_args_up_to! { $($rest)* }
    };
}

kernel_args_up_to! { A B C D E F G H I J K L M N O P Q R S T U V W X Y Z }
