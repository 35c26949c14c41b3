//! Pointers as arguments of kernels: [`Ptr`] for memory that a kernel reads, [`PtrMut`] for memory that it may also
//! write.
//!
//! On the GPU a pointer is an address and nothing else. On the host it also has a length, so that the emulator can
//! compare every access with the length of its argument. The address is the first field, so that the driver finds it at
//! the argument's address.
//!
//! An argument that a launch may leave out is an `Option<Ptr<T>>`: `None` is the null address.
//!
//! ```
//! use cuda_std::{Ptr, emulator::Buffer};
//!
//! let rows = Buffer::from_slice(&[1.0f32, 2.0, 3.0, 4.0]);
//! let second: Ptr<f32> = rows.as_ptr().skip(2);
//! assert_eq!(second.len(), 2);
//! assert_eq!(second.as_bytes().len(), 8);
//! assert!(second.skip(5).is_empty());
//! let absent: Option<Ptr<f32>> = None;
//! assert!(absent.is_none());
//! ```

use core::{fmt, marker::PhantomData, ops::Deref, ptr::NonNull};

/// The length of an argument that extends to the end of its allocation. The emulator finds that end when the kernel is
/// launched.
#[cfg(not(target_arch = "nvptx64"))]
pub const TO_END: usize = usize::MAX;

