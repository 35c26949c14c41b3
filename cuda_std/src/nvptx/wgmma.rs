//! Matrix products of a warpgroup. The sums are operands of both asm blocks, so that no code reads or moves them in between. If such a move
//! stood there, ptxas would serialise the products and print a warning; `cargo xtask ptx` fails on that warning.

use crate::Site;
use core::arch::asm;

/// The constant part of the descriptor of a matrix with rows of 128 bytes, whose 16-byte parts are swizzled: swizzle mode 1 (128 bytes)
/// from bit 62 on; the stride of eight rows, 1024 bytes, from bit 32 on; from bit 16 on a field that this mode ignores, set to 1. Sizes are
/// in units of 16 bytes (PTX ISA, matrix descriptor).
const LAYOUT: u64 = 1 << 62 | (1024 >> 4) << 32 | 1 << 16;

/// The descriptor of the chunk at `address`.
#[inline(always)]
fn descriptor(address: u32) -> u64 {
    LAYOUT | u64::from((address & 0x3_ffff) >> 4)
}

#[inline(always)]
pub fn publish(_: Site) {
    // SAFETY: orders accesses to shared memory and performs none.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}

/// The four products of a chunk, of 16 components each. Each product reads 32 bytes further along every row than the one before.
macro_rules! chunk {
    ($d:ident, $a:ident, $b:ident, $add:ident) => {
        asm!(
            "{{",
            ".reg .pred others;",
            ".reg .b64 a, b;",
            "wgmma.fence.sync.aligned;",
            "setp.ne.b32 others, {66}, 0;",
            chunk!(product "{64}", "{65}"),
            "setp.ne.b32 others, 1, 0;",
            "add.s64 a, {64}, 2; add.s64 b, {65}, 2;",
            chunk!(product "a", "b"),
            "add.s64 a, {64}, 4; add.s64 b, {65}, 4;",
            chunk!(product "a", "b"),
            "add.s64 a, {64}, 6; add.s64 b, {65}, 6;",
            chunk!(product "a", "b"),
            "wgmma.commit_group.sync.aligned;",
            "}}",
            inout(reg32) $d[0][0], inout(reg32) $d[0][1], inout(reg32) $d[0][2], inout(reg32) $d[0][3],
            inout(reg32) $d[1][0], inout(reg32) $d[1][1], inout(reg32) $d[1][2], inout(reg32) $d[1][3],
            inout(reg32) $d[2][0], inout(reg32) $d[2][1], inout(reg32) $d[2][2], inout(reg32) $d[2][3],
            inout(reg32) $d[3][0], inout(reg32) $d[3][1], inout(reg32) $d[3][2], inout(reg32) $d[3][3],
            inout(reg32) $d[4][0], inout(reg32) $d[4][1], inout(reg32) $d[4][2], inout(reg32) $d[4][3],
            inout(reg32) $d[5][0], inout(reg32) $d[5][1], inout(reg32) $d[5][2], inout(reg32) $d[5][3],
            inout(reg32) $d[6][0], inout(reg32) $d[6][1], inout(reg32) $d[6][2], inout(reg32) $d[6][3],
            inout(reg32) $d[7][0], inout(reg32) $d[7][1], inout(reg32) $d[7][2], inout(reg32) $d[7][3],
            inout(reg32) $d[8][0], inout(reg32) $d[8][1], inout(reg32) $d[8][2], inout(reg32) $d[8][3],
            inout(reg32) $d[9][0], inout(reg32) $d[9][1], inout(reg32) $d[9][2], inout(reg32) $d[9][3],
            inout(reg32) $d[10][0], inout(reg32) $d[10][1], inout(reg32) $d[10][2], inout(reg32) $d[10][3],
            inout(reg32) $d[11][0], inout(reg32) $d[11][1], inout(reg32) $d[11][2], inout(reg32) $d[11][3],
            inout(reg32) $d[12][0], inout(reg32) $d[12][1], inout(reg32) $d[12][2], inout(reg32) $d[12][3],
            inout(reg32) $d[13][0], inout(reg32) $d[13][1], inout(reg32) $d[13][2], inout(reg32) $d[13][3],
            inout(reg32) $d[14][0], inout(reg32) $d[14][1], inout(reg32) $d[14][2], inout(reg32) $d[14][3],
            inout(reg32) $d[15][0], inout(reg32) $d[15][1], inout(reg32) $d[15][2], inout(reg32) $d[15][3],
            in(reg64) $a, in(reg64) $b, in(reg32) $add,
            options(readonly, nostack)
        )
    };
    (product $a:literal, $b:literal) => {
        concat!(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {{",
            "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, ",
            "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, ",
            "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, ",
            "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}",
            "}}, ", $a, ", ", $b, ", others, 1, 1, 0, 0;"
        )
    };
}

/// Waits with every register of the sums as an operand, so that no code reads a sum before the wait.
macro_rules! wait {
    ($d:ident) => {
        asm!(
            "wgmma.wait_group.sync.aligned 0; /* {0} {1} {2} {3} {4} {5} {6} {7} {8} {9} {10} {11} {12} {13} {14} {15} {16} {17} {18} {19} {20} {21} {22} {23} {24} {25} {26} {27} {28} {29} {30} {31} {32} {33} {34} {35} {36} {37} {38} {39} {40} {41} {42} {43} {44} {45} {46} {47} {48} {49} {50} {51} {52} {53} {54} {55} {56} {57} {58} {59} {60} {61} {62} {63} */",
            inout(reg32) $d[0][0], inout(reg32) $d[0][1], inout(reg32) $d[0][2], inout(reg32) $d[0][3],
            inout(reg32) $d[1][0], inout(reg32) $d[1][1], inout(reg32) $d[1][2], inout(reg32) $d[1][3],
            inout(reg32) $d[2][0], inout(reg32) $d[2][1], inout(reg32) $d[2][2], inout(reg32) $d[2][3],
            inout(reg32) $d[3][0], inout(reg32) $d[3][1], inout(reg32) $d[3][2], inout(reg32) $d[3][3],
            inout(reg32) $d[4][0], inout(reg32) $d[4][1], inout(reg32) $d[4][2], inout(reg32) $d[4][3],
            inout(reg32) $d[5][0], inout(reg32) $d[5][1], inout(reg32) $d[5][2], inout(reg32) $d[5][3],
            inout(reg32) $d[6][0], inout(reg32) $d[6][1], inout(reg32) $d[6][2], inout(reg32) $d[6][3],
            inout(reg32) $d[7][0], inout(reg32) $d[7][1], inout(reg32) $d[7][2], inout(reg32) $d[7][3],
            inout(reg32) $d[8][0], inout(reg32) $d[8][1], inout(reg32) $d[8][2], inout(reg32) $d[8][3],
            inout(reg32) $d[9][0], inout(reg32) $d[9][1], inout(reg32) $d[9][2], inout(reg32) $d[9][3],
            inout(reg32) $d[10][0], inout(reg32) $d[10][1], inout(reg32) $d[10][2], inout(reg32) $d[10][3],
            inout(reg32) $d[11][0], inout(reg32) $d[11][1], inout(reg32) $d[11][2], inout(reg32) $d[11][3],
            inout(reg32) $d[12][0], inout(reg32) $d[12][1], inout(reg32) $d[12][2], inout(reg32) $d[12][3],
            inout(reg32) $d[13][0], inout(reg32) $d[13][1], inout(reg32) $d[13][2], inout(reg32) $d[13][3],
            inout(reg32) $d[14][0], inout(reg32) $d[14][1], inout(reg32) $d[14][2], inout(reg32) $d[14][3],
            inout(reg32) $d[15][0], inout(reg32) $d[15][1], inout(reg32) $d[15][2], inout(reg32) $d[15][3],
            options(nostack)
        )
    };
}

/// # Safety
/// As `wgmma::wait`.
#[inline(always)]
pub unsafe fn wait(d: &mut [[f32; 4]; 16], _: Site) {
    // SAFETY: same contract.
    unsafe { wait!(d) }
}

/// # Safety
/// As `wgmma::start_f16`.
#[inline(always)]
pub unsafe fn start_f16(d: &mut [[f32; 4]; 16], a: u32, b: u32, add: bool, _: Site) {
    let (a, b, add) = (descriptor(a), descriptor(b), u32::from(add));
    // SAFETY: same contract.
    unsafe { chunk!(d, a, b, add) }
}
