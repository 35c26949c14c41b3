//! Matrix loads and products, compared with plain matrices and an independent implementation of the layouts of the PTX
//! ISA.

use crate::elements::{Elements, elements};
use crate::one_block;
use cuda_std::{
    Ptr, PtrMut,
    emulator::{self, Buffer},
    global, kernel, mma, shared, thread, warp,
};
use half::{bf16, f16};
use proptest::prelude::*;

/// The type of a product's operands.
enum Operands {
    F16,
    Bf16,
    Tf32,
}

/// Adds one product of matrices A and B to C.
#[kernel(
    key = Operands,
    Operands::F16 => product_f16 = with_f16,
    Operands::Bf16 => product_bf16 = with_bf16,
    Operands::Tf32 => product_tf32 = with_tf32,
)]
struct Product {
    /// The fragment of A of each lane.
    a: Ptr<[u32; 4]>,
    /// The fragment of B of each lane.
    b: Ptr<[u32; 2]>,
    /// The fragment of C of each lane.
    c: PtrMut<[f32; 4]>,
}

macro_rules! bodies {
    ($($launch:ident: $name:ident = $mma:ident;)*) => {$(
        /// # Safety
        /// The arrays have a fragment for each of 32 lanes.
        unsafe fn $name($launch { a, b, c }: $launch) {
            let lane = warp::lane_id() as usize;
            // SAFETY: a fragment a lane, lane < 32; all lanes arrive.
            unsafe {
                let mut sum = global::load(c.add(lane));
                mma::$mma(&mut sum, &global::load(a.add(lane)), global::load(b.add(lane)));
                global::store(c.add(lane), sum);
            }
        }
    )*};
}

bodies! {
    Product: with_f16 = mma_m16n8k16_f16;
    Product: with_bf16 = mma_m16n8k16_bf16;
    Product: with_tf32 = mma_m16n8k8_tf32;
}

/// 16 × 8 results of a plain triple loop.
fn plain(a: &[Vec<i32>], b: &[Vec<i32>], c: &[Vec<i32>]) -> Vec<Vec<f32>> {
    let mut d = vec![vec![0.0; 8]; 16];
    for row in 0..16 {
        for column in 0..8 {
            let mut sum = c[row][column];
            for k in 0..b.len() {
                sum += a[row][k] * b[k][column];
            }
            d[row][column] = sum as f32;
        }
    }
    d
}

/// Words of a lane's fragment of A or B: element (i, k), two to a word where they have 16 bits.
fn pack(pair: bool, bits: &dyn Fn(i32) -> u32, element: impl Fn(usize) -> i32, k: usize) -> u32 {
    if pair { bits(element(k)) | bits(element(k + 1)) << 16 } else { bits(element(k)) }
}

/// Runs the kernel for these operands on matrices A (16 × K), B (K × 8), C (16 × 8) and gives D as a matrix.
fn run(operands: Operands, bits: &dyn Fn(i32) -> u32, a: &[Vec<i32>], b: &[Vec<i32>], c: &[Vec<i32>]) -> Vec<Vec<f32>> {
    let pair = b.len() == 16;
    let (step, second) = if pair { (2, 8) } else { (1, 4) };
    let (mut fa, mut fb, mut fc) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        let k = step * t;
        fa.push([
            pack(pair, bits, |k| a[g][k], k),
            pack(pair, bits, |k| a[g + 8][k], k),
            pack(pair, bits, |k| a[g][k], k + second),
            pack(pair, bits, |k| a[g + 8][k], k + second),
        ]);
        fb.push([pack(pair, bits, |k| b[k][g], k), pack(pair, bits, |k| b[k][g], k + second)]);
        fc.push([c[g][2 * t], c[g][2 * t + 1], c[g + 8][2 * t], c[g + 8][2 * t + 1]].map(|value| value as f32));
    }
    let (fa, fb, mut fc) = (Buffer::from_slice(&fa), Buffer::from_slice(&fb), Buffer::from_slice(&fc));
    let launch = Product { a: fa.as_ptr(), b: fb.as_ptr(), c: fc.as_mut_ptr() };
    // SAFETY: a fragment a lane.
    unsafe { emulator::launch(Product::kernel(operands), one_block(32, 0), launch) }.unwrap();
    let mut d = vec![vec![f32::NAN; 8]; 16];
    for (lane, [d0, d1, d2, d3]) in fc.to_vec().into_iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        d[g][2 * t] = d0;
        d[g][2 * t + 1] = d1;
        d[g + 8][2 * t] = d2;
        d[g + 8][2 * t + 1] = d3;
    }
    d
}

