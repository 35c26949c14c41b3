//! Matrix loads and products: every lane deposits its part; fragments are laid out as in the PTX ISA (see
//! `crate::mma`).

use crate::{
    Site,
    emulator::{
        clock::LANES,
        context::{Lane, Product, WIDE, current, meet},
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

/// C += A · B for operands that `decode` puts into the product's matrices, with inner dimension `K`.
///
/// # Safety
/// Within a launch.
#[inline(always)]
unsafe fn multiply<const K: usize>(
    operation: Operation,
    c: &mut [f32; 4],
    a: &[u32; 4],
    b: [u32; 2],
    site: Site,
    decode: impl FnOnce(&mut Product, &[[u32; WIDE]; LANES]),
) {
    let words = [a[0], a[1], a[2], a[3], b[0], b[1]];
    // SAFETY: the running thread's warp is alive; nothing else runs on this OS thread.
    unsafe {
        let (lane, fragments) = exchange(operation, words, site);
        let warp = (*lane).warp;
        let product = &mut *(*warp).product;
        if product.pass != (*warp).pass {
            product.pass = (*warp).pass;
            decode(product, fragments);
        }
        let (row, column) = ((*lane).lane as usize / 4, (*lane).lane as usize % 4 * 2);
        for (i, c) in c.iter_mut().enumerate() {
            let (a, b) = (&product.a[row + i / 2 * 8], &product.b[column + i % 2]);
            for k in 0..K {
                *c += a[k] * b[k];
            }
        }
    }
}

/// Decodes fragments of 16-bit elements. Once a warp, so not worth a copy in the kernel.
#[inline(never)]
fn decode_16(product: &mut Product, fragments: &[[u32; WIDE]; LANES], value: impl Fn(u16) -> f32) {
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
fn decode_tf32(product: &mut Product, fragments: &[[u32; WIDE]; LANES]) {
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

/// # Safety
/// As `mma::mma_m16n8k16_f16`.
#[inline(always)]
pub unsafe fn m16n8k16_f16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    let decode =
        |product: &mut Product, fragments: &_| decode_16(product, fragments, |bits| f16::from_bits(bits).to_f32());
    // SAFETY: same contract.
    unsafe { multiply::<16>(Operation::MmaF16, c, a, b, site, decode) }
}

/// # Safety
/// As `mma::mma_m16n8k16_bf16`.
#[inline(always)]
pub unsafe fn m16n8k16_bf16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    let decode =
        |product: &mut Product, fragments: &_| decode_16(product, fragments, |bits| bf16::from_bits(bits).to_f32());
    // SAFETY: same contract.
    unsafe { multiply::<16>(Operation::MmaBf16, c, a, b, site, decode) }
}

/// # Safety
/// As `mma::mma_m16n8k8_tf32`.
#[inline(always)]
pub unsafe fn m16n8k8_tf32(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], site: Site) {
    // SAFETY: same contract.
    unsafe { multiply::<8>(Operation::MmaTf32, c, a, b, site, decode_tf32) }
}
