//! Matrix products of a warpgroup. The sums are operands of both asm blocks, so that no code reads or moves them in
//! between. If such a move stood there, ptxas would serialise the products and print a warning; `cargo xtask ptx` fails
//! on that warning.

use crate::Site;
use core::arch::asm;

/// The constant part of the descriptor of a matrix with rows of 128 bytes, whose 16-byte parts are swizzled: swizzle
/// mode 1 (128 bytes) from bit 62 on; the stride of eight rows, 1024 bytes, from bit 32 on; from bit 16 on a field that
/// this mode ignores, set to 1. Sizes are in units of 16 bytes (PTX ISA, matrix descriptor).
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

/// The sums of a lane.
pub trait Sums {
    /// # Safety
    /// As `wgmma::wait`.
    unsafe fn wait(&mut self, site: Site);
}

/// The sums of products of f16 components.
pub trait HalfSums: Sums {
    /// # Safety
    /// As `wgmma::start_f16`.
    unsafe fn start_f16(&mut self, a: u32, b: u32, add: bool, site: Site);
}

/// The sums of products of bytes and of bits.
pub trait ByteSums: Sums {
    /// # Safety
    /// As `wgmma::start_s8`.
    unsafe fn start_s8(&mut self, a: u32, b: u32, add: bool, site: Site);

    /// # Safety
    /// As `wgmma::start_u8`.
    unsafe fn start_u8(&mut self, a: u32, b: u32, add: bool, site: Site);

    /// # Safety
    /// As `wgmma::start_b1`.
    unsafe fn start_b1(&mut self, a: u32, b: u32, add: bool, site: Site);
}

/// One product of 32 bytes of every row. `$flags` are the constants behind the predicate.
macro_rules! product {
    ($shape:literal, $types:literal, $flags:literal, [$($k:literal)*], $a:literal, $b:literal) => {
        concat!(
            "wgmma.mma_async.sync.aligned.", $shape, $types, " {{{0}", $(", {", $k, "}",)* "}}, ",
            $a, ", ", $b, ", others", $flags, ";"
        )
    };
}

/// The four products of a chunk, of 32 bytes of every row each. Each product reads 32 bytes further along every row
/// than the one before.
macro_rules! chunk {
    ($name:ident, $shape:literal, $types:literal, $flags:literal, [$($j:literal)*], $k:tt) => {
        #[inline(always)]
        unsafe fn $name(&mut self, a: u32, b: u32, add: bool, _: Site) {
            let (a, b, add) = (descriptor(a), descriptor(b), u32::from(add));
            // SAFETY: same contract.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred others;",
                    ".reg .b64 a, b;",
                    "wgmma.fence.sync.aligned;",
                    "setp.ne.b32 others, {add}, 0;",
                    product!($shape, $types, $flags, $k, "{a}", "{b}"),
                    "setp.ne.b32 others, 1, 0;",
                    "add.s64 a, {a}, 2; add.s64 b, {b}, 2;",
                    product!($shape, $types, $flags, $k, "a", "b"),
                    "add.s64 a, {a}, 4; add.s64 b, {b}, 4;",
                    product!($shape, $types, $flags, $k, "a", "b"),
                    "add.s64 a, {a}, 6; add.s64 b, {b}, 6;",
                    product!($shape, $types, $flags, $k, "a", "b"),
                    "wgmma.commit_group.sync.aligned;",
                    "}}",
                    $(
                        inout(reg32) self[$j][0],
                        inout(reg32) self[$j][1],
                        inout(reg32) self[$j][2],
                        inout(reg32) self[$j][3],
                    )*
                    a = in(reg64) a,
                    b = in(reg64) b,
                    add = in(reg32) add,
                    options(readonly, nostack)
                )
            }
        }
    };
}

/// Waits with every register of the sums as an operand, so that no code reads a sum before the wait.
macro_rules! wait {
    ([$($j:literal)*], [$($k:literal)*]) => {
        #[inline(always)]
        unsafe fn wait(&mut self, _: Site) {
            // SAFETY: same contract.
            unsafe {
                asm!(
                    concat!("wgmma.wait_group.sync.aligned 0; /* {0}", $(" {", $k, "}",)* " */"),
                    $(
                        inout(reg32) self[$j][0],
                        inout(reg32) self[$j][1],
                        inout(reg32) self[$j][2],
                        inout(reg32) self[$j][3],
                    )*
                    options(nostack)
                )
            }
        }
    };
}

/// The sums of 64 rows and 8 · `$tiles` columns: `$halves`, `$bytes` and `$bits` are the shapes of a product, `$j` the
/// tiles, `$k` the registers behind the first.
macro_rules! sums {
    ($tiles:literal, $halves:literal, $bytes:literal, $bits:literal, $j:tt, $k:tt) => {
        impl Sums for [[f32; 4]; $tiles] {
            wait!($j, $k);
        }

        impl Sums for [[i32; 4]; $tiles] {
            wait!($j, $k);
        }

        impl HalfSums for [[f32; 4]; $tiles] {
            chunk!(start_f16, $halves, ".f32.f16.f16", ", 1, 1, 0, 0", $j, $k);
        }

        impl ByteSums for [[i32; 4]; $tiles] {
            chunk!(start_s8, $bytes, ".s32.s8.s8", "", $j, $k);
            chunk!(start_u8, $bytes, ".s32.u8.u8", "", $j, $k);
            chunk!(start_b1, $bits, ".s32.b1.b1.and.popc", "", $j, $k);
        }
    };
}

sums!(
    8,
    "m64n64k16",
    "m64n64k32",
    "m64n64k256",
    [0 1 2 3 4 5 6 7],
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
);
sums!(
    16,
    "m64n128k16",
    "m64n128k32",
    "m64n128k256",
    [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15],
    [
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    ]
);
