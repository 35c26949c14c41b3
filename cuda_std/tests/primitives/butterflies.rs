use crate::{Lanes, lanes, one_block};
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel,
    launch::Kernel,
    warp::{self, MinMax, Sum},
};
use proptest::prelude::*;

/// Stores the result of every butterfly of one warp's values.
#[kernel(
    butterflies_u32 for Butterflies<u32> = butterflies::<u32>,
    butterflies_i32 for Butterflies<i32> = butterflies::<i32>,
    butterflies_f32 for Butterflies<f32> = butterflies::<f32>,
    butterflies_f64 for Butterflies<f64> = butterflies::<f64>,
)]
struct Butterflies<T> {
    /// A value a lane.
    values: Ptr<T>,
    /// Nine results a lane: 32 of the first butterfly, 32 of the second, ..
    out: PtrMut<T>,
}

/// # Safety
/// The arrays are as long as [`Butterflies`] says.
unsafe fn butterflies<T: MinMax + Sum>(Butterflies { values, out }: Butterflies<T>) {
    let lane = warp::lane_id() as usize;
    // SAFETY: 32 values, 9 × 32 results, lane < 32.
    unsafe {
        let value = global::load(values.add(lane));
        let (min, max) = warp::butterfly_min_max(value);
        let results = [
            warp::pair_swap(value),
            warp::butterfly_max(value),
            min,
            max,
            warp::even_odd_max_min(value),
            warp::butterfly_sum(value),
            warp::inclusive_sum(value),
            warp::exclusive_sum(value),
            warp::butterfly_min(value),
        ];
        for (i, result) in results.into_iter().enumerate() {
            global::store(out.add(32 * i + lane), result);
        }
    }
}

/// The sum in the documented order: the whole vector, stage by stage.
fn butterfly_sum<T: Copy>(mut values: Lanes<T>, plus: impl Fn(T, T) -> T) -> Lanes<T> {
    for distance in [16, 8, 4, 2, 1] {
        values = lanes(|lane| plus(values[lane], values[lane ^ distance]));
    }
    values
}

fn run<T: bytemuck::AnyBitPattern>(kernel: &Kernel<Butterflies<T>>, values: &Lanes<T>) -> Vec<Lanes<T>> {
    let input = Buffer::from_slice(values);
    let mut out = Buffer::from_slice(&[values[0]; 288]);
    let launch = Butterflies { values: input.as_ptr(), out: out.as_mut_ptr() };
    // SAFETY: 32 values and 9 × 32 results.
    unsafe { emulator::launch(kernel, one_block(32, 0), launch) }.unwrap();
    out.to_vec().chunks(32).map(|results| lanes(|lane| results[lane])).collect()
}

/// The integer tests, for one type.
macro_rules! integers {
    ($($name:ident($t:ty);)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(128))]
            $(
                #[test]
                fn $name(values: Lanes<$t>) {
                    let results = run(&Butterflies::<$t>::KERNEL, &values);
                    let (min, max) = (*values.iter().min().unwrap(), *values.iter().max().unwrap());
                    let total = values.iter().fold(0, |sum: $t, &value| sum.wrapping_add(value));
                    prop_assert_eq!(results[0], lanes(|lane| values[if lane % 2 == 0 { lane + 1 } else { lane - 1 }]));
                    prop_assert_eq!(results[1], [max; 32]);
                    prop_assert_eq!(results[2], [min; 32]);
                    prop_assert_eq!(results[3], [max; 32]);
                    prop_assert_eq!(results[4], lanes(|lane| if lane % 2 == 0 { max } else { min }));
                    prop_assert_eq!(results[5], [total; 32]);
                    let prefix = |count: usize| values[..count].iter().fold(0, |sum: $t, &value| sum.wrapping_add(value));
                    prop_assert_eq!(results[6], lanes(|lane| prefix(lane + 1)));
                    prop_assert_eq!(results[7], lanes(prefix));
                    prop_assert_eq!(results[8], [min; 32]);
                }
            )*
        }
    };
}

integers! {
    integers(u32);
    signed_integers(i32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn floats(values in prop::array::uniform32(-1e6f32..1e6)) {
        let results = run(&Butterflies::<f32>::KERNEL, &values);
        let min = values.iter().copied().min_by(f32::total_cmp).unwrap();
        let max = values.iter().copied().max_by(f32::total_cmp).unwrap();
        prop_assert_eq!(results[1], [max; 32]);
        prop_assert_eq!(results[2], [min; 32]);
        prop_assert_eq!(results[4], lanes(|lane| if lane % 2 == 0 { max } else { min }));
        // To the bit, in the documented order.
        prop_assert_eq!(results[5], butterfly_sum(values, |a, b| a + b));
        prop_assert_eq!(results[5], [results[5][0]; 32]);
        for lane in 0..32 {
            let exact = values[..=lane].iter().map(|&value| f64::from(value)).sum::<f64>();
            // 32 additions, each off by at most half a unit in the last place of a sum below 3.2e7.
            prop_assert!((f64::from(results[6][lane]) - exact).abs() <= 32.0, "lane {}", lane);
        }
        prop_assert_eq!(results[7], lanes(|lane| if lane == 0 { 0.0 } else { results[6][lane - 1] }));
        prop_assert_eq!(results[8], [min; 32]);
    }

    #[test]
    fn doubles(values in prop::array::uniform32(-1e6f64..1e6)) {
        let results = run(&Butterflies::<f64>::KERNEL, &values);
        let min = values.iter().copied().min_by(f64::total_cmp).unwrap();
        let max = values.iter().copied().max_by(f64::total_cmp).unwrap();
        prop_assert_eq!((results[1], results[2], results[3], results[8]), ([max; 32], [min; 32], [max; 32], [min; 32]));
        prop_assert_eq!(results[5], butterfly_sum(values, |a, b| a + b));
    }
}

#[test]
fn nan_loses() {
    let mut values = lanes(|lane| lane as f32);
    values[5] = f32::NAN;
    let results = run(&Butterflies::<f32>::KERNEL, &values);
    assert_eq!(results[1], [31.0; 32]);
    assert_eq!(results[2], [0.0; 32]);
    assert_eq!(results[8], [0.0; 32]);
    let results = run(&Butterflies::<f64>::KERNEL, &values.map(f64::from));
    assert_eq!((results[1], results[8]), ([31.0; 32], [0.0; 32]));
}
