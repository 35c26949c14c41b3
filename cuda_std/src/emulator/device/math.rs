//! Arithmetic with the bits that the GPU's instructions give.

/// The 16 bits that the GPU's conversions give for NaN.
const NAN_16: u16 = 0x7fff;

#[inline(always)]
pub fn mul_add_f32(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline(always)]
pub fn mul_add_f64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

#[inline(always)]
pub fn min_f32(a: f32, b: f32) -> f32 {
    if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
}

#[inline(always)]
pub fn max_f32(a: f32, b: f32) -> f32 {
    if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) }
}

#[inline(always)]
pub fn min_f64(a: f64, b: f64) -> f64 {
    if a == b { f64::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
}

#[inline(always)]
pub fn max_f64(a: f64, b: f64) -> f64 {
    if a == b { f64::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) }
}

#[inline(always)]
pub fn sqrt_f32(x: f32) -> f32 {
    x.sqrt()
}

#[inline(always)]
pub fn sqrt_f64(x: f64) -> f64 {
    x.sqrt()
}

#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let value = half::f16::from_bits(bits).to_f32();
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

#[inline(always)]
pub fn add_f16x2(a: u32, b: u32) -> u32 {
    // An f64 holds the sum of two f16 exactly, so it is rounded once.
    let add = |a: u32, b: u32| {
        let sum = half::f16::from_bits(a as u16).to_f64() + half::f16::from_bits(b as u16).to_f64();
        if sum.is_nan() { NAN_16 } else { half::f16::from_f64(sum).to_bits() }
    };
    u32::from(add(a, b)) | u32::from(add(a >> 16, b >> 16)) << 16
}

#[inline(always)]
pub fn fma_f16x2(a: u32, b: u32, c: u32) -> u32 {
    let wide = |bits: u32| half::f16::from_bits(bits as u16).to_f64();
    let fma = |a: u32, b: u32, c: u32| {
        // The product of two f16 is exact in f64. Its sum with another may not be: an odd f32 between keeps what
        // rounding needs.
        let (product, addend) = (wide(a) * wide(b), wide(c));
        let sum = product + addend;
        if !sum.is_finite() {
            return f32_to_f16(sum as f32);
        }
        let of_addend = sum - product;
        let error = (product - (sum - of_addend)) + (addend - of_addend);
        f32_to_f16(rounded_to_odd(sum, error))
    };
    u32::from(fma(a, b, c)) | u32::from(fma(a >> 16, b >> 16, c >> 16)) << 16
}

#[inline(always)]
pub fn dot4_i8(a: u32, b: u32, c: i32) -> i32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    products.fold(c, |sum, (a, b)| sum.wrapping_add(i32::from(a as i8) * i32::from(b as i8)))
}

#[inline(always)]
pub fn dot4_u8(a: u32, b: u32, c: u32) -> u32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    products.fold(c, |sum, (a, b)| sum.wrapping_add(u32::from(a) * u32::from(b)))
}

/// `sum` + `error` where f32 holds it, else the one of its two neighbours whose last bit is set. It rounds to f16 as
/// the exact value does, because f32 has more than two bits more.
fn rounded_to_odd(sum: f64, error: f64) -> f32 {
    let near = sum as f32;
    let rest = (sum - f64::from(near)) + error;
    if rest == 0.0 || near.to_bits() & 1 == 1 {
        return near;
    }
    if rest > 0.0 { near.next_up() } else { near.next_down() }
}

#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    if x.is_nan() { NAN_16 } else { half::f16::from_f32(x).to_bits() }
}

#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    if x.is_nan() { NAN_16 } else { half::bf16::from_f32(x).to_bits() }
}

#[inline(always)]
pub fn f32_to_tf32(x: f32) -> u32 {
    // Half of the last kept bit, added to the magnitude, rounds ties away from zero; the carry into the exponent is
    // right.
    if x.is_finite() {
        x.to_bits().wrapping_add(0x1000) & !0x1fff
    } else {
        if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }
    }
}
