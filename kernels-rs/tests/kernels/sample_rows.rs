//! Samples of rows ([`SampleRows`]): which rows they have, and what belongs to them.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::flat::sample_rows::{SampleRows, number, step};

/// A row from each part of the base, the parts as long as each other, and no place in a part preferred.
#[test]
fn a_sample_has_a_row_of_each_part() {
    for (rows, count) in [(1, 1), (129, 128), (1_000, 1_000), (5_000, 896), (1_000_000, 50_816), (u32::MAX, 8_192)] {
        let of = step(rows, count);
        let parts = |place: u32| ((u128::from(place) * u128::from(of)) >> 32) as u32;
        let places =
            if count > 9_000 { (0..count).step_by(7).chain([count - 1]).collect() } else { Vec::from_iter(0..count) };
        let (mut sum, mut most) = (0.0, 0.0f64);
        for &place in &places {
            let (first, end, found) = (parts(place), parts(place + 1), number(place, of));
            assert!(first <= found && found < end && end <= rows, "place {place}: {found} of {first} .. {end}");
            assert!(u64::from(end - first).abs_diff(u64::from(rows / count)) <= 1);
            sum += (f64::from(found - first) + 0.5) / f64::from(end - first);
            most = most.max(f64::from(found - first) / f64::from(end - first));
        }
        assert!(rows - parts(count) <= 1, "the last part ends at {} of {rows}", parts(count));
        let mean = sum / places.len() as f64;
        assert!(places.len() < 800 || (mean - 0.5).abs() < 0.05, "{rows} rows, {count}: mean place {mean}");
        assert!(rows / count < 20 || most > 0.9, "{rows} rows, {count}: {most}");
    }
}

#[test]
fn a_sample_has_the_operands_and_values_of_its_rows() {
    let mut random = Random::new(24);
    for (rows, count, words) in [(1, 1, 1), (700, 128, 8), (700, 300, 3), (513, 513, 40), (9_000, 257, 16)] {
        let base: Vec<u32> = (0..rows * words * 4).map(|_| random.below(1 << 20) as u32).collect();
        let values: Vec<u32> = (0..rows).map(|_| random.below(1 << 20) as u32).collect();
        let padded = usize::next_multiple_of(count, 128);
        let (base_at, values_at) = (Buffer::from_slice(&base), Buffer::from_slice(&values));
        let bounds = Buffer::from_slice(&[3.0f32, 0.25]);
        let mut to = Buffer::<u32>::new_poisoned(padded * words * 4);
        let mut to_values = Buffer::<u32>::new_poisoned(padded);
        let mut tile_bounds = Buffer::<f32>::new_poisoned(padded / 128 * 2);
        let of = step(rows as u32, count as u32);
        for with_bounds in [true, false] {
            let launch = SampleRows {
                base: base_at.as_ptr().cast(),
                words: words as u32,
                step: of,
                count: count as u32,
                base_values: values_at.as_ptr(),
                base_bounds: bounds.as_ptr(),
                to: to.as_mut_ptr().cast(),
                values: to_values.as_mut_ptr(),
                tile_bounds: with_bounds.then(|| tile_bounds.as_mut_ptr()),
            };
            // SAFETY: the buffers are as long as the fields say.
            unsafe { crate::launch(&SampleRows::KERNEL, launch.config(), launch) };
        }
        let (to, to_values) = (to.to_vec(), to_values.to_vec());
        for place in 0..padded {
            let row = number(place.min(count - 1) as u32, of) as usize;
            assert_eq!(to[place * words * 4..][..words * 4], base[row * words * 4..][..words * 4], "place {place}");
            let value = if place < count { values[row] } else { f32::INFINITY.to_bits() };
            assert_eq!(to_values[place], value, "place {place} of {count}");
        }
        let (norms, residuals) = (vec![3.0; padded / 128], vec![0.25; padded / 128]);
        assert_eq!(tile_bounds.to_vec(), [norms, residuals].concat());
    }
}
