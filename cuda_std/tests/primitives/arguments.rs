//! The lane of the smallest and of the largest value, in the total order of every type.

use crate::{Lanes, lanes, one_block};
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel,
    launch::Kernel,
    warp::{self, TotalOrder},
};
use proptest::prelude::*;
use std::cmp::Ordering;

/// Stores the smallest and the largest value of a warp and their payloads, for each lane.
#[kernel(
    extremes_u32 for Extremes<u32> = extremes::<u32>,
    extremes_i32 for Extremes<i32> = extremes::<i32>,
    extremes_u64 for Extremes<u64> = extremes::<u64>,
    extremes_i64 for Extremes<i64> = extremes::<i64>,
    extremes_f32 for Extremes<f32> = extremes::<f32>,
    extremes_f64 for Extremes<f64> = extremes::<f64>,
)]
struct Extremes<T> {
    /// One value for each lane.
    values: Ptr<T>,
    /// One payload for each lane.
    payloads: Ptr<u32>,
    /// 32 smallest values, then 32 largest.
    found: PtrMut<T>,
    /// The payloads of `found`.
    found_payloads: PtrMut<u32>,
}

/// # Safety
/// The arrays are as long as [`Extremes`] says.
unsafe fn extremes<T: TotalOrder>(Extremes { values, payloads, found, found_payloads }: Extremes<T>) {
    let lane = warp::lane_id() as usize;
    // SAFETY: 32 values and payloads, 64 of each result, lane < 32.
    unsafe {
        let (value, payload) = (global::load(values.add(lane)), global::load(payloads.add(lane)));
        let results = [warp::butterfly_argmin(value, payload), warp::butterfly_argmax(value, payload)];
        for (i, (value, payload)) in results.into_iter().enumerate() {
            global::store(found.add(32 * i + lane), value);
            global::store(found_payloads.add(32 * i + lane), payload);
        }
    }
}

/// Runs the kernel and compares with a search lane by lane, by bits.
fn check<T: bytemuck::AnyBitPattern>(
    kernel: &Kernel<Extremes<T>>,
    values: &Lanes<T>,
    payloads: &Lanes<u32>,
    order: fn(&T, &T) -> Ordering,
    bits: fn(T) -> u64,
) {
    let (input, tags) = (Buffer::from_slice(values), Buffer::from_slice(payloads));
    let (mut found, mut found_payloads) = (Buffer::<T>::new_poisoned(64), Buffer::<u32>::new_poisoned(64));
    let launch = Extremes {
        values: input.as_ptr(),
        payloads: tags.as_ptr(),
        found: found.as_mut_ptr(),
        found_payloads: found_payloads.as_mut_ptr(),
    };
    // SAFETY: 32 values and payloads, 64 of each result.
    unsafe { emulator::launch(kernel, one_block(32, 0), launch) }.unwrap();
    let expected = |wanted: Ordering| {
        let mut best = 0;
        for lane in 1..32 {
            let of_values = order(&values[lane], &values[best]);
            if of_values == wanted || of_values == Ordering::Equal && payloads[lane] < payloads[best] {
                best = lane;
            }
        }
        (bits(values[best]), payloads[best])
    };
    let results: Vec<_> = found.to_vec().into_iter().map(bits).zip(found_payloads.to_vec()).collect();
    assert_eq!(results[..32], [expected(Ordering::Less); 32]);
    assert_eq!(results[32..], [expected(Ordering::Greater); 32]);
}

fn check_f32(values: &Lanes<f32>, payloads: &Lanes<u32>) {
    check(&Extremes::<f32>::KERNEL, values, payloads, f32::total_cmp, |x| x.to_bits().into());
}

fn check_f64(values: &Lanes<f64>, payloads: &Lanes<u32>) {
    check(&Extremes::<f64>::KERNEL, values, payloads, f64::total_cmp, f64::to_bits);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn integers(values: Lanes<u64>, payloads: Lanes<u32>) {
        check(&Extremes::<u32>::KERNEL, &values.map(|x| x as u32), &payloads, Ord::cmp, u64::from);
        check(&Extremes::<i32>::KERNEL, &values.map(|x| x as i32), &payloads, Ord::cmp, |x| x as u64);
        check(&Extremes::<u64>::KERNEL, &values, &payloads, Ord::cmp, |x| x);
        check(&Extremes::<i64>::KERNEL, &values.map(|x| x as i64), &payloads, Ord::cmp, |x| x as u64);
    }

    /// Three values in 32 lanes: ties, also of payloads.
    #[test]
    fn ties(values in prop::array::uniform32(0u32..3), payloads in prop::array::uniform32(0u32..5)) {
        check(&Extremes::<u32>::KERNEL, &values, &payloads, Ord::cmp, u64::from);
        check_f32(&values.map(|x| x as f32 - 1.0), &payloads);
    }

    /// Random bits, which include NaN of both signs, infinities and zeros.
    #[test]
    fn floats(bits: Lanes<u64>, payloads: Lanes<u32>) {
        check_f32(&bits.map(|x| f32::from_bits(x as u32)), &payloads);
        check_f64(&bits.map(f64::from_bits), &payloads);
    }
}

#[test]
fn special_floats_are_in_total_order() {
    let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, f64::MIN_POSITIVE, -1.5];
    // Each pair alone among copies of its first, so that every comparison decides once.
    for a in special {
        for b in special {
            let values = lanes(|lane| if lane == 13 { b } else { a });
            let payloads = lanes(|lane| 31 - lane as u32);
            check_f64(&values, &payloads);
            check_f32(&values.map(|x| x as f32), &payloads);
        }
    }
}
