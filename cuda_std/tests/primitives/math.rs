use cuda_std::math;

#[test]
fn minimum_and_maximum_prefer_numbers_and_order_zeros() {
    for (a, b, min, max) in [
        (1.0, 2.0, 1.0, 2.0),
        (f32::NAN, 2.0, 2.0, 2.0),
        (1.0, f32::NAN, 1.0, 1.0),
        (-0.0, 0.0, -0.0, 0.0),
        (0.0, -0.0, -0.0, 0.0),
        (f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY, 3.0),
    ] {
        assert_eq!(math::min_f32(a, b).to_bits(), f32::to_bits(min), "min of {a} and {b}");
        assert_eq!(math::max_f32(a, b).to_bits(), f32::to_bits(max), "max of {a} and {b}");
        let [a, b, min, max] = [a, b, min, max].map(f64::from);
        assert_eq!(math::min_f64(a, b).to_bits(), min.to_bits(), "min of {a} and {b}");
        assert_eq!(math::max_f64(a, b).to_bits(), max.to_bits(), "max of {a} and {b}");
    }
    assert!(math::max_f64(f64::NAN, f64::NAN).is_nan());
    assert!(math::min_f32(f32::NAN, f32::NAN).is_nan());
}

#[test]
fn fused_is_one_rounding() {
    let a = 1.0 + f32::EPSILON;
    assert_eq!(math::mul_add_f32(a, a, -(1.0 + 2.0 * f32::EPSILON)), f32::EPSILON * f32::EPSILON);
    let a = 1.0 + f64::EPSILON;
    assert_eq!(math::mul_add_f64(a, a, -(1.0 + 2.0 * f64::EPSILON)), f64::EPSILON * f64::EPSILON);
    assert_eq!((math::sqrt_f32(2.25), math::sqrt_f64(2.0)), (1.5, std::f64::consts::SQRT_2));
}

#[test]
fn four_products_of_bytes_are_added() {
    // Bytes, from the lowest: −128, 127, −1, 2 and −128, −1, 127, 3.
    let (a, b) = (0x02ff_7f80, 0x037f_ff80);
    assert_eq!(math::dot4_i8(a, b, -5), 128 * 128 - 127 - 127 + 6 - 5);
    assert_eq!(math::dot4_u8(a, b, 7), 128 * 128 + 127 * 255 + 255 * 127 + 6 + 7);
    assert_eq!((math::dot4_i8(0x0100, 0x0100, i32::MAX), math::dot4_u8(1, 1, u32::MAX)), (i32::MIN, 0));
}

#[test]
fn pairs_of_halves_are_added_with_one_rounding_each() {
    let one = half::f16::ONE.to_bits();
    let (least, most) = (1u16, half::f16::MAX.to_bits());
    for (a, b, sum) in [
        (one, one, 0x4000),
        // Half a unit in the last place ties to even; a little more than that does not.
        (one, 0x1000, one),
        (one, 0x1001, one + 1),
        (one + 1, 0x1000, one + 2),
        (least, least, 2),
        (most, most, half::f16::INFINITY.to_bits()),
        (0x8000, 0, 0),
    ] {
        let pack = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        assert_eq!(math::add_f16x2(pack(a, one), pack(b, one)), pack(sum, 0x4000), "{a:#x} + {b:#x}");
        assert_eq!(math::add_f16x2(pack(one, a), pack(one, b)), pack(0x4000, sum), "{a:#x} + {b:#x}");
    }
}

