use crate::{Lanes, lanes, one_block};
use cuda_std::{
    emulator::{self, Buffer},
    global, kernel, warp,
};
use proptest::prelude::*;

/// Writes the four shuffles of each lane's value one after the other.
macro_rules! shuffle_kernels {
    ($($name:ident($t:ty);)*) => {$(
        #[kernel]
        unsafe fn $name(values: *const $t, out: *mut $t, distance: u32) {
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
    )*};
}

shuffle_kernels! {
    shuffle_u32(u32);
    shuffle_i32(i32);
    shuffle_f32(f32);
    shuffle_u64(u64);
    shuffle_i64(i64);
    shuffle_f64(f64);
}

/// What the four shuffles give, lane by lane.
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
    ($($name:ident($kernel:ident, $t:ty);)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]
            $(
                #[test]
                fn $name(values: Lanes<$t>, distance in 0usize..32) {
                    let input = Buffer::from_slice(&values);
                    let mut out = Buffer::new_poisoned(128);
                    let arguments = (input.as_ptr(), out.as_mut_ptr(), distance as u32);
                    // SAFETY: 32 values and 128 results.
                    unsafe { emulator::launch(&$kernel, one_block(32, 0), arguments) }.unwrap();
                    let bits = |values: &[$t]| values.iter().map(|value| value.to_ne_bytes()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(&out.to_vec()), bits(&model(&values, distance)));
                }
            )*
        }
    };
}

shuffle_tests! {
    words_of_32_bits(SHUFFLE_U32, u32);
    signed_words(SHUFFLE_I32, i32);
    single_floats(SHUFFLE_F32, f32);
    words_of_64_bits(SHUFFLE_U64, u64);
    signed_words_of_64_bits(SHUFFLE_I64, i64);
    double_floats(SHUFFLE_F64, f64);
}
