//! Products of a warpgroup, against plain matrices.

use crate::elements::{Elements, elements};
use crate::one_block;
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel, shared, thread, wgmma,
};
use half::f16;
use proptest::prelude::*;

/// Rows of A for two groups, rows of B, components of a chunk.
const ROWS: usize = 128;
const COLUMNS: usize = 128;
const INNER: usize = 64;

/// D = A · Bᵀ, added twice if `twice` is not 0, with N = 128. D is returned as fragments, and starts with values that
/// the product must ignore.
#[kernel(max_threads = 256, arch = "sm_90a")]
unsafe fn product_128(a: Ptr<u16>, b: Ptr<u16>, twice: u32, out: PtrMut<[[f32; 4]; 16]>) {
    // SAFETY: same contract.
    unsafe { product(a, b, twice, out) }
}

/// The same with N = 64.
#[kernel(max_threads = 256, arch = "sm_90a")]
unsafe fn product_64(a: Ptr<u16>, b: Ptr<u16>, twice: u32, out: PtrMut<[[f32; 4]; 8]>) {
    // SAFETY: same contract.
    unsafe { product(a, b, twice, out) }
}

/// # Safety
/// 128 rows of A, and as many of B as `D` has columns; 256 threads, 32 KiB of shared memory.
unsafe fn product<const TILES: usize>(a: Ptr<u16>, b: Ptr<u16>, twice: u32, out: PtrMut<[[f32; 4]; TILES]>)
where
    [[f32; 4]; TILES]: wgmma::Fragment,
{
    let t = thread::thread_idx_x();
    // SAFETY: 128 rows of A and those of B, a row a thread, in 32 KiB of shared memory; all threads arrive at the
    // products.
    unsafe {
        let (rows, chunk) =
            if t < 128 { (a, shared::dynamic::<u8>()) } else { (b, shared::dynamic::<u8>().add(16384)) };
        let row = t % 128;
        if t < 128 || row < 8 * TILES as u32 {
            for part in 0..8 {
                for i in 0..8 {
                    let x = global::load(rows.add((row * 64 + 8 * part + i) as usize));
                    chunk.add(row * 128 + (part ^ (row % 8)) * 16 + 2 * i).cast::<u16>().store(x);
                }
            }
        }
        wgmma::publish();
        thread::sync_threads();
        let mut d = [[f32::NAN; 4]; TILES];
        let (own, all) = (shared::dynamic::<u8>().add(t / 128 * 8192), shared::dynamic::<u8>().add(16384));
        wgmma::start_f16(&mut d, own, all, false);
        if twice != 0 {
            wgmma::start_f16(&mut d, own, all, true);
        }
        wgmma::wait(&mut d);
        global::store(out.add(t as usize), d);
    }
}

/// Compares the fragments of all threads with D = (1 + `twice`) · A · Bᵀ.
fn check<const TILES: usize>(
    fragments: Vec<[[f32; 4]; TILES]>,
    a: &[i8],
    b: &[i8],
    twice: u32,
) -> Result<(), TestCaseError> {
    for (thread, fragment) in fragments.into_iter().enumerate() {
        let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
        for (j, pairs) in fragment.into_iter().enumerate() {
            for (r, got) in pairs.into_iter().enumerate() {
                let (row, column) = (16 * warp + g + r / 2 * 8, 8 * j + 2 * t + r % 2);
                let product = |k: usize| i32::from(a[row * INNER + k]) * i32::from(b[column * INNER + k]);
                let sum: i32 = (0..INNER).map(product).sum();
                prop_assert_eq!(got, (sum * (1 + twice as i32)) as f32, "row {}, column {}", row, column);
            }
        }
    }
    Ok(())
}

