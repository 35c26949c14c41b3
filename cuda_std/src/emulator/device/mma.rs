//! Matrix loads and products: every lane deposits its part; fragments are laid out as in the PTX ISA (see
//! `crate::mma`).

use crate::{
    Site,
    emulator::{
        clock::LANES,
        context::{Lane, Product, Products, WIDE, current, meet},
        violation::Operation,
    },
};
use half::{bf16, f16};

/// Deposits `words`, meets all lanes, and gives what all deposited.
///
/// # Safety
/// The result is used before this lane meets others again.
#[inline(always)]
unsafe fn exchange<'a>(operation: Operation, words: [u32; WIDE], site: Site) -> (*mut Lane, &'a [[u32; WIDE]; LANES]) {
    let lane = current();
    // SAFETY: the running thread, holding no reference across `meet`; its warp is alive, and this set of slots is not
    // written again before this lane meets others once more.
    unsafe {
        let warp = (*lane).warp;
        let parity = (*warp).parity & 1;
        (&mut (*warp).wide)[parity][(*lane).lane as usize] = words;
        meet(lane, operation, u32::MAX, site);
        let wide = &raw const *(*warp).wide;
        (lane, &(*wide)[(*warp).parity & 1 ^ 1])
    }
}

/// Reads the row at `address`, if this lane is one of the first `rows`, and exchanges rows.
///
/// # Safety
/// As `mma::ldmatrix_x4`; the result is used before this lane meets others again.
#[inline(always)]
unsafe fn load_rows<'a>(operation: Operation, rows: u32, address: u32, site: Site) -> (u32, &'a [[u32; WIDE]; LANES]) {
    let lane = current();
    let mut words = [0; WIDE];
    // SAFETY: the running thread, whose block is alive; the row was checked, so it is inside the memory.
    unsafe {
        if (*lane).lane < rows {
            super::shared::read::<16>(lane, address, site);
            words[..4].copy_from_slice(&(*(*lane).block).shared.place(address).cast::<[u32; 4]>().read());
        }
        let (lane, rows) = exchange(operation, words, site);
        ((*lane).lane, rows)
    }
}

/// # Safety
/// As `mma::ldmatrix_x4`.
#[inline(always)]
pub unsafe fn ldmatrix_x4(row: u32, site: Site) -> [u32; 4] {
    // SAFETY: same contract.
    let (lane, rows) = unsafe { load_rows(Operation::LdmatrixX4, 32, row, site) };
    std::array::from_fn(|matrix| rows[8 * matrix + lane as usize / 4][lane as usize % 4])
}

/// # Safety
/// As `mma::ldmatrix_x2`.
#[inline(always)]
pub unsafe fn ldmatrix_x2(row: u32, site: Site) -> [u32; 2] {
    // SAFETY: same contract.
    let (lane, rows) = unsafe { load_rows(Operation::LdmatrixX2, 16, row, site) };
    std::array::from_fn(|matrix| rows[8 * matrix + lane as usize / 4][lane as usize % 4])
}

/// # Safety
/// As `mma::ldmatrix_x4_trans`.
#[inline(always)]
pub unsafe fn ldmatrix_x4_trans(row: u32, site: Site) -> [u32; 4] {
    // SAFETY: same contract.
    let (lane, rows) = unsafe { load_rows(Operation::LdmatrixX4Trans, 32, row, site) };
    let (row, column) = (lane as usize % 4 * 2, lane as usize / 4);
    let element = |matrix: usize, row: usize| rows[8 * matrix + row][column / 2] >> (column % 2 * 16) & 0xffff;
    std::array::from_fn(|matrix| element(matrix, row) | element(matrix, row + 1) << 16)
}

/// The fragments of a product.
type Fragments<'a, N> = (&'a mut [N; 4], &'a [u32; 4], [u32; 2]);

/// C += A · B for operands that `decode` puts into the product's matrices; `sum` adds the product of a row of A and a
/// column of B to an element of C.
///
/// # Safety
/// Within a launch.
#[inline(always)]
unsafe fn multiply<N, const K: usize>(
    operation: Operation,
    (c, a, b): Fragments<'_, N>,
    site: Site,
    of_warp: impl FnOnce(&mut Products) -> &mut Product<N, K>,
    decode: impl FnOnce(&mut Product<N, K>, &[[u32; WIDE]; LANES]),
    sum: impl Fn(&mut N, &[N; K], &[N; K]),
) {
    let words = [a[0], a[1], a[2], a[3], b[0], b[1]];
    // SAFETY: the running thread's warp is alive; nothing else runs on this OS thread.
    unsafe {
        let (lane, fragments) = exchange(operation, words, site);
        let warp = (*lane).warp;
        let product = of_warp(&mut (*warp).products);
        if product.pass != (*warp).pass {
            product.pass = (*warp).pass;
            decode(product, fragments);
        }
        let (row, column) = ((*lane).lane as usize / 4, (*lane).lane as usize % 4 * 2);
        for (i, c) in c.iter_mut().enumerate() {
            sum(c, &product.a[row + i / 2 * 8], &product.b[column + i % 2]);
        }
    }
}

