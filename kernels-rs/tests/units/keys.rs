//! The orders of keys.

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