fn matrix(rows: usize) -> impl Strategy<Value = Vec<i8>> {
    prop::collection::vec(-100i8..=100, rows * INNER)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn products_of_two_groups(a in matrix(ROWS), b in matrix(COLUMNS), twice in 0u32..2) {
        let halves = |m: &[i8]| Buffer::from_slice(&m.iter().map(|&x| f16::from(x).to_bits()).collect::<Vec<_>>());
        let (fa, fb) = (halves(&a), halves(&b));
        let mut out = Buffer::from_slice(&[[[0.0f32; 4]; 16]; 256]);
        let launch = Product128 { a: fa.as_ptr(), b: fb.as_ptr(), twice, out: out.as_mut_ptr() };
        // SAFETY: the arrays and the shared memory have the sizes that the kernel requires.
        unsafe { emulator::launch(&Product128::KERNEL, one_block(256, 32768), launch) }.unwrap();
        check(out.to_vec(), &a, &b, twice)?;
        // The rows of B behind the 64th are not there.
        let fb = Buffer::from_slice(&fb.to_vec()[..64 * INNER]);
        let mut out = Buffer::from_slice(&[[[0.0f32; 4]; 8]; 256]);
        let launch = Product64 { a: fa.as_ptr(), b: fb.as_ptr(), twice, out: out.as_mut_ptr() };
        // SAFETY: the arrays and the shared memory have the sizes that the kernel requires.
        unsafe { emulator::launch(&Product64::KERNEL, one_block(256, 32768), launch) }.unwrap();
        check(out.to_vec(), &a, &b, twice)?;
    }
}

/// D = A · Bᵀ of bytes, as [`product`] of halves, with N = 128.
#[kernel(
    max_threads = 256,
    arch = "sm_90a",
    key = Elements,
    Elements::Signed => product_s8 = bytes::<0>,
    Elements::Unsigned => product_u8 = bytes::<1>,
    Elements::Bits => product_b1 = bytes::<2>,
)]
struct ByteProduct {
    /// 128 rows of 128 bytes.
    a: Ptr<u8>,
    /// 128 rows of 128 bytes.
    b: Ptr<u8>,
    /// Whether the product is added twice, if it is not 0.
    twice: u32,
    /// The fragments of 256 threads.
    out: PtrMut<[[i32; 4]; 16]>,
}

/// # Safety
/// As [`product`].
unsafe fn bytes<const ELEMENTS: u32>(ByteProduct { a, b, twice, out }: ByteProduct) {
    let t = thread::thread_idx_x();
    // SAFETY: as in `product`.
    unsafe {
        let at = shared::dynamic::<u8>().add(if t < 128 { 0 } else { 16384 });
        let (rows, row) = (if t < 128 { a } else { b }, t % 128);
        for part in 0..8 {
            for i in 0..16 {
                let x = global::load(rows.add((row * 128 + 16 * part + i) as usize));
                at.add(row * 128 + (part ^ (row % 8)) * 16 + i).store(x);
            }
        }
        wgmma::publish();
        thread::sync_threads();
        let mut d = [[i32::MIN; 4]; 16];
        let (own, all) = (shared::dynamic::<u8>().add(t / 128 * 8192), shared::dynamic::<u8>().add(16384));
        for turn in 0..=twice {
            match ELEMENTS {
                0 => wgmma::start_s8(&mut d, own, all, turn > 0),
                1 => wgmma::start_u8(&mut d, own, all, turn > 0),
                _ => wgmma::start_b1(&mut d, own, all, turn > 0),
            }
        }
        wgmma::wait(&mut d);
        global::store(out.add(t as usize), d);
    }
}

/// Rows of bytes, in which the greatest and the least of either type are frequent.
fn byte_rows() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0u8), Just(127), Just(128), Just(255), any::<u8>()], 128 * 128)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn byte_products_of_two_groups(a in byte_rows(), b in byte_rows(), twice in 0u32..2, of in elements()) {
        let (fa, fb) = (Buffer::from_slice(&a), Buffer::from_slice(&b));
        let mut out = Buffer::from_slice(&[[[0i32; 4]; 16]; 256]);
        let launch = ByteProduct { a: fa.as_ptr(), b: fb.as_ptr(), twice, out: out.as_mut_ptr() };
        // SAFETY: the arrays and the shared memory have the sizes that the kernel requires.
        unsafe { emulator::launch(ByteProduct::kernel(of), one_block(256, 32768), launch) }.unwrap();
        for (thread, fragment) in out.to_vec().into_iter().enumerate() {
            let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
            for (j, pairs) in fragment.into_iter().enumerate() {
                for (r, found) in pairs.into_iter().enumerate() {
                    let (row, column) = (16 * warp + g + r / 2 * 8, 8 * j + 2 * t + r % 2);
                    let product = |k: usize| of.product(a[row * 128 + k], b[column * 128 + k]);
                    let sum: i64 = (0..128).map(product).sum();
                    prop_assert_eq!(i64::from(found), sum * (1 + i64::from(twice)), "row {}, column {}", row, column);
                }
            }
        }
    }
}
