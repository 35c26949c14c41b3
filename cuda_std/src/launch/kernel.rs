//! Kernels and their arguments, as the host launches them.

use crate::emulator::COMPILED;
use crate::ptr::{Ptr, PtrMut, TO_END};
use std::ffi::c_void;

/// A kernel that takes the arguments `A`. [`kernel`](macro@crate::kernel) makes it: as the constant `KERNEL` of a
/// struct of arguments, or as its function `kernel` if several kernels take the same struct.
///
/// The type proves that the arguments have the right names and types. It does not prove that pointers are valid or that
/// the grid is large enough.
#[derive(Debug)]
pub struct Kernel<A> {
    name: &'static str,
    max_threads: Option<u32>,
    min_blocks: Option<u32>,
    /// Runs a thread of the emulator.
    call: Option<unsafe fn(&A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

impl<A> Kernel<A> {
    /// Only the output of `#[kernel]` calls this, in constants. A kernel that drops `call` does not refer to it, so
    /// without the feature `emulator` nothing compiles the body.
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        max_threads: Option<u32>,
        min_blocks: Option<u32>,
        call: unsafe fn(&A),
    ) -> Self {
        let call = if COMPILED { Some(call) } else { None };
        Self { name, max_threads, min_blocks, call }
    }

    /// The entry point's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The largest number of threads of a block; none if the kernel sets no bound.
    pub const fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }

    /// The number of blocks for which the compiler limits registers so that a multiprocessor runs them at once; none if
    /// the kernel sets no limit.
    pub const fn min_blocks(&self) -> Option<u32> {
        self.min_blocks
    }

    /// The function that runs one thread of the kernel on the current stack; none without the feature `emulator`. Its
    /// contract is that of the kernel, and a thread of the emulator calls it.
    pub(crate) const fn body(&self) -> Option<unsafe fn(&A)> {
        self.call
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A kernel's parameter: a scalar, a [`Ptr`], a [`PtrMut`], or an `Option` of either; or an enum that derives it
/// ([`Param`](macro@crate::launch::Param)).
pub trait Param: Copy + Send + Sync + sealed::Sealed {
    /// The memory that a kernel may access through the argument; none for a scalar or an absent pointer.
    #[doc(hidden)]
    fn range(&self, name: &'static str) -> Option<ArgumentRange> {
        let _ = name;
        None
    }

    /// The argument whose value for the GPU lies at `place`, aligned or not.
    ///
    /// # Safety
    /// At `place` lies a scalar of this type; for an enum, a word, and a word that is not a variant's panics; for a
    /// pointer, an address, which is null for an absent pointer.
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
                // SAFETY: same contract. A null address becomes an empty argument, so no launch may access memory
                // through it.
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
    /// Name of the parameter.
    pub name: &'static str,
    /// Address of the first byte.
    pub address: usize,
    /// Number of bytes; none if the range extends to the end of its allocation ([`TO_END`]).
    pub bytes: Option<usize>,
    /// Whether the kernel may write the bytes.
    pub writable: bool,
}

/// Largest number of parameters of a kernel.
pub const MAX_PARAMS: usize = 64;

/// The addresses of a launch's arguments, as the driver takes them (`cuLaunchKernel`, `kernelParams`).
#[derive(Debug, Clone, Copy)]
pub struct RawArgs {
    addresses: [*mut c_void; MAX_PARAMS],
    len: usize,
}

impl RawArgs {
    /// Copies the addresses of at most [`MAX_PARAMS`] arguments. Panics if there are more.
    #[doc(hidden)]
    #[inline]
    pub fn new(given: &[*mut c_void]) -> Self {
        let mut addresses = [std::ptr::null_mut(); MAX_PARAMS];
        addresses[..given.len()].copy_from_slice(given);
        Self { addresses, len: given.len() }
    }

    /// One address for each parameter.
    pub fn as_slice(&self) -> &[*mut c_void] {
        &self.addresses[..self.len]
    }

    /// Pointer to the first address, for the driver; valid as long as `self`.
    pub fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        self.addresses.as_mut_ptr()
    }
}

/// The arguments of a kernel: a struct with a field for each parameter, in the order of the parameters. Implemented by
/// [`kernel`](macro@crate::kernel).
///
/// # Safety
/// Every field is a [`Param`], and each function treats all fields, in the order of the parameters.
pub unsafe trait KernelArgs: Copy + Send + Sync {
    /// The names of the parameters.
    const NAMES: &'static [&'static str];

    /// The address of each argument, valid as long as `self` is neither moved nor dropped.
    fn as_raw(&mut self) -> RawArgs;

    /// The memory that the launch may access: a range for each pointer that is present, in the order of the parameters.
    fn ranges(&self) -> impl Iterator<Item = ArgumentRange>;

    /// Reads the arguments at `addresses`, the form in which the driver receives them. That form has no lengths, so the
    /// length of each pointer becomes [`TO_END`].
    ///
    /// # Safety
    /// `addresses` has one address for each parameter, and at each address lies a scalar of the parameter's type or,
    /// for a pointer, its address.
    unsafe fn from_raw(addresses: *const *mut c_void) -> Self;
}

/// Reads argument `number` of those that the driver received.
///
/// # Safety
/// As [`KernelArgs::from_raw`]; `number` is below the number of parameters, and parameter `number` is a `T`.
#[doc(hidden)]
pub unsafe fn raw_arg<T: Param>(addresses: *const *mut c_void, number: usize) -> T {
    // SAFETY: the caller promises an address of a value for each parameter.
    unsafe { T::read(addresses.add(number).read()) }
}