#[test]
fn pairs_of_halves_are_multiplied_and_added_with_one_rounding_each() {
    let half = |x: f64| half::f16::from_f64(x).to_bits();
    let (one, least, most) = (half(1.0), 1u16, half::f16::MAX.to_bits());
    let pack = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    for (a, b, c, result) in [
        (half(3.0), half(5.0), half(-7.0), half(8.0)),
        // (1 + 2^-10)^2 = 1 + 2^-9 + 2^-20: with a rounding of the product the last term would be lost.
        (one + 1, one + 1, half(-1.0 - 2f64.powi(-9)), half(2f64.powi(-20))),
        // 2^-9 + 2^-20 is a tie, which goes to even.
        (one + 1, one + 1, half(-1.0), half(2f64.powi(-9))),
        // A tie goes to even. The least number decides it, although f32 loses that beside the product.
        (one, half(2f64.powi(-11)), one, one),
        (half(48.0), half(683.0), 0, half(32_768.0)),
        (half(48.0), half(683.0), least, half(32_800.0)),
        (half(255.0), half(0.007_843), half(-1.0), half(255.0 * half::f16::from_f64(0.007_843).to_f64() - 1.0)),
        (most, half(2.0), half(-60_000.0), half::f16::INFINITY.to_bits()),
        (most, most, half::f16::NEG_INFINITY.to_bits(), half::f16::NEG_INFINITY.to_bits()),
        (least, least, least, least),
        (least, half(0.5), 0, 0),
        (least, half(0.5), least, 2),
    ] {
        let two = |x: u16, y: u16, z: u16| {
            (
                math::fma_f16x2(pack(x, one), pack(y, one), pack(z, one)),
                math::fma_f16x2(pack(one, x), pack(one, y), pack(one, z)),
            )
        };
        assert_eq!(two(a, b, c), (pack(result, 0x4000), pack(0x4000, result)), "{a:#x} * {b:#x} + {c:#x}");
    }
    let nan = half::f16::NAN.to_bits();
    assert_eq!(math::fma_f16x2(pack(nan, one), pack(one, one), 0) & 0xffff, 0x7fff);
    // Every code of a byte, and what rounding once means: nothing lies nearer to the exact value, which f64 holds here.
    for code in 0..=255u16 {
        for (step, base) in [(half(0.013), half(-1.7)), (half(31.9), half(-4_000.0)), (least, half(2f64.powi(-14)))] {
            let wide = |bits: u16| half::f16::from_bits(bits).to_f64();
            let exact = f64::from(code) * wide(step) + wide(base);
            let got = math::fma_f16x2(u32::from(half(f64::from(code))), u32::from(step), u32::from(base)) as u16;
            let distance = (wide(got) - exact).abs();
            for near in [got.wrapping_sub(1), got + 1] {
                let other = (wide(near) - exact).abs();
                assert!(
                    other.is_nan() || distance < other || distance == other && got & 1 == 0,
                    "{code} * {step:#x} + {base:#x}"
                );
            }
        }
    }
}

/// The value of a 16-bit float by its definition.
fn value(bits: u16, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    match exponent {
        0 => sign * mantissa * 2f64.powi(1 - bias),
        e if e == 2 * bias + 1 && mantissa == 0.0 => sign * f64::INFINITY,
        e if e == 2 * bias + 1 => f64::NAN,
        e => sign * (1.0 + mantissa) * 2f64.powi(e - bias),
    }
}

#[test]
fn every_16_bit_float_has_its_value_and_comes_back() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (math::f16_to_f32(bits), math::bf16_to_f32(bits));
        let (exact_half, exact_brain) = (value(bits, 5, 10), value(bits, 8, 7));
        assert_eq!(half.is_nan(), exact_half.is_nan());
        assert_eq!(brain.is_nan(), exact_brain.is_nan());
        if half.is_nan() {
            assert_eq!((half.to_bits(), math::f32_to_f16(half)), (0x7fff_ffff, 0x7fff));
        } else {
            assert_eq!((f64::from(half), math::f32_to_f16(half)), (exact_half, bits));
        }
        if brain.is_nan() {
            assert_eq!(math::f32_to_bf16(brain), 0x7fff);
        } else {
            assert_eq!((f64::from(brain), math::f32_to_bf16(brain)), (exact_brain, bits));
        }
    }
}

#[test]
fn rounding_to_16_bits() {
    // Halfway between two f16: to the even one. Beyond the largest by half a step: infinity.
    assert_eq!(math::f32_to_f16(1.0 + 1.0 / 2048.0), 0x3c00);
    assert_eq!(math::f32_to_f16(1.0 + 3.0 / 2048.0), 0x3c02);
    assert_eq!(math::f32_to_f16(65_519.99), 0x7bff);
    assert_eq!(math::f32_to_f16(65_520.0), 0x7c00);
    assert_eq!(math::f32_to_f16(-1e30), 0xfc00);
    assert_eq!(math::f32_to_bf16(1.0 + 1.0 / 256.0), 0x3f80);
    assert_eq!(math::f32_to_bf16(1.0 + 3.0 / 256.0), 0x3f82);
    assert_eq!(math::f32_to_bf16(f32::MAX), 0x7f80);
}

#[test]
fn rounding_to_tf32() {
    let step = 2f32.powi(-10);
    for (x, rounded) in [
        (1.0, 1.0),
        (1.0 + step / 2.0, 1.0 + step),
        (-1.0 - step / 2.0, -1.0 - step),
        (1.0 + 0.49 * step, 1.0),
        (2.0 - step / 4.0, 2.0),
        (f32::MAX, f32::INFINITY),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
        (0.0, 0.0),
    ] {
        assert_eq!(math::f32_to_tf32(x), f32::to_bits(rounded), "{x}");
    }
    assert!(f32::from_bits(math::f32_to_tf32(f32::NAN)).is_nan());
}