/// Adds products of floats one by one.
#[inline(always)]
fn sum_floats<const K: usize>(c: &mut f32, a: &[f32; K], b: &[f32; K]) {
    a.iter().zip(b).for_each(|(a, b)| *c += a * b);
}

/// Decodes fragments of 16-bit elements. Once a warp, so not worth a copy in the kernel.
#[inline(never)]
fn decode_16(product: &mut Product<f32, 16>, fragments: &[[u32; WIDE]; LANES], value: impl Fn(u16) -> f32) {
    for (lane, words) in fragments.iter().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        for half in 0..2 {
            let element = |register: usize| value((words[register] >> (16 * half)) as u16);
            for register in 0..4 {
                product.a[group + register % 2 * 8][2 * member + register / 2 * 8 + half] = element(register);
            }
            for register in 0..2 {
                product.b[group][2 * member + register * 8 + half] = element(4 + register);
            }
        }
    }
}

/// Decodes fragments of tf32 elements: f32 without the low 13 bits.
#[inline(never)]
fn decode_tf32(product: &mut Product<f32, 8>, fragments: &[[u32; WIDE]; LANES]) {
    for (lane, words) in fragments.iter().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        let element = |register: usize| f32::from_bits(words[register] & !0x1fff);
        for register in 0..4 {
            product.a[group + register % 2 * 8][member + register / 2 * 4] = element(register);
        }
        for register in 0..2 {
            product.b[group][member + register * 4] = element(4 + register);
        }
    }
}

/// Decodes fragments of bytes.
#[inline(never)]
fn decode_8(product: &mut Product<i32, 32>, fragments: &[[u32; WIDE]; LANES], value: impl Fn(u8) -> i32) {
    for (lane, words) in fragments.iter().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        for (register, word) in words[..6].iter().enumerate() {
            for (byte, bits) in word.to_le_bytes().into_iter().enumerate() {
                let k = 4 * member + byte;
                match register {
                    0..4 => product.a[group + register % 2 * 8][k + register / 2 * 16] = value(bits),
                    _ => product.b[group][k + (register - 4) * 16] = value(bits),
                }
            }
        }
    }
}

/// # Safety
/// As `mma::mma_m16n8k16_f16`.
#[inline(always)]
pub unsafe fn m16n8k16_f16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    let decode = |product: &mut _, fragments: &_| decode_16(product, fragments, |bits| f16::from_bits(bits).to_f32());
    // SAFETY: same contract.
    unsafe { multiply(Operation::MmaF16, (c, a, b), site, |of| &mut of.of_16_bits, decode, sum_floats) }
}

/// # Safety
/// As `mma::mma_m16n8k16_bf16`.
#[inline(always)]
pub unsafe fn m16n8k16_bf16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    let decode = |product: &mut _, fragments: &_| decode_16(product, fragments, |bits| bf16::from_bits(bits).to_f32());
    // SAFETY: same contract.
    unsafe { multiply(Operation::MmaBf16, (c, a, b), site, |of| &mut of.of_16_bits, decode, sum_floats) }
}

/// # Safety
/// As `mma::mma_m16n8k8_tf32`.
#[inline(always)]
pub unsafe fn m16n8k8_tf32(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    // SAFETY: same contract.
    unsafe { multiply(Operation::MmaTf32, (c, a, b), site, |of| &mut of.of_tf32, decode_tf32, sum_floats) }
}

/// Adds products of bytes, which wrap around as on a GPU.
#[inline(always)]
fn sum_bytes(c: &mut i32, a: &[i32; 32], b: &[i32; 32]) {
    *c = a.iter().zip(b).fold(*c, |sum, (a, b)| sum.wrapping_add(a * b));
}

/// # Safety
/// As `mma::mma_m16n8k32_s8`.
#[inline(always)]
pub unsafe fn m16n8k32_s8(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    let decode = |product: &mut _, fragments: &_| decode_8(product, fragments, |bits| i32::from(bits as i8));
    // SAFETY: same contract.
    unsafe { multiply(Operation::MmaS8, (c, a, b), site, |of| &mut of.of_bytes, decode, sum_bytes) }
}

/// # Safety
/// As `mma::mma_m16n8k32_u8`.
#[inline(always)]
pub unsafe fn m16n8k32_u8(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    let decode = |product: &mut _, fragments: &_| decode_8(product, fragments, i32::from);
    // SAFETY: same contract.
    unsafe { multiply(Operation::MmaU8, (c, a, b), site, |of| &mut of.of_bytes, decode, sum_bytes) }
}

/// # Safety
/// As `mma::mma_m16n8k256_b1`.
#[inline(always)]
pub unsafe fn m16n8k256_b1(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    // The fragments are those of bytes, with eight elements in each.
    let decode = |product: &mut _, fragments: &_| decode_8(product, fragments, i32::from);
    let sum = |c: &mut i32, a: &[i32; 32], b: &[i32; 32]| {
        *c = a.iter().zip(b).fold(*c, |sum, (a, b)| sum.wrapping_add((a & b).count_ones() as i32));
    };
    // SAFETY: same contract.
    unsafe { multiply(Operation::MmaB1, (c, a, b), site, |of| &mut of.of_bytes, decode, sum) }
}
