//! The packed form of codes: M numbers of 4 to 8 bits, from the lowest bit of the first byte, sub-quantizer 0 first.
//! Eight numbers of b bits are exactly b bytes, so one 64-bit word moves eight numbers, and no bits are carried between
//! groups.

/// Count of numbers that fill whole bytes for every number of bits.
pub(crate) const GROUP: usize = 8;

/// Number of bytes of the code of a vector.
pub(crate) const fn code_bytes(sub_quantizers: usize, bits: u32) -> usize {
    // Groups of eight first: sub_quantizers · bits may overflow.
    sub_quantizers / GROUP * bits as usize + (sub_quantizers % GROUP * bits as usize).div_ceil(8)
}

/// Packs the numbers of one vector to `to`, which has [`code_bytes`] bytes. Each number is below 2^bits.
pub(crate) fn pack(numbers: &[u8], bits: u32, to: &mut [u8]) {
    if bits == 8 {
        return to.copy_from_slice(numbers);
    }
    for (numbers, to) in numbers.chunks(GROUP).zip(to.chunks_mut(bits as usize)) {
        let word = numbers.iter().rev().fold(0, |word, &number| word << bits | u64::from(number));
        for (byte, to) in to.iter_mut().enumerate() {
            *to = (word >> (8 * byte)) as u8;
        }
    }
}

/// The inverse of [`pack`]; the unused high bits of the last byte are ignored.
pub(crate) fn unpack(code: &[u8], bits: u32, numbers: &mut [u8]) {
    if bits == 8 {
        return numbers.copy_from_slice(code);
    }
    for (numbers, code) in numbers.chunks_mut(GROUP).zip(code.chunks(bits as usize)) {
        let mut word = code.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        for number in numbers {
            *number = (word & ((1 << bits) - 1)) as u8;
            word >>= bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit `at` of a code, by the definition.
    fn bit(code: &[u8], at: usize) -> u8 {
        code[at / 8] >> (at % 8) & 1
    }

    proptest! {
        #[test]
        fn numbers_stand_at_their_bits_and_come_back(bits in 4u32..=8, raw in prop::collection::vec(any::<u8>(), 1..70)) {
            let numbers: Vec<u8> = raw.iter().map(|value| value >> (8 - bits)).collect();
            let mut code = vec![0xee; code_bytes(numbers.len(), bits)];
            prop_assert_eq!(code.len(), (numbers.len() * bits as usize).div_ceil(8));
            pack(&numbers, bits, &mut code);
            for (i, number) in numbers.iter().enumerate() {
                for b in 0..bits as usize {
                    prop_assert_eq!(bit(&code, i * bits as usize + b), number >> b & 1);
                }
            }
            for spare in numbers.len() * bits as usize..8 * code.len() {
                prop_assert_eq!(bit(&code, spare), 0);
            }
            let mut back = vec![0; numbers.len()];
            unpack(&code, bits, &mut back);
            prop_assert_eq!(back, numbers);
        }
    }

    #[test]
    fn by_hand() {
        let mut code = [0; 2];
        pack(&[1, 15, 7], 4, &mut code);
        assert_eq!(code, [0xf1, 0x07]);
        pack(&[0b11111, 0b00001, 0b01010], 5, &mut code);
        assert_eq!(code, [0b0011_1111, 0b0010_1000]);
    }
}
