//! Stable sorting of keys with payloads: 64- or 128-bit keys, each with a u32 that moves with its key.
//!
//! On a GPU this is a radix sort. Its time is the time to move the pairs through memory once for every eight bits of
//! the key; see the kernels' module `radix_sort`. On the CPU it is rayon's stable sort.

pub(crate) mod gpu;

use std::fmt;
use std::ops::Range;

use rayon::slice::ParallelSliceMut;

use self::gpu::DeviceKey;
use crate::device::open::open;
use crate::parallel::{Loop, ParallelSlice};
use crate::validate::{check_length, check_range};
use crate::{Device, Error, Result, host_memory};

/// A key type: u64 or u128. The trait is sealed, because every kernel table lists these two types.
///
/// ```
/// use warpann::sort::Key;
///
/// assert_eq!(<u128 as Key>::BITS, 128);
/// ```
pub trait Key: Ord + fmt::Debug + Send + Sync + DeviceKey {
    /// Number of bits of a key.
    const BITS: u32;
    /// The bits in the range `bits`, shifted down to bit 0.
    #[doc(hidden)]
    fn field(self, bits: &Range<u32>) -> Self;
    /// Sorts on any device. Arguments were checked. [`sort_pairs_by_bits`] calls it, so that it is compiled with this
    /// crate and not in every program.
    #[doc(hidden)]
    fn sort(device: Device, keys: &mut [Self], payloads: &mut [u32], bits: Range<u32>) -> Result<()>;
}

macro_rules! keys {
    ($($key:ty)*) => {$(
        impl Key for $key {
            const BITS: u32 = <$key>::BITS;

            fn field(self, bits: &Range<u32>) -> Self {
                let len = bits.end - bits.start;
                if len == 0 { 0 } else { self >> bits.start & <$key>::MAX >> (<$key>::BITS - len) }
            }

            fn sort(device: Device, keys: &mut [Self], payloads: &mut [u32], bits: Range<u32>) -> Result<()> {
                sort_on(device, keys, payloads, bits)
            }
        }
    )*};
}
keys! { u64 u128 }

/// Sorts `keys` in ascending order, and `payloads` along with them; pairs with equal keys keep their order.
///
/// On a GPU, host memory is copied to the device and back; the device needs room for the pairs twice, and 1 KiB for
/// every 4,096 pairs (3,072 with 128-bit keys). O(n) for each byte of the key. On the CPU, O(n log n) on all threads of
/// the rayon pool, with memory for the pairs twice.
///
/// ```
/// use warpann::Device;
/// use warpann::sort::sort_pairs;
///
/// let mut keys = [7u64, 1 << 40, 7, 3];
/// let mut payloads = [0, 1, 2, 3];
/// sort_pairs(Device::Cpu, &mut keys, &mut payloads)?;
/// assert_eq!(keys, [3, 7, 7, 1 << 40]);
/// assert_eq!(payloads, [3, 0, 2, 1]);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// # Errors
/// [`Error::WrongLength`] if the numbers of payloads and keys differ; [`Error::TooMany`] for 2³² pairs or more;
/// [`Error::OutOfDeviceMemory`]; and the errors of opening the device and running on it. After [`Error::Driver`] the
/// contents of `keys` and `payloads` are unspecified, because the sorted pairs are copied into them, and a second copy
/// would cost more than the sort.
pub fn sort_pairs<K: Key>(device: Device, keys: &mut [K], payloads: &mut [u32]) -> Result<()> {
    sort_pairs_by_bits(device, keys, payloads, 0..K::BITS)
}

/// As [`sort_pairs`], but only by bits `bits.start` .. `bits.end` of the keys, where bit 0 is the lowest. Pairs that
/// differ only in other bits keep their order. On a GPU the time is that of these bits.
///
/// ```
/// use warpann::Device;
/// use warpann::sort::sort_pairs_by_bits;
///
/// let mut keys = [0x31u64, 0x12, 0x21, 0x11];
/// sort_pairs_by_bits(Device::Cpu, &mut keys, &mut [0; 4], 0..4)?;
/// assert_eq!(keys, [0x31, 0x21, 0x11, 0x12]);
/// # Ok::<(), warpann::Error>(())
/// ```
///
/// # Errors
/// As [`sort_pairs`]; [`Error::OutOfRange`] if the range is not within the bits of a key.
pub fn sort_pairs_by_bits<K: Key>(
    device: Device,
    keys: &mut [K],
    payloads: &mut [u32],
    bits: Range<u32>,
) -> Result<()> {
    check::<K>(keys.len(), payloads.len(), &bits)?;
    K::sort(device, keys, payloads, bits)
}

fn sort_on<K: Key>(device: Device, keys: &mut [K], payloads: &mut [u32], bits: Range<u32>) -> Result<()> {
    match open(device)?.1 {
        Some(runtime) => gpu::sort_from_host(&runtime, keys, payloads, bits),
        None => sort_on_cpu(keys, payloads, &bits),
    }
}

fn check<K: Key>(keys: usize, payloads: usize, bits: &Range<u32>) -> Result<()> {
    check_length("payloads", keys, payloads)?;
    let limit = u64::from(u32::MAX);
    if keys as u64 > limit {
        return Err(Error::TooMany { what: "pairs", asked: keys as u64, limit });
    }
    let possible = (bits.start.min(K::BITS) as usize, K::BITS as usize);
    check_range("end of the bits", bits.end as usize, possible)
}

fn sort_on_cpu<K: Key>(keys: &mut [K], payloads: &mut [u32], bits: &Range<u32>) -> Result<()> {
    let pairs = keys.par_iter().map(|&key| key).zip(payloads.par_iter().map(|&payload| payload));
    let mut pairs: Vec<(K, u32)> = host_memory::collected_in_parallel(pairs)?;
    pairs.par_sort_by_key(|(key, _)| key.field(bits));
    let to = keys.par_iter_mut().zip(payloads.par_iter_mut());
    to.zip(pairs.par_iter()).for_each(|((key, payload), &pair)| (*key, *payload) = pair);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sorted_is_refused() {
        let most = u32::MAX as usize;
        assert!(check::<u64>(most, most, &(0..64)).is_ok());
        assert!(check::<u128>(0, 0, &(128..128)).is_ok());
        let refused = |keys, payloads, bits| check::<u64>(keys, payloads, &bits).unwrap_err();
        assert!(matches!(refused(3, 2, 0..64), Error::WrongLength { what: "payloads", expected: 3, actual: 2 }));
        let many = most + 1;
        assert!(matches!(
            refused(many, many, 0..64),
            Error::TooMany { what: "pairs", asked: 0x1_0000_0000, limit: 0xFFFF_FFFF }
        ));
        assert!(matches!(
            refused(1, 1, 0..65),
            Error::OutOfRange { what: "end of the bits", value: 65, least: 0, most: 64 }
        ));
        #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
        let backwards = 9..8;
        assert!(matches!(
            refused(1, 1, backwards),
            Error::OutOfRange { what: "end of the bits", value: 8, least: 9, most: 64 }
        ));
    }
}
