use crate::{Lanes, one_block};
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel, warp,
};
use proptest::prelude::*;

/// Votes, matches and reductions of the lanes of `mask`; other lanes write nothing.
#[kernel]
unsafe fn collect(values: Ptr<u32>, mask: u32, threshold: u32, out: PtrMut<u32>) {
    let lane = warp::lane_id() as usize;
    if mask >> lane & 1 == 0 {
        return;
    }
    // SAFETY: 32 values, 32 × 15 results, lane < 32.
    unsafe {
        let value = global::load(values.add(lane));
        let above = value > threshold;
        let (all_equal, equal) = warp::match_all(mask, value);
        let results = [
            u32::from(warp::any(mask, above)),
            u32::from(warp::all(mask, above)),
            warp::ballot(mask, above),
            warp::match_any(mask, value),
            all_equal,
            u32::from(equal),
            warp::reduce_add(mask, value),
            warp::reduce_min(mask, value),
            warp::reduce_max(mask, value),
            warp::reduce_and(mask, value),
            warp::reduce_or(mask, value),
            warp::reduce_xor(mask, value),
            warp::reduce_add(mask, value as i32) as u32,
            warp::reduce_min(mask, value as i32) as u32,
            warp::reduce_max(mask, value as i32) as u32,
        ];
        for (i, result) in results.into_iter().enumerate() {
            global::store(out.add(15 * lane + i), result);
        }
    }
}

/// The expected results of lane `own`, computed from the lanes of the mask one after the other.
fn model(values: &Lanes<u32>, mask: u32, threshold: u32, own: usize) -> [u32; 15] {
    let (mut least, mut most) = (i32::MAX, i32::MIN);
    let (mut above, mut same, mut sum, mut min, mut max, mut and, mut or, mut xor) =
        (0u32, 0u32, 0u32, u32::MAX, 0u32, u32::MAX, 0u32, 0u32);
    for lane in 0..32 {
        if mask & (1 << lane) == 0 {
            continue;
        }
        let value = values[lane];
        if value > threshold {
            above += 1 << lane;
        }
        if value == values[own] {
            same += 1 << lane;
        }
        sum = sum.wrapping_add(value);
        if value < min {
            min = value;
        }
        if value > max {
            max = value;
        }
        if (value as i32) < least {
            least = value as i32;
        }
        if value as i32 > most {
            most = value as i32;
        }
        and &= value;
        or |= value;
        xor ^= value;
    }
    let equal = same == mask;
    let all_equal = if equal { mask } else { 0 };
    let votes = [u32::from(above > 0), u32::from(above == mask), above, same, all_equal, equal.into()];
    let reductions = [sum, min, max, and, or, xor, sum, least as u32, most as u32];
    std::array::from_fn(|i| if i < 6 { votes[i] } else { reductions[i - 6] })
}

fn check(values: &Lanes<u32>, mask: u32, threshold: u32) {
    let input = Buffer::from_slice(values);
    let mut out = Buffer::new_poisoned(32 * 15);
    let launch = Collect { values: input.as_ptr(), mask, threshold, out: out.as_mut_ptr() };
    // SAFETY: 32 values and 32 × 15 results.
    unsafe { emulator::launch(&Collect::KERNEL, one_block(32, 0), launch) }.unwrap();
    for (lane, results) in out.to_vec().chunks(15).enumerate() {
        if mask >> lane & 1 == 1 {
            assert_eq!(results, model(values, mask, threshold, lane), "lane {lane}");
        } else {
            assert_eq!(results, [0xA5A5_A5A5; 15], "lane {lane} is not in the mask");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_values_and_mask(values: Lanes<u32>, mask in 1u32.., threshold: u32) {
        check(&values, mask, threshold);
    }

    #[test]
    fn few_distinct_values(values in prop::array::uniform32(0u32..3), threshold in 0u32..3) {
        check(&values, u32::MAX, threshold);
    }
}

#[test]
fn all_equal() {
    check(&[7; 32], u32::MAX, 6);
    check(&[7; 32], u32::MAX, 7);
    check(&[7; 32], 0x0001_8000, 7);
}
