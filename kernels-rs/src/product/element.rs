//! The content of rows: components of one of the element types, or bits. Loads of it, in the form that canonical
//! distances sum ([`Row`]) and as f32, exactly ([`Element`]).

use cuda_std::device_inline;
use cuda_std::global;
use cuda_std::global::{F32x4, U32x2};
use cuda_std::math::{bf16_to_f32, f16_to_f32};

use crate::product::quad::{BitsX32, I8x4, Quad, U8x4};

/// The content of rows that canonical distances compare ([`crate::product::canonical`]). Rows start at multiples of
/// four stored units and are padded with zeros to a multiple of four.
pub trait Row: Copy {
    /// One unit as stored: a component, or eight bits.
    type Stored: Copy;

    /// Four units as canonical distances sum them.
    type Quad: Quad;

    /// Units 4·`at` .. 4·`at` + 4 of the row at `row`.
    ///
    /// # Safety
    /// The four units are readable, and `row` is aligned to four units.
    unsafe fn quad(row: *const Self::Stored, at: u32) -> Self::Quad;
}

/// Rows whose components are loaded as f32.
pub trait Element: Row {
    /// Components 4·`quad` .. 4·`quad` + 4 of the row at `row`.
    ///
    /// # Safety
    /// The four components are readable, and `row` is aligned to four stored units.
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

/// Name of the content of rows: the key of kernels that exist once for each element type, and for bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKey {
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
    /// [`Bits`].
    Bits,
}

impl From<ElementKey> for RowKey {
    fn from(element: ElementKey) -> RowKey {
        match element {
            ElementKey::F32 => RowKey::F32,
            ElementKey::F16 => RowKey::F16,
            ElementKey::Bf16 => RowKey::Bf16,
            ElementKey::U8 => RowKey::U8,
            ElementKey::I8 => RowKey::I8,
        }
    }
}

/// Name of the content of rows whose products are exact: the key of kernels of such products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExactKey {
    /// [`U8`].
    U8,
    /// [`I8`].
    I8,
    /// [`Bits`].
    Bits,
}

impl From<ByteKey> for ExactKey {
    fn from(element: ByteKey) -> ExactKey {
        match element {
            ByteKey::U8 => ExactKey::U8,
            ByteKey::I8 => ExactKey::I8,
        }
    }
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
/// Eight components of one bit, 0 or 1, in each byte, the lowest bit first. Squared L2 is the Hamming distance of such
/// rows.
#[derive(Clone, Copy)]
pub struct Bits;

impl Row for F32 {
    type Stored = f32;
    type Quad = [f32; 4];

    #[device_inline]
    unsafe fn quad(row: *const Self::Stored, at: u32) -> [f32; 4] {
        // SAFETY: the same contract.
        unsafe { Self::load4(row, at) }
    }
}

impl Element for F32 {
    #[device_inline]
    unsafe fn load4(row: *const f32, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<F32x4>()).0 }
    }
}

macro_rules! half_element {
    ($name:ident, $convert:path) => {
        impl Row for $name {
            type Stored = u16;
            type Quad = [f32; 4];

            #[device_inline]
            unsafe fn quad(row: *const Self::Stored, at: u32) -> [f32; 4] {
                // SAFETY: the same contract.
                unsafe { Self::load4(row, at) }
            }
        }

        impl Element for $name {
            #[device_inline]
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

impl Row for U8 {
    type Stored = u8;
    type Quad = U8x4;

    #[device_inline]
    unsafe fn quad(row: *const u8, at: u32) -> U8x4 {
        // SAFETY: the four components are readable, and aligned, as the caller promises.
        U8x4(unsafe { global::load_nc(row.wrapping_add(4 * at as usize).cast::<u32>()) })
    }
}

impl Element for U8 {
    #[device_inline]
    unsafe fn load4(row: *const u8, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let word = unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<u32>()) };
        [word as u8 as f32, (word >> 8) as u8 as f32, (word >> 16) as u8 as f32, (word >> 24) as u8 as f32]
    }
}

impl Row for I8 {
    type Stored = i8;
    type Quad = I8x4;

    #[device_inline]
    unsafe fn quad(row: *const i8, at: u32) -> I8x4 {
        // SAFETY: the four components are readable, and aligned, as the caller promises.
        I8x4(unsafe { global::load_nc(row.wrapping_add(4 * at as usize).cast::<u32>()) })
    }
}

impl Element for I8 {
    #[device_inline]
    unsafe fn load4(row: *const i8, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        let word = unsafe { global::load_nc(row.wrapping_add(4 * quad as usize).cast::<u32>()) };
        [word as i8 as f32, (word >> 8) as i8 as f32, (word >> 16) as i8 as f32, (word >> 24) as i8 as f32]
    }
}

impl Row for Bits {
    type Stored = u8;
    type Quad = BitsX32;

    #[device_inline]
    unsafe fn quad(row: *const u8, at: u32) -> BitsX32 {
        // SAFETY: the four bytes are readable, and aligned, as the caller promises.
        BitsX32(unsafe { global::load_nc(row.wrapping_add(4 * at as usize).cast::<u32>()) })
    }
}

impl Element for Bits {
    #[device_inline]
    unsafe fn load4(row: *const u8, quad: u32) -> [f32; 4] {
        // SAFETY: as the caller promises; a byte has two quads.
        let byte = unsafe { global::load_nc(row.wrapping_add(quad as usize / 2)) } as u32;
        let bits = byte >> (4 * (quad % 2));
        [(bits & 1) as f32, (bits >> 1 & 1) as f32, (bits >> 2 & 1) as f32, (bits >> 3 & 1) as f32]
    }
}