/// A matrix of small integers: every sum of products is exact in f32.
fn matrix(rows: usize, columns: usize) -> impl Strategy<Value = Vec<Vec<i32>>> {
    prop::collection::vec(prop::collection::vec(-100i32..=100, columns), rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn f16_product(a in matrix(16, 16), b in matrix(16, 8), c in matrix(16, 8)) {
        let bits = |value: i32| u32::from(f16::from_f32(value as f32).to_bits());
        prop_assert_eq!(run(Operands::F16, &bits, &a, &b, &c), plain(&a, &b, &c));
    }

    #[test]
    fn bf16_product(a in matrix(16, 16), b in matrix(16, 8), c in matrix(16, 8)) {
        let bits = |value: i32| u32::from(bf16::from_f32(value as f32).to_bits());
        prop_assert_eq!(run(Operands::Bf16, &bits, &a, &b, &c), plain(&a, &b, &c));
    }

    #[test]
    fn tf32_product(a in matrix(16, 8), b in matrix(8, 8), c in matrix(16, 8)) {
        // The low 13 bits are ignored, whatever they are.
        let bits = |value: i32| (value as f32).to_bits() | 0x1fff;
        prop_assert_eq!(run(Operands::Tf32, &bits, &a, &b, &c), plain(&a, &b, &c));
    }
}

/// Adds one product of matrices of bytes A and B to C.
#[kernel(
    key = Elements,
    Elements::Signed => product_s8 = with_s8,
    Elements::Unsigned => product_u8 = with_u8,
    Elements::Bits => product_b1 = with_b1,
)]
struct ByteProduct {
    /// The fragment of A of each lane.
    a: Ptr<[u32; 4]>,
    /// The fragment of B of each lane.
    b: Ptr<[u32; 2]>,
    /// The fragment of C of each lane.
    c: PtrMut<[i32; 4]>,
}

bodies! {
    ByteProduct: with_s8 = mma_m16n8k32_s8;
    ByteProduct: with_u8 = mma_m16n8k32_u8;
    ByteProduct: with_b1 = mma_m16n8k256_b1;
}

/// A fragment of each lane of A (16 rows of 32), B (8 columns of 32) and C (16 × 8), and D by a plain loop, against the
/// kernel.
fn check_bytes(of: Elements, a: &[[u8; 32]], b: &[[u8; 32]], c: &[[i32; 8]]) -> Result<(), TestCaseError> {
    let word = |row: &[u8; 32], at: usize| u32::from_le_bytes(row[at..at + 4].try_into().unwrap());
    let (mut fa, mut fb, mut fc) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        fa.push([word(&a[g], 4 * t), word(&a[g + 8], 4 * t), word(&a[g], 4 * t + 16), word(&a[g + 8], 4 * t + 16)]);
        fb.push([word(&b[g], 4 * t), word(&b[g], 4 * t + 16)]);
        fc.push([c[g][2 * t], c[g][2 * t + 1], c[g + 8][2 * t], c[g + 8][2 * t + 1]]);
    }
    let (fa, fb, mut out) = (Buffer::from_slice(&fa), Buffer::from_slice(&fb), Buffer::from_slice(&fc));
    let launch = ByteProduct { a: fa.as_ptr(), b: fb.as_ptr(), c: out.as_mut_ptr() };
    // SAFETY: a fragment a lane.
    unsafe { emulator::launch(ByteProduct::kernel(of), one_block(32, 0), launch) }.unwrap();
    for (lane, found) in out.to_vec().into_iter().enumerate() {
        for (r, found) in found.into_iter().enumerate() {
            let (row, column) = (lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2);
            let product: i64 = (0..32).map(|k| of.product(a[row][k], b[column][k])).sum();
            prop_assert_eq!(found, (i64::from(c[row][column]) + product) as i32, "row {}, column {}", row, column);
        }
    }
    Ok(())
}

