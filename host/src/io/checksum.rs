//! XXH64, the 64-bit hash of Yann Collet (<https://github.com/Cyan4973/xxHash>, `doc/xxhash_spec.md`), and a section's
//! checksum.
//!
//! A section is cut into chunks of [`CHUNK`] bytes, the last one shorter; its checksum is the hash of the hashes of its
//! chunks. So all threads hash the chunks of a large file at once. One core hashes about 10 GB/s, so loading is limited
//! by memory bandwidth.

use crate::parallel::{Loop, ParallelSlice};

/// Number of bytes of a chunk; a multiple of every element's size.
pub const CHUNK: usize = 1 << 20;

const PRIMES: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];

/// The hash of `bytes` with seed 0. O(bytes).
pub fn xxh64(bytes: &[u8]) -> u64 {
    let [p1, p2, p3, p4, p5] = PRIMES;
    let (stripes, tail) = bytes.as_chunks::<32>();
    let mut hash = if stripes.is_empty() {
        p5
    } else {
        let mut lanes = [p1.wrapping_add(p2), p2, 0, p1.wrapping_neg()];
        for stripe in stripes {
            let (words, _) = stripe.as_chunks::<8>();
            for (lane, &word) in lanes.iter_mut().zip(words) {
                *lane = round(*lane, u64::from_le_bytes(word));
            }
        }
        let rotated = lanes[0].rotate_left(1).wrapping_add(lanes[1].rotate_left(7));
        let sum = rotated.wrapping_add(lanes[2].rotate_left(12)).wrapping_add(lanes[3].rotate_left(18));
        lanes.iter().fold(sum, |hash, &lane| (hash ^ round(0, lane)).wrapping_mul(p1).wrapping_add(p4))
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    let (words, tail) = tail.as_chunks::<8>();
    for &word in words {
        hash = (hash ^ round(0, u64::from_le_bytes(word))).rotate_left(27).wrapping_mul(p1).wrapping_add(p4);
    }
    let (halves, tail) = tail.as_chunks::<4>();
    for &half in halves {
        let word = u64::from(u32::from_le_bytes(half)).wrapping_mul(p1);
        hash = (hash ^ word).rotate_left(23).wrapping_mul(p2).wrapping_add(p3);
    }
    for &byte in tail {
        hash = (hash ^ u64::from(byte).wrapping_mul(p5)).rotate_left(11).wrapping_mul(p1);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(p2);
    hash = (hash ^ (hash >> 29)).wrapping_mul(p3);
    hash ^ (hash >> 32)
}

#[inline(always)]
fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIMES[1])).rotate_left(31).wrapping_mul(PRIMES[0])
}

/// The checksum of bytes, cut into chunks and hashed in parallel. O(bytes).
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let hashes: Vec<u64> = bytes.par_chunks(CHUNK).map(xxh64).collect();
    of_chunks(&hashes)
}

/// The checksum of a section whose chunks have these hashes.
pub fn of_chunks(hashes: &[u64]) -> u64 {
    xxh64(bytemuck::cast_slice(hashes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from the reference implementation (xxhash 0.8), for the first n of the bytes 7, 38, 69,
    /// .. (i · 31 + 7 mod 256).
    #[test]
    fn the_hash_is_xxh64() {
        assert_eq!(xxh64(b""), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"a"), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxh64(b"abc"), 0x44bc_2cf5_ad77_0999);
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 31 + 7) as u8).collect();
        for (len, hash) in EXPECTED {
            assert_eq!(xxh64(&bytes[..len]), hash, "{len} bytes");
        }
    }

    const EXPECTED: [(usize, u64); 9] = [
        (3, 0x56e6_9576_32a4_87f9),
        (4, 0xc60d_15b1_e3ff_8f04),
        (7, 0xafbe_fc3d_6c6f_9a8e),
        (12, 0x8fe8_ab1c_1fd0_666e),
        (31, 0x4a74_f3a1_a39a_d4a1),
        (32, 0x8d57_d6a4_671c_c43d),
        (33, 0x62c9_fd21_ed85_7664),
        (63, 0x5c32_0a0d_2707_057f),
        (1000, 0x9959_4f48_2804_3d35),
    ];
}
