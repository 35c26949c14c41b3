use crate::{Lanes, lanes, one_block};
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel,
    warp::{self, Shuffle},
};
use proptest::prelude::*;

/// Stores the four shuffles of each lane's value one after the other.
#[kernel(
    shuffle_u32 for Shuffles<u32> = shuffles::<u32>,
    shuffle_i32 for Shuffles<i32> = shuffles::<i32>,
    shuffle_f32 for Shuffles<f32> = shuffles::<f32>,
    shuffle_u64 for Shuffles<u64> = shuffles::<u64>,
    shuffle_i64 for Shuffles<i64> = shuffles::<i64>,
    shuffle_f64 for Shuffles<f64> = shuffles::<f64>,
)]
struct Shuffles<T> {
    /// One value for each lane.
    values: Ptr<T>,
    /// 32 results of each shuffle.
    out: PtrMut<T>,
    /// Lanes from the source to the destination.
    distance: u32,
}

/// # Safety
/// The arrays are as long as [`Shuffles`] says.
unsafe fn shuffles<T: Shuffle>(Shuffles { values, out, distance }: Shuffles<T>) {
    let lane = warp::lane_id() as usize;
    // SAFETY: 32 values, 128 results, lane < 32.
    unsafe {
        let value = global::load(values.add(lane));
        global::store(out.add(lane), warp::shuffle_xor(warp::FULL_MASK, value, distance));
        global::store(out.add(32 + lane), warp::shuffle_up(warp::FULL_MASK, value, distance));
        global::store(out.add(64 + lane), warp::shuffle_down(warp::FULL_MASK, value, distance));
        global::store(out.add(96 + lane), warp::shuffle_idx(warp::FULL_MASK, value, distance + lane as u32));
    }
}

/// The expected results of the four shuffles, lane by lane.
fn model<T: Copy>(values: &Lanes<T>, distance: usize) -> Vec<T> {
    [
        lanes(|lane| values[lane ^ distance]),
        lanes(|lane| if lane >= distance { values[lane - distance] } else { values[lane] }),
        lanes(|lane| if lane + distance < 32 { values[lane + distance] } else { values[lane] }),
        lanes(|lane| values[(distance + lane) % 32]),
    ]
    .concat()
}

macro_rules! shuffle_tests {
    ($($name:ident($t:ty);)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]
            $(
                #[test]
                fn $name(values: Lanes<$t>, distance in 0usize..32) {
                    let input = Buffer::from_slice(&values);
                    let mut out = Buffer::new_poisoned(128);
                    let launch =
                        Shuffles { values: input.as_ptr(), out: out.as_mut_ptr(), distance: distance as u32 };
                    // SAFETY: 32 values and 128 results.
                    unsafe { emulator::launch(&Shuffles::<$t>::KERNEL, one_block(32, 0), launch) }.unwrap();
                    let bits = |values: &[$t]| values.iter().map(|value| value.to_ne_bytes()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(&out.to_vec()), bits(&model(&values, distance)));
                }
            )*
        }
    };
}

shuffle_tests! {
    words_of_32_bits(u32);
    signed_words(i32);
    single_floats(f32);
    words_of_64_bits(u64);
    signed_words_of_64_bits(i64);
    double_floats(f64);
}
