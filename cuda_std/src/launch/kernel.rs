//! Kernels and their arguments, for the host.

use crate::ptr::{Ptr, PtrMut, TO_END};
use std::ffi::c_void;

/// A kernel that takes the arguments `A`. Made by [`kernel`](macro@crate::kernel): the constant `KERNEL` of a struct of arguments, or its
/// function `kernel` where several kernels take the same.
///
/// It proves that the arguments have the right names and types, not that pointers are valid or grids large enough.
#[derive(Debug)]
pub struct Kernel<A> {
    name: &'static str,
    max_threads: Option<u32>,
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
    pub const fn new(name: &'static str, max_threads: Option<u32>, call: unsafe fn(&A)) -> Self {
        Self { name, max_threads, call }
    }

    /// The entry point's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Most threads a block may have, where the kernel sets a bound.
    pub const fn max_threads(&self) -> Option<u32> {
        self.max_threads
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

mod sealed {
    pub trait Sealed {}
}

/// A kernel's parameter: a scalar, a [`Ptr`], a [`PtrMut`], or an `Option` of either; or an enum that derives it
/// ([`Param`](macro@crate::launch::Param)).
pub trait Param: Copy + Send + Sync + sealed::Sealed {
    /// The memory that a kernel may access through the argument; none for a scalar and for an absent pointer.
    #[doc(hidden)]
    fn range(&self, name: &'static str) -> Option<ArgumentRange> {
        let _ = name;
        None
    }

    /// The argument whose value for the GPU lies at `place`, aligned or not.
    ///
    /// # Safety
    /// At `place` lies a scalar of this type, or for an enum a word (one that is no variant's makes this panic), or for a pointer an address, which is null for an absent one.
    #[doc(hidden)]
    unsafe fn read(place: *const c_void) -> Self;
}

macro_rules! scalars {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Param for $t {
            unsafe fn read(place: *const c_void) -> Self {
                // SAFETY: same contract.
                unsafe { place.cast::<Self>().read_unaligned() }
            }
        }
    )*};
}

scalars! { u8 u16 u32 u64 usize i8 i16 i32 i64 f32 f64 }

/// An enum without fields that is a kernel's parameter; see [`Param`](macro@crate::launch::Param), which implements it.
///
/// # Safety
/// The type is `repr(u32)`, and `ALL` has every variant, whose word is its number.
#[doc(hidden)]
pub unsafe trait Choice: Copy + Send + Sync + 'static {
    const ALL: &'static [Self];

    fn word(self) -> u32;
}

impl<T: Choice> sealed::Sealed for T {}
impl<T: Choice> Param for T {
    unsafe fn read(place: *const c_void) -> Self {
        // SAFETY: same contract.
        let word = unsafe { place.cast::<u32>().read_unaligned() };
        match T::ALL.iter().find(|choice| choice.word() == word) {
            Some(&choice) => choice,
            None => panic!("{word} is not a value of the parameter's type {}", std::any::type_name::<T>()),
        }
    }
}

macro_rules! pointers {
    ($($name:ident[$($raw:tt)*] $writable:literal;)*) => {$(
        impl<T> sealed::Sealed for $name<T> {}
        impl<T> Param for $name<T> {
            fn range(&self, name: &'static str) -> Option<ArgumentRange> {
                Some(ArgumentRange { name, address: self.addr(), bytes: self.bytes(), writable: $writable })
            }

            unsafe fn read(place: *const c_void) -> Self {
                // SAFETY: same contract. A null address has no length, so that no launch may access memory by it.
                match unsafe { Option::read(place) } {
                    Some(pointer) => pointer,
                    None => Self::empty(),
                }
            }
        }

        impl<T> sealed::Sealed for Option<$name<T>> {}
        impl<T> Param for Option<$name<T>> {
            fn range(&self, name: &'static str) -> Option<ArgumentRange> {
                self.and_then(|pointer| pointer.range(name))
            }

            unsafe fn read(place: *const c_void) -> Self {
                // SAFETY: same contract.
                let address = unsafe { place.cast::<$($raw)* T>().read_unaligned() };
                (!address.is_null()).then(|| $name::new(address, TO_END))
            }
        }
    )*};
}

pointers! {
    Ptr[*const] false;
    PtrMut[*mut] true;
}

/// The memory that a kernel may access through one of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgumentRange {
    /// The parameter's name.
    pub name: &'static str,
    /// First byte.
    pub address: usize,
    /// Number of bytes; none if the range extends to the end of its allocation ([`TO_END`]).
    pub bytes: Option<usize>,
    /// Whether the kernel may write the bytes.
    pub writable: bool,
}

/// Most parameters of a kernel.
pub const MAX_PARAMS: usize = 64;

/// The addresses of a launch's arguments, as the driver takes them (`cuLaunchKernel`, `kernelParams`).
#[derive(Debug, Clone, Copy)]
pub struct RawArgs {
    addresses: [*mut c_void; MAX_PARAMS],
    len: usize,
}

impl RawArgs {
    /// Of at most [`MAX_PARAMS`] arguments.
    #[doc(hidden)]
    pub fn new(given: &[*mut c_void]) -> Self {
        let mut addresses = [std::ptr::null_mut(); MAX_PARAMS];
        addresses[..given.len()].copy_from_slice(given);
        Self { addresses, len: given.len() }
    }

    /// The addresses, one a parameter.
    pub fn as_slice(&self) -> &[*mut c_void] {
        &self.addresses[..self.len]
    }

    /// The first of the addresses, for the driver; valid as long as `self`.
    pub fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        self.addresses.as_mut_ptr()
    }
}

/// The arguments of a kernel: a struct with a field for each parameter, in the order of the parameters. Implemented by
/// [`kernel`](macro@crate::kernel).
///
/// # Safety
/// Every field is a [`Param`], and the functions are about all of them, in order.
pub unsafe trait KernelArgs: Copy + Send + Sync {
    /// The names of the parameters.
    const NAMES: &'static [&'static str];

    /// The address of each argument, valid as long as `self` is neither moved nor dropped.
    fn as_raw(&mut self) -> RawArgs;

    /// The memory that the launch may access: a range for each pointer that is present, in the order of the parameters.
    fn ranges(&self) -> impl Iterator<Item = ArgumentRange>;

    /// The arguments that lie at these addresses, as the driver gets them: pointers have no lengths there, so theirs are [`TO_END`].
    ///
    /// # Safety
    /// `addresses` has as many addresses as there are parameters, each of a scalar of its parameter's type or of a pointer's address.
    unsafe fn from_raw(addresses: *const *mut c_void) -> Self;
}

/// The argument at place `number` of those that the driver was given.
///
/// # Safety
/// As [`KernelArgs::from_raw`]; `number` is below the number of parameters, and that one is a `T`.
#[doc(hidden)]
pub unsafe fn raw_arg<T: Param>(addresses: *const *mut c_void, number: usize) -> T {
    // SAFETY: the caller promises an address of a value for each parameter.
    unsafe { T::read(addresses.add(number).read()) }
}
