//! Matrix products by intrinsics, which are convergent. Two operations are asm instead: `ldmatrix`, because its
//! intrinsic takes a generic pointer, and the f16 product, because its intrinsic takes `<2 x half>`, which rustc 1.96
//! refuses in a call of this ABI ("SIMD vector type not supported"). Any convergent operation in the same basic block
//! (a barrier, a shuffle, another product) keeps LLVM from duplicating the asm into divergent branches.

use crate::Site;
use core::arch::asm;

/// The struct type in which LLVM returns the four sums.
#[derive(Clone, Copy)]
#[repr(C)]
struct F32x4(f32, f32, f32, f32);

/// The struct type in which LLVM returns the four sums of products of bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct I32x4(i32, i32, i32, i32);

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.mma.m16n8k32.row.col.s8"]
    fn mma_s8(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: i32, c1: i32, c2: i32, c3: i32) -> I32x4;
    #[link_name = "llvm.nvvm.mma.m16n8k32.row.col.u8"]
    fn mma_u8(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: i32, c1: i32, c2: i32, c3: i32) -> I32x4;
    #[link_name = "llvm.nvvm.mma.and.popc.m16n8k256.row.col.b1"]
    fn mma_b1(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: i32, c1: i32, c2: i32, c3: i32) -> I32x4;
    #[link_name = "llvm.nvvm.mma.m16n8k16.row.col.bf16"]
    fn mma_bf16(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32) -> F32x4;
    #[link_name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"]
    fn mma_tf32(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: f32, c1: f32, c2: f32, c3: f32) -> F32x4;
}

/// # Safety
/// All lanes of the warp arrive.
#[inline(always)]
pub unsafe fn m16n8k16_f16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], _: Site) {
    // SAFETY: same contract.
    unsafe {
        asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, \
             {{{0}, {1}, {2}, {3}}};",
            inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
            in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
            options(nomem, nostack)
        )
    }
}

/// # Safety
/// All lanes of the warp arrive.
#[inline(always)]
pub unsafe fn m16n8k16_bf16(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], _: Site) {
    // SAFETY: same contract.
    let d = unsafe { mma_bf16(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    *c = [d.0, d.1, d.2, d.3];
}

/// # Safety
/// All lanes of the warp arrive.
#[inline(always)]
pub unsafe fn m16n8k8_tf32(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2], _: Site) {
    // SAFETY: same contract.
    let d = unsafe { mma_tf32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    *c = [d.0, d.1, d.2, d.3];
}

/// # Safety
/// All lanes of the warp arrive.
#[inline(always)]
pub unsafe fn m16n8k32_s8(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2], _: Site) {
    // SAFETY: same contract.
    let d = unsafe { mma_s8(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    *c = [d.0, d.1, d.2, d.3];
}

/// # Safety
/// All lanes of the warp arrive.
#[inline(always)]
pub unsafe fn m16n8k32_u8(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2], _: Site) {
    // SAFETY: same contract.
    let d = unsafe { mma_u8(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    *c = [d.0, d.1, d.2, d.3];
}

/// # Safety
/// All lanes of the warp arrive.
#[inline(always)]
pub unsafe fn m16n8k256_b1(c: &mut [i32; 4], a: &[u32; 4], b: [u32; 2], _: Site) {
    // SAFETY: same contract.
    let d = unsafe { mma_b1(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    *c = [d.0, d.1, d.2, d.3];
}

/// # Safety
/// As `mma::ldmatrix_x4`.
#[inline(always)]
pub unsafe fn ldmatrix_x4(row: u32, _: Site) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: same contract.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) row, options(readonly, nostack)
        )
    }
    [a, b, c, d]
}

/// # Safety
/// As `mma::ldmatrix_x2`.
#[inline(always)]
pub unsafe fn ldmatrix_x2(row: u32, _: Site) -> [u32; 2] {
    let (a, b): (u32, u32);
    // SAFETY: same contract.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{0}, {1}}}, [{2}];",
            out(reg32) a, out(reg32) b, in(reg32) row, options(readonly, nostack)
        )
    }
    [a, b]
}

/// # Safety
/// As `mma::ldmatrix_x4_trans`.
#[inline(always)]
pub unsafe fn ldmatrix_x4_trans(row: u32, _: Site) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: same contract.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) row, options(readonly, nostack)
        )
    }
    [a, b, c, d]
}
