//! Element types of vectors: f32, f16, bf16, u8, i8.

use half::{bf16, f16};
use warpann_kernels::product::element::ElementKey;

use crate::names::named;

/// An element type of vectors as a value, for files, kernels and reports.
///
/// As text: `f32`, `f16`, `bf16`, `u8`, `i8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE binary32, 4 bytes.
    F32,
    /// IEEE binary16, 2 bytes.
    F16,
    /// bfloat16, 2 bytes: the upper half of binary32.
    Bf16,
    /// Unsigned integer of 8 bits.
    U8,
    /// Signed integer of 8 bits.
    I8,
}

impl ElementType {
    /// Every element type, in the order of the kernel tables.
    pub const ALL: [ElementType; 5] = [Self::F32, Self::F16, Self::Bf16, Self::U8, Self::I8];

    /// Size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 | Self::I8 => 1,
        }
    }

    /// The element type in the kernel tables.
    pub(crate) const fn key(self) -> ElementKey {
        match self {
            Self::F32 => ElementKey::F32,
            Self::F16 => ElementKey::F16,
            Self::Bf16 => ElementKey::Bf16,
            Self::U8 => ElementKey::U8,
            Self::I8 => ElementKey::I8,
        }
    }

    /// Name in messages: `f32`, `f16`, `bf16`, `u8`, `i8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::U8 => "u8",
            Self::I8 => "i8",
        }
    }
}

named!(ElementType, name, "an element type");

mod sealed {
    pub trait Sealed {}
}

/// An element type of vectors. The trait is sealed, because every kernel table lists these five types.
pub trait Element: bytemuck::Pod + Send + Sync + Default + std::fmt::Debug + PartialEq + sealed::Sealed {
    /// The element type as a value.
    const TYPE: ElementType;
    /// The value as f32; exact for all five types.
    fn to_f32(self) -> f32;
    /// The nearest value of this type (ties to even; saturating for u8 and i8).
    fn from_f32(value: f32) -> Self;
    /// Whether no value of `values` is NaN or infinite. It tests bits without a branch, so that the loop becomes SIMD
    /// code.
    fn all_finite(values: &[Self]) -> bool;
    /// Whether the value is neither NaN nor infinite.
    fn is_finite(self) -> bool {
        Self::all_finite(std::slice::from_ref(&self))
    }
}

macro_rules! element {
    ($($type:ty, $name:ident, $to:expr, $from:expr, $all_finite:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
            #[inline(always)]
            fn to_f32(self) -> f32 {
                let to: fn($type) -> f32 = $to;
                to(self)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                let from: fn(f32) -> $type = $from;
                from(value)
            }
            fn all_finite(values: &[Self]) -> bool {
                let all_finite: fn(&[$type]) -> bool = $all_finite;
                all_finite(values)
            }
        }
    )*};
}

/// Whether no value has an exponent of all ones, as NaN and infinities have.
macro_rules! exponents_below {
    ($ones:expr) => {
        |values| !values.iter().fold(false, |found, value| found | (value.to_bits() & $ones == $ones))
    };
}

element! {
    f32, F32, |x| x, |v| v, exponents_below!(0x7F80_0000);
    f16, F16, f16::to_f32, f16::from_f32, exponents_below!(0x7C00);
    bf16, Bf16, bf16::to_f32, bf16::from_f32, exponents_below!(0x7F80);
    u8, U8, f32::from, |v| v.round_ties_even() as u8, |_| true;
    i8, I8, f32::from, |v| v.round_ties_even() as i8, |_| true;
}