macro_rules! pointer {
    ($(#[$doc:meta])* $name:ident[$($raw:tt)*] |$address:ident| $mutable:expr) => {
        $(#[$doc])*
        ///
        /// A kernel uses it like a raw pointer, because it dereferences to one: `p.wrapping_add(i)` points to element
        /// i, and `*p` to the first.
        #[cfg_attr(target_arch = "nvptx64", repr(transparent))]
        #[cfg_attr(not(target_arch = "nvptx64"), repr(C))]
        pub struct $name<T> {
            address: NonNull<T>,
            #[cfg(not(target_arch = "nvptx64"))]
            len: usize,
            of: PhantomData<$($raw)* T>,
        }

        // The driver copies one address to the GPU for each pointer, also for an absent one.
        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            assert!(size_of::<$name<u32>>() == size_of::<*const u32>());
            assert!(size_of::<Option<$name<u32>>>() == size_of::<*const u32>());
        };
        #[cfg(not(target_arch = "nvptx64"))]
        const _: () = {
            assert!(core::mem::offset_of!($name<u32>, address) == 0);
            assert!(core::mem::offset_of!($name<u32>, len) == size_of::<*const u32>());
            assert!(size_of::<Option<$name<u32>>>() == size_of::<$name<u32>>());
            let absent: Option<$name<u32>> = None;
            // SAFETY: the option is no larger than the pointer, so its niche is the null address, which is written for
            // `None`.
            assert!(unsafe { (&raw const absent).cast::<Option<NonNull<u32>>>().read() }.is_none());
        };

        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        // SAFETY: a pointer gives no access by itself: reading and writing through it is unsafe, and its contract
        // includes races.
        unsafe impl<T> Send for $name<T> {}
        // SAFETY: as above.
        unsafe impl<T> Sync for $name<T> {}

        impl<T> Deref for $name<T> {
            type Target = $($raw)* T;

            #[inline(always)]
            fn deref(&self) -> &Self::Target {
                // SAFETY: `NonNull<T>` is a transparent wrapper of a raw pointer, and the reference lives as long as
                // `self`.
                unsafe { &*(&raw const self.address).cast() }
            }
        }

        /// The pointer of [`Self::empty`].
        impl<T> Default for $name<T> {
            fn default() -> Self {
                Self::empty()
            }
        }

        impl<T> $name<T> {
            /// A pointer to no elements, for an argument that the launch does not use.
            #[inline(always)]
            pub const fn empty() -> Self {
                Self {
                    address: NonNull::dangling(),
                    #[cfg(not(target_arch = "nvptx64"))]
                    len: 0,
                    of: PhantomData,
                }
            }

            /// The elements from element `n` on, for use in a kernel. The result is not a raw pointer as with
            /// `wrapping_add`, so an `Option` of it still takes one word.
            ///
            /// # Safety
            /// The address of element `n` does not wrap around to 0.
            #[inline(always)]
            pub const unsafe fn advance(self, n: usize) -> Self {
                Self {
                    // SAFETY: the caller promises that the address is not 0.
                    address: unsafe { NonNull::new_unchecked(self.address.as_ptr().wrapping_add(n)) },
                    #[cfg(not(target_arch = "nvptx64"))]
                    len: if self.len == TO_END { TO_END } else { self.len.saturating_sub(n) },
                    of: PhantomData,
                }
            }

            /// The same memory as elements of another type. The length becomes the number of whole elements of that
            /// type.
            #[inline(always)]
            pub const fn cast<U>(self) -> $name<U> {
                const { assert!(size_of::<U>() > 0, "elements have a size") };
                $name {
                    address: self.address.cast(),
                    #[cfg(not(target_arch = "nvptx64"))]
                    len: match self.bytes() {
                        Some(bytes) => bytes / size_of::<U>(),
                        None => TO_END,
                    },
                    of: PhantomData,
                }
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl<T> $name<T> {
            /// `len` elements from `address` on in the memory of a device, or of the emulator; [`TO_END`] where the
            /// length is unknown.
            ///
            /// A null address becomes an address that belongs to no memory. With a length of 0 such an argument is
            /// valid, as the kernel accesses nothing. With another length the emulator refuses the launch, and a GPU
            /// stops at the first access.
            pub const fn new($address: $($raw)* T, len: usize) -> Self {
                let address = match NonNull::new($mutable) {
                    Some(address) => address,
                    None => NonNull::dangling(),
                };
                Self { address, len, of: PhantomData }
            }

            /// Number of elements, or [`TO_END`] if the host does not have it.
            pub const fn len(self) -> usize {
                self.len
            }

            /// Whether there are no elements.
            pub const fn is_empty(self) -> bool {
                self.len == 0
            }

            /// The elements from element `n` on; none if there are at most `n`.
            pub const fn skip(self, n: usize) -> Self {
                let (n, len) = match self.len {
                    TO_END => (n, TO_END),
                    len if n < len => (n, len - n),
                    len => (len, 0),
                };
                Self::new(self.address.as_ptr().wrapping_add(n), len)
            }

            /// The first `n` elements, or all if there are fewer.
            pub const fn take(self, n: usize) -> Self {
                Self { len: if n < self.len { n } else { self.len }, ..self }
            }

            /// The same memory as bytes.
            pub const fn as_bytes(self) -> $name<u8> {
                self.cast()
            }

            /// Number of bytes; none for [`TO_END`]. If the product overflows, the largest possible length, which no
            /// allocation has.
            pub(crate) const fn bytes(self) -> Option<usize> {
                match self.len {
                    TO_END => None,
                    len => match len.checked_mul(size_of::<T>()) {
                        Some(bytes) if bytes < TO_END => Some(bytes),
                        _ => Some(TO_END - 1),
                    },
                }
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.len {
                    TO_END => write!(f, "{:p} to the end", self.address),
                    len => write!(f, "{:p}[..{len}]", self.address),
                }
            }
        }

        #[cfg(target_arch = "nvptx64")]
        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Pointer::fmt(&self.address, f)
            }
        }
    };
}

pointer! {
    /// Elements in global memory that a kernel reads.
    Ptr[*const] |address| address.cast_mut()
}

pointer! {
    /// Elements in global memory that a kernel reads and writes.
    PtrMut[*mut] |address| address
}

impl<T> PtrMut<T> {
    /// The same elements for reading only.
    #[inline(always)]
    pub const fn read_only(self) -> Ptr<T> {
        Ptr {
            address: self.address,
            #[cfg(not(target_arch = "nvptx64"))]
            len: self.len,
            of: PhantomData,
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl<T> From<PtrMut<T>> for Ptr<T> {
    fn from(pointer: PtrMut<T>) -> Self {
        pointer.read_only()
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl<T> From<PtrMut<T>> for Option<Ptr<T>> {
    fn from(pointer: PtrMut<T>) -> Self {
        Some(pointer.read_only())
    }
}
