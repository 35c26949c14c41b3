//! Loads of four consecutive vector components of any element type as f32, exactly.

use cuda_std::global;
use cuda_std::global::{F32x4, U32x2};
use cuda_std::math::{bf16_to_f32, f16_to_f32};

use crate::product::quad::{I8x4, Quad, U8x4};

/// An element type in kernels: rows start at multiples of four elements and are padded with zeros to a multiple of
/// four.
pub trait Element: Copy {
    /// One component as stored.
    type Stored: Copy;

    /// Four components as canonical distances sum them ([`crate::product::canonical`]).
    type Quad: Quad;

    /// Components 4·`at` .. 4·`at` + 4 of the row at `row`, in the form that canonical distances sum.
    ///
    /// # Safety
    /// As [`load4`](Self::load4).
    unsafe fn quad(row: *const Self::Stored, at: u32) -> Self::Quad;

    /// Components 4·`quad` .. 4·`quad` + 4 of the row at `row`.
    ///
    /// # Safety
    /// The four components are readable, and `row` is aligned to four components.
    unsafe fn load4(row: *const Self::Stored, quad: u32) -> [f32; 4];
}

/// Name of an element type: the key of kernels that exist once for each element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementKey {
    /// [`F32`].
    F32,
    /// [`F16`].
    F16,
    /// [`Bf16`].
    Bf16,
    /// [`U8`].
    U8,
    /// [`I8`].
    I8,
}

/// Name of an element type of bytes: the key of kernels that exist for these only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteKey {
    /// [`U8`].
    U8,
    /// [`I8`].
    I8,
}

/// IEEE binary32 elements.
#[derive(Clone, Copy)]
pub struct F32;
/// IEEE binary16 elements, as bits.
#[derive(Clone, Copy)]
pub struct F16;
/// bfloat16 elements, as bits.
#[derive(Clone, Copy)]
pub struct Bf16;
/// Unsigned bytes, `u8`.
#[derive(Clone, Copy)]
pub struct U8;
/// Signed bytes, `i8`.
#[derive(Clone, Copy)]
pub struct I8;

impl Element for F32 {
    type Stored = f32;
    type Quad = [f32; 4];

    #[inline(always)]
    unsafe fn quad(row: *const Self::Stored, at: u32) -> [f32; 4] {
        // SAFETY: the same contract.
        unsafe { Self::load4(row, at) }
    }

    #[inline(always)]
    unsafe fn load4(row: *const f32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<F32x4>()).0 }
    }
}

macro_rules! half_element {
    ($name:ident, $convert:path) => {
        impl Element for $name {
            type Stored = u16;
            type Quad = [f32; 4];

            #[inline(always)]
            unsafe fn quad(row: *const Self::Stored, at: u32) -> [f32; 4] {
                // SAFETY: the same contract.
                unsafe { Self::load4(row, at) }
            }

            #[inline(always)]
            unsafe fn load4(row: *const u16, quad: u32) -> [f32; 4] {
                // SAFETY: as the caller promises.
                let [a, b] = unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<U32x2>()).0 };
                [$convert(a as u16), $convert((a >> 16) as u16), $convert(b as u16), $convert((b >> 16) as u16)]
            }
        }
    };
}
half_element!(F16, f16_to_f32);
half_element!(Bf16, bf16_to_f32);

impl Element for U8 {
    type Stored = u8;
    type Quad = U8x4;

    #[inline(always)]
    unsafe fn quad(row: *const u8, at: u32) -> U8x4 {
        // SAFETY: the four components are readable, and aligned, as the caller promises.
        U8x4(unsafe { global::load_nc(row.wrapping_add(4 * at as usize).cast::<u32>()) })
    }

    #[inline(always)]
    unsafe fn load4(row: *const u8, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let word = unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<u32>()) };
        [word as u8 as f32, (word >> 8) as u8 as f32, (word >> 16) as u8 as f32, (word >> 24) as u8 as f32]
    }
}

impl Element for I8 {
    type Stored = i8;
    type Quad = I8x4;

    #[inline(always)]
    unsafe fn quad(row: *const i8, at: u32) -> I8x4 {
        // SAFETY: the four components are readable, and aligned, as the caller promises.
        I8x4(unsafe { global::load_nc(row.wrapping_add(4 * at as usize).cast::<u32>()) })
    }

    #[inline(always)]
    unsafe fn load4(row: *const i8, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let word = unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<u32>()) };
        [word as i8 as f32, (word >> 8) as i8 as f32, (word >> 16) as i8 as f32, (word >> 24) as i8 as f32]
    }
}
