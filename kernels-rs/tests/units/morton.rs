//! Morton codes of cells.

use test_random::Random;

use warpann_kernels::shifted::morton::*;

/// Bit by bit, from the definition: bit b of coordinate j is bit b · dim + (dim − 1 − j) of the code.
fn naive(cells: &[u32], bits: u32) -> u128 {
    let dim = cells.len() as u32;
    let mut code = 0;
    for (j, &cell) in cells.iter().enumerate() {
        for b in 0..bits {
            code |= u128::from(cell >> b & 1) << (b * dim + dim - 1 - j as u32);
        }
    }
    code
}

fn padded(cells: &[u32]) -> [u32; MAX_DIM] {
    std::array::from_fn(|j| cells.get(j).copied().unwrap_or(0))
}

#[test]
fn widths_are_the_reports() {
    assert_eq!((coordinate_bits(3), is_wide(3)), (21, false));
    assert_eq!((coordinate_bits(6), is_wide(6)), (21, true));
    for dim in 1..=MAX_DIM as u32 {
        let width = if is_wide(dim) { 128 } else { 64 };
        let bits = coordinate_bits(dim);
        assert!(bits <= 24 && bits * dim <= width);
        assert!(bits == 24 || (bits + 1) * dim > width, "{dim}");
    }
}

#[test]
fn codes_are_the_definitions_bit_for_bit() {
    let mut random = Random::new(1);
    for dim in 1..=MAX_DIM as u32 {
        let bits = coordinate_bits(dim);
        for round in 0..200 {
            let mask = (1u32 << bits) - 1;
            let cells: Vec<u32> =
                (0..dim).map(|_| if round == 0 { mask } else { random.bits() as u32 & mask }).collect();
            let expected = naive(&cells, bits);
            assert_eq!(interleave::<u128>(padded(&cells), dim, bits), expected, "{cells:?}");
            if !is_wide(dim) {
                assert_eq!(u128::from(interleave::<u64>(padded(&cells), dim, bits)), expected, "{cells:?}");
            }
        }
    }
}

#[test]
fn shifts_stay_in_their_half_and_differ() {
    for copies in 1..40 {
        for bits in [10, 21, 24] {
            let offsets: Vec<u32> = (0..copies).map(|copy| offset(bits, copies, copy)).collect();
            assert_eq!(offsets[0], 0);
            assert!(offsets.is_sorted_by(|a, b| a < b), "{offsets:?}");
            assert!(offsets.iter().all(|&offset| offset < 1 << (bits - 1)));
        }
    }
}

#[test]
fn cells_are_clamped() {
    let scale = f64::from(1 << 20) / 2.0;
    let cell = |x| cell(x, -1.0, scale, 21);
    assert_eq!([-5.0, -1.0, 0.0, 1.0, f32::MAX].map(cell), [0, 0, 1 << 19, (1 << 20) - 1, (1 << 20) - 1]);
}