/// Rows of bytes, in which the greatest and the least of either type are frequent.
fn byte_rows(rows: usize) -> impl Strategy<Value = Vec<[u8; 32]>> {
    let byte = prop_oneof![Just(0u8), Just(127), Just(128), Just(255), any::<u8>()];
    prop::collection::vec(prop::collection::vec(byte, 32).prop_map(|row| row.try_into().unwrap()), rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn byte_products(
        a in byte_rows(16),
        b in byte_rows(8),
        c in prop::collection::vec(prop::array::uniform8(any::<i32>()), 16),
        of in elements(),
    ) {
        check_bytes(of, &a, &b, &c)?;
    }
}

/// Copies four 8 × 8 matrices of u16 to shared memory, at addresses that are not in order, and loads them three ways.
#[kernel]
unsafe fn load_matrices(input: Ptr<u16>, out: PtrMut<[u32; 10]>) {
    let lane = thread::thread_idx_x();
    let tile = shared::dynamic::<u8>();
    // SAFETY: 32 rows of 16 bytes in global and in shared memory (a permutation of them: 11 is odd), a fragment a lane.
    unsafe {
        let row = tile.add(16 * (lane * 11 % 32));
        for i in 0..8 {
            row.cast::<u16>().add(i).store(global::load(input.add((8 * lane + i) as usize)));
        }
        warp::sync_warp(warp::FULL_MASK);
        let four = mma::ldmatrix_x4(row);
        let transposed = mma::ldmatrix_x4_trans(row);
        // Addresses of lanes from 16 on are not used.
        let two = mma::ldmatrix_x2(if lane < 16 { row } else { tile.add(u32::MAX) });
        let fragments: [u32; 10] = std::array::from_fn(|i| match i {
            0..4 => four[i],
            4..8 => transposed[i - 4],
            _ => two[i - 8],
        });
        global::store(out.add(lane as usize), fragments);
    }
}

#[test]
fn matrices_are_loaded_as_fragments() {
    let elements: Vec<u16> = (0..256).map(|i| i * 257 % 251).collect();
    let input = Buffer::from_slice(&elements);
    let mut out = Buffer::from_slice(&[[0u32; 10]; 32]);
    let launch = LoadMatrices { input: input.as_ptr(), out: out.as_mut_ptr() };
    // SAFETY: 32 rows of 8, 512 bytes of shared memory, a fragment a lane.
    unsafe { emulator::launch(&LoadMatrices::KERNEL, one_block(32, 512), launch) }.unwrap();
    for (lane, fragments) in out.to_vec().into_iter().enumerate() {
        let at = |matrix: usize, row: usize, column: usize| u32::from(elements[64 * matrix + 8 * row + column]);
        let (g, t) = (lane / 4, lane % 4);
        for matrix in 0..4 {
            let straight = at(matrix, g, 2 * t) | at(matrix, g, 2 * t + 1) << 16;
            let transposed = at(matrix, 2 * t, g) | at(matrix, 2 * t + 1, g) << 16;
            assert_eq!(fragments[matrix], straight, "lane {lane}, matrix {matrix}");
            assert_eq!(fragments[4 + matrix], transposed, "lane {lane}, matrix {matrix}");
            if matrix < 2 {
                assert_eq!(fragments[8 + matrix], straight, "lane {lane}, matrix {matrix}");
            }
        }
    }
}
