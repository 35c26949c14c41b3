//! Products of a warpgroup: each warp reads its rows of A and all rows of B from shared memory (layouts:
//! `crate::wgmma`).

use crate::{
    Site,
    emulator::{
        clock::LANES,
        context::{Chunks, GroupProducts, Lane, access, current, fail, meet},
        violation::{Operation, ViolationKind},
    },
};
use half::f16;

/// Warps of a group.
const WARPS: u32 = 4;
/// Bytes of a row of a chunk, and of the parts that are swizzled.
const ROW_BYTES: u32 = 128;
const PART_BYTES: u32 = 16;
/// Alignment of the start of a chunk in bytes.
const ALIGNMENT: u32 = 1024;

#[inline(always)]
pub fn publish(_: Site) {
    let lane = current();
    // SAFETY: the running thread's lane and block are alive; nothing else runs on this OS thread.
    unsafe { (*(*lane).block).shared.publish((*lane).thread) }
}

/// The components of row `row` of the chunk at `place`, whose bytes were checked.
fn decode_row<N, const K: usize>(place: *const u8, row: u32, to: &mut [N; K], decode: &impl Fn(&[u8; 16], &mut [N])) {
    let parts = (ROW_BYTES / PART_BYTES) as usize;
    for (part, to) in to.chunks_exact_mut(K / parts).enumerate() {
        let at = row * ROW_BYTES + (part as u32 ^ (row % 8)) * PART_BYTES;
        // SAFETY: the row was checked, so it is inside the memory.
        decode(&unsafe { place.wrapping_add(at as usize).cast::<[u8; 16]>().read() }, to);
    }
}

/// Checks that this lane's share of the rows of A and B may be read: a row of its warp's part of A, and every 32nd of
/// the `columns` rows of B.
///
/// # Safety
/// `lane` is the running thread.
unsafe fn check_rows(lane: *mut Lane, (own_rows, b, columns): (u32, u32, u32), site: Site) {
    // SAFETY: the running thread's block is alive; nothing else runs on this OS thread.
    unsafe {
        let number = (*lane).lane;
        let of_a = (number < 16).then(|| own_rows + number * ROW_BYTES);
        let of_b = (number..columns).step_by(LANES).map(|row| b + row * ROW_BYTES);
        for row in of_a.into_iter().chain(of_b) {
            access(lane, site, |block, by| block.shared.read_by_group::<ROW_BYTES>(by, row, site));
        }
    }
}

/// The sums of a lane.
pub trait Sums {
    /// # Safety
    /// As `wgmma::wait`.
    unsafe fn wait(&mut self, site: Site);
}

impl<N, const TILES: usize> Sums for [[N; 4]; TILES] {
    #[inline(always)]
    unsafe fn wait(&mut self, site: Site) {
        // SAFETY: same contract.
        unsafe { wait(site) }
    }
}

/// The sums of products of f16 components.
pub trait HalfSums: Sums {
    /// # Safety
    /// As `wgmma::start_f16`.
    unsafe fn start_f16(&mut self, a: u32, b: u32, add: bool, site: Site);
}

impl<const TILES: usize> HalfSums for [[f32; 4]; TILES] {
    #[inline(always)]
    unsafe fn start_f16(&mut self, a: u32, b: u32, add: bool, site: Site) {
        // SAFETY: same contract.
        unsafe { start_halves(self, (a, b, add), site) }
    }
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

impl<const TILES: usize> ByteSums for [[i32; 4]; TILES] {
    #[inline(always)]
    unsafe fn start_s8(&mut self, a: u32, b: u32, add: bool, site: Site) {
        // SAFETY: same contract.
        unsafe { start_bytes(self, Operation::StartS8, (a, b, add), |byte| i32::from(byte as i8), times, site) }
    }

    #[inline(always)]
    unsafe fn start_u8(&mut self, a: u32, b: u32, add: bool, site: Site) {
        // SAFETY: same contract.
        unsafe { start_bytes(self, Operation::StartU8, (a, b, add), i32::from, times, site) }
    }

    #[inline(always)]
    unsafe fn start_b1(&mut self, a: u32, b: u32, add: bool, site: Site) {
        let ones = |a: i32, b: i32| (a & b).count_ones() as i32;
        // SAFETY: same contract. A byte stands for its eight bits.
        unsafe { start_bytes(self, Operation::StartB1, (a, b, add), i32::from, ones, site) }
    }
}

/// # Safety
/// As `wgmma::start_f16`.
#[inline(never)]
unsafe fn start_halves(d: &mut [[f32; 4]], operands: (u32, u32, bool), site: Site) {
    let decode = |from: &[u8; 16], to: &mut [f32]| {
        let halves = from.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32());
        to.iter_mut().zip(halves).for_each(|(to, half)| *to = half);
    };
    let product = (Operation::StartF16, operands, site);
    // SAFETY: same contract.
    unsafe { multiply(d, product, |of| of.of_halves.get_or_insert_default(), &decode, |sum, a, b| *sum += a * b) }
}

