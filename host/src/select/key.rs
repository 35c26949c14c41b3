//! The types of keys and their trait.

use std::fmt;

use super::gpu::types::DeviceKey;
use super::layout::{Rows, Selection};
use super::options::{Algorithm, Best};
use crate::names::named;
use crate::{Device, Result};

/// A key type as a value, for kernels and reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// Signed 32 bits.
    I32,
    /// Unsigned 32 bits.
    U32,
}

impl KeyType {
    /// All key types, in the order of the kernel tables.
    pub const ALL: [KeyType; 5] = [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::U32];

    /// Size of a key in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Name in messages: `f32`, `f16`, `bf16`, `i32`, `u32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
        }
    }
}

named!(KeyType, name, "a type of keys");

/// A key type: f32, f16, bf16, i32 or u32. The trait is sealed, because every kernel table lists these five types.
///
/// ```
/// use half::f16;
/// use warpann::select::{Best, Key, KeyType};
///
/// assert_eq!(f16::TYPE, KeyType::F16);
/// assert_eq!(f32::worst(Best::Smallest), f32::INFINITY);
/// assert_eq!(i32::worst(Best::Largest), i32::MIN);
/// ```
pub trait Key: bytemuck::Pod + PartialEq + fmt::Debug + Default + Send + Sync + DeviceKey {
    /// The key type as a value.
    const TYPE: KeyType;
    /// The content of an empty slot: for floats +∞ or −∞, for integers the largest or the smallest value.
    fn worst(best: Best) -> Self;
    /// An integer that orders keys best first: −0 equal to +0, NaN of either sign last.
    #[doc(hidden)]
    fn rank(self, best: Best) -> u32;
    /// The key as it appears in results: −0 becomes +0, and every NaN becomes the positive quiet NaN without a payload.
    #[doc(hidden)]
    fn canonical(self) -> Self;
    /// Selects from rows with at least one key, on any device.
    #[doc(hidden)]
    fn select_rows(
        device: Device,
        rows: &Rows<'_, Self>,
        best: Best,
        algorithm: Algorithm,
        selection: &mut Selection<Self>,
    ) -> Result<()>;
}
