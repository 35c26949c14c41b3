//! Products of a warpgroup: each warp reads its rows of A and all rows of B from shared memory (layouts:
//! `crate::wgmma`).

use crate::{
    Site,
    emulator::{
        clock::LANES,
        context::{Chunks, Lane, access, current, fail, meet},
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
fn decode_row(place: *const u8, row: u32, to: &mut [f32; 64]) {
    for (part, to) in to.chunks_exact_mut(8).enumerate() {
        let at = row * ROW_BYTES + (part as u32 ^ (row % 8)) * PART_BYTES;
        // SAFETY: the row was checked, so it is inside the memory; parts are aligned.
        let bits = unsafe { place.wrapping_add(at as usize).cast::<[u16; 8]>().read() };
        to.iter_mut().zip(bits).for_each(|(to, bits)| *to = f16::from_bits(bits).to_f32());
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
    /// As `wgmma::start_f16`.
    unsafe fn start(&mut self, a: u32, b: u32, add: bool, site: Site);

    /// # Safety
    /// As `wgmma::wait`.
    unsafe fn wait(&mut self, site: Site);
}

impl<const TILES: usize> Sums for [[f32; 4]; TILES] {
    #[inline(always)]
    unsafe fn start(&mut self, a: u32, b: u32, add: bool, site: Site) {
        // SAFETY: same contract.
        unsafe { start_f16(self, a, b, add, site) }
    }

    #[inline(always)]
    unsafe fn wait(&mut self, site: Site) {
        // SAFETY: same contract.
        unsafe { wait(site) }
    }
}

/// # Safety
/// As `wgmma::start_f16`.
#[inline(never)]
unsafe fn start_f16(d: &mut [[f32; 4]], a: u32, b: u32, add: bool, site: Site) {
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
        meet(lane, Operation::StartF16, u32::MAX, site);
        let (warp, block) = ((*lane).warp, (*lane).block);
        let pass = (*warp).pass;
        let chunks =
            (*warp).chunks.get_or_insert_with(|| Box::new(Chunks { pass: 0, a: [[0.0; 64]; 16], b: [[0.0; 64]; 128] }));
        if chunks.pass != pass {
            chunks.pass = pass;
            let (own, all) = ((*block).shared.place(own_rows), (*block).shared.place(b));
            (0..).zip(&mut chunks.a).for_each(|(row, to)| decode_row(own, row, to));
            (0..columns).zip(&mut chunks.b).for_each(|(row, to)| decode_row(all, row, to));
        }
        let number = (*lane).lane as usize;
        let (row, column) = (number / 4, number % 4 * 2);
        for (j, d) in d.iter_mut().enumerate() {
            let (a, next_a) = (&chunks.a[row], &chunks.a[row + 8]);
            let (b, next_b) = (&chunks.b[8 * j + column], &chunks.b[8 * j + column + 1]);
            // Four sums at a time, because each addition waits for the one before it in its sum.
            let mut sums = if add { *d } else { [0.0; 4] };
            for i in 0..a.len() {
                sums[0] += a[i] * b[i];
                sums[1] += a[i] * next_b[i];
                sums[2] += next_a[i] * b[i];
                sums[3] += next_a[i] * next_b[i];
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
