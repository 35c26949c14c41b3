//! The orders of keys.

use test_random::Random;
use warpann_kernels::select::keys::*;

fn order_of<K: Key>(bits: u32) -> u32 {
    K::order(K::raw_order(bits))
}

#[test]
fn floats_are_ordered_and_come_back() {
    let values = [f32::NEG_INFINITY, -3.5, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY];
    let orders: Vec<u32> = values.iter().map(|value| order_of::<F32Key>(value.to_bits())).collect();
    assert!(orders.is_sorted_by(|a, b| a < b), "{orders:x?}");
    assert_eq!((orders[0], orders[6]), (F32Key::BEST, F32Key::WORST));
    for (value, order) in values.iter().zip(orders) {
        assert_eq!(F32Key::unorder(order), value.to_bits());
    }
    assert_eq!(order_of::<F32Key>((-0.0f32).to_bits()), order_of::<F32Key>(0));
    for nan in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffff_ffff] {
        assert_eq!(order_of::<F32Key>(nan), F32Key::NAN, "{nan:x}");
    }
    const { assert!(F32Key::NAN > F32Key::WORST) };
    assert_eq!(F32Key::unorder(F32Key::NAN), f32::NAN.to_bits());
}

#[test]
fn halves_are_ordered_as_the_floats_they_are() {
    let ordered = |infinity: u16, order: fn(u32) -> u32| {
        // All non-negative numbers ascend with their bits, all negative ones descend.
        let orders: Vec<u32> = (0..=infinity).map(|bits| order(u32::from(bits) << 16)).collect();
        assert!(orders.is_sorted_by(|a, b| a < b));
        let below: Vec<u32> = (0..=infinity).map(|bits| order(u32::from(bits | 0x8000) << 16)).collect();
        assert!(below.is_sorted_by(|a, b| a > b));
        assert_eq!(below[0], orders[0], "-0 and +0");
        for nan in infinity + 1..=0x7fff {
            assert!(order(u32::from(nan) << 16) > orders[infinity as usize]);
            assert_eq!(order(u32::from(nan | 0x8000) << 16), order(u32::from(nan) << 16));
        }
    };
    ordered(0x7c00, order_of::<F16Key>);
    ordered(0x7f80, order_of::<Bf16Key>);
}

#[test]
fn integers_are_ordered() {
    let signed = [i32::MIN, -1, 0, 1, i32::MAX].map(|value| order_of::<I32Key>(value as u32));
    assert!(signed.is_sorted_by(|a, b| a < b));
    assert_eq!([0, 7, u32::MAX].map(order_of::<U32Key>), [0, 7, u32::MAX]);
    assert_eq!(I32Key::unorder(signed[1]), -1i32 as u32);
}

/// One comparison of bits says whether the order of a key is at most another order, also one that no key has.
#[test]
fn bits_tell_which_keys_come_up_to_an_order() {
    fn check<K: Key>(upper_half: bool, has_nan: bool) {
        let mut random = Random::new(7);
        let mut all =
            vec![0, 1, 0x8000_0000, 0x8000_0001, 0x7f80_0000, 0xff80_0000, 0x7c00_0000, 0xfc00_0000, u32::MAX];
        all.extend([0x0001_0000, 0x8001_0000, 0x7fc0_0000, 0xffc0_0000, 0xfe00_0000, 0x7e00_0000, 0x7fff_ffff]);
        all.extend((0..300).map(|_| random.bits() as u32));
        let keys: Vec<u32> = all.iter().map(|bits| if upper_half { bits & 0xffff_0000 } else { *bits }).collect();
        let near = |order: u32| {
            [-2, -1, 0, 1, 2].map(|by| order.wrapping_add_signed(by)).into_iter().chain([order | 0x1f_ffff])
        };
        let orders = keys.iter().flat_map(|&bits| near(order_of::<K>(bits))).chain(near(0x8000_0000));
        for order in orders.filter(|order| (K::BEST..=K::WORST).contains(order)) {
            for &bits in &keys {
                let of_key = order_of::<K>(bits);
                let expected = of_key <= order && !(has_nan && of_key == K::NAN);
                assert_eq!(K::at_or_before(bits, K::bits_up_to(order)), expected, "{bits:x} {order:x}");
            }
        }
    }
    check::<F32Key>(false, true);
    check::<F16Key>(true, true);
    check::<Bf16Key>(true, true);
    check::<I32Key>(false, false);
    check::<U32Key>(false, false);
}