/// The product of two bytes. The crates of kernels call it once for each product, so it must be inlined there.
#[inline(always)]
fn times(a: i32, b: i32) -> i32 {
    a * b
}

/// # Safety
/// As `wgmma::start_s8`.
#[inline(never)]
unsafe fn start_bytes(
    d: &mut [[i32; 4]],
    operation: Operation,
    operands: (u32, u32, bool),
    value: impl Fn(u8) -> i32,
    product_of: impl Fn(i32, i32) -> i32,
    site: Site,
) {
    let decode = |from: &[u8; 16], to: &mut [i32]| to.iter_mut().zip(from).for_each(|(to, &byte)| *to = value(byte));
    let product = (operation, operands, site);
    let sum = |sum: &mut i32, a, b| *sum = sum.wrapping_add(product_of(a, b));
    // SAFETY: same contract.
    unsafe { multiply(d, product, |of| of.of_bytes.get_or_insert_default(), &decode, sum) }
}

/// The product of the chunks at two addresses, added to `d` or in its place.
///
/// # Safety
/// As `wgmma::start_f16`.
#[inline(always)]
unsafe fn multiply<N: Default + Copy, const K: usize>(
    d: &mut [[N; 4]],
    (operation, (a, b, add), site): (Operation, (u32, u32, bool), Site),
    of_warp: impl FnOnce(&mut GroupProducts) -> &mut Box<Chunks<N, K>>,
    decode: &impl Fn(&[u8; 16], &mut [N]),
    sum: impl Fn(&mut N, N, N),
) {
    let lane = current();
    // SAFETY: the running thread, holding no reference across `meet`; its warp and block are alive, and nothing else
    // runs on this OS thread. Rows are read where they were checked.
    unsafe {
        let [x, y, z] = (*(*lane).block).config.block;
        if !(x * y * z).is_multiple_of(WARPS * LANES as u32) {
            fail(lane, site, ViolationKind::NoWarpgroup { threads: x * y * z });
        }
        for chunk in [a, b] {
            if !chunk.is_multiple_of(ALIGNMENT) {
                fail(lane, site, ViolationKind::SharedMisaligned { address: chunk, alignment: ALIGNMENT });
            }
        }
        let own_rows = a + (*(*lane).warp).number % WARPS * 16 * ROW_BYTES;
        let columns = 8 * d.len() as u32;
        check_rows(lane, (own_rows, b, columns), site);
        (*lane).products.push((own_rows, b, columns));
        meet(lane, operation, u32::MAX, site);
        let (warp, block) = ((*lane).warp, (*lane).block);
        let pass = (*warp).pass;
        let chunks = of_warp(&mut (*warp).chunks);
        if chunks.pass != pass {
            chunks.pass = pass;
            let (own, all) = ((*block).shared.place(own_rows), (*block).shared.place(b));
            (0..).zip(&mut chunks.a).for_each(|(row, to)| decode_row(own, row, to, decode));
            (0..columns).zip(&mut chunks.b).for_each(|(row, to)| decode_row(all, row, to, decode));
        }
        let number = (*lane).lane as usize;
        let (row, column) = (number / 4, number % 4 * 2);
        for (j, d) in d.iter_mut().enumerate() {
            let (a, next_a) = (&chunks.a[row], &chunks.a[row + 8]);
            let (b, next_b) = (&chunks.b[8 * j + column], &chunks.b[8 * j + column + 1]);
            // Four sums at a time, because each addition waits for the one before it in its sum.
            let mut sums = if add { *d } else { [N::default(); 4] };
            for i in 0..K {
                sum(&mut sums[0], a[i], b[i]);
                sum(&mut sums[1], a[i], next_b[i]);
                sum(&mut sums[2], next_a[i], b[i]);
                sum(&mut sums[3], next_a[i], next_b[i]);
            }
            *d = sums;
        }
    }
}

/// The products are long done; what they read must still be there.
///
/// # Safety
/// As `wgmma::wait`.
#[inline(never)]
unsafe fn wait(site: Site) {
    let lane = current();
    // SAFETY: the running thread, holding no reference across `meet`.
    unsafe {
        meet(lane, Operation::WaitForProducts, u32::MAX, site);
        while let Some(product) = (*lane).products.pop() {
            check_rows(lane, product, site);
        }
    }
}
