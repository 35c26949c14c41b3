//! Half-precision copies of vectors, with norms that bound their errors.
//!
//! # Problem
//! The filter ([`crate::flat::filter`]) multiplies f16 vectors on tensor cores. For an exact result it needs, for each
//! vector v and its copy v̂ (as real numbers), an upper bound of ‖v − v̂‖ and of the larger of ‖v‖ and ‖v̂‖.
//!
//! # Algorithm
//! ```text
//! v = row − centre (squared L2), row (inner product), row / ‖row‖ (cosine), in f64
//! scale = the power of two that puts the set's greatest |component| into [2^14, 2^15)
//! copy = round_to_f16(v · scale)           // v̂ = copy / scale
//! residual = ‖v − v̂‖, norm = max(‖v‖, ‖v̂‖), both in f64, stored as f32 rounded up ([`Bounds::of_squares`])
//! value = ‖v‖² (squared L2) or 0
//! ```
//!
//! Both sums stay in the range of f64: a component that is not 0 has a magnitude between 2^-285 (cosine, divided by a
//! norm) and 2^129.
//!
//! With one scale for a set, the filter's inner loop has no per-row factors. f16 has 29 binades below the greatest
//! component before it loses relative precision, and the residual covers all losses (subnormals, zeros). f16 holds i8
//! and u8 exactly, and 11 bits of an f32: eight times less error than bf16 at the same speed.
//!
//! Subtracting a common centre changes no squared L2 distance. It reduces norms, and so the error bound, if a set is
//! far from the origin.
//!
//! After a change of some rows, a launch gets a list of the tiles that hold these rows, and leaves the other tiles as
//! they are.

use cuda_std::launch::LaunchConfig;
use cuda_std::warp::{FULL_MASK, butterfly_sum};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, math, thread, unroll, warp};

use crate::product::bounds::Bounds;
pub use crate::product::bounds::round_up;
use crate::product::canonical::squares;
use crate::product::element::{self, Element, ElementKey};
use crate::product::metric::{Metric, normaliser, scale_of};
use crate::product::tile::TILE_ROWS;

/// Number of warps in a block of these kernels.
pub const WARPS_PER_BLOCK: u32 = 4;

/// Raises the float whose bits are at `place` to `value`; neither is negative. It reads first, and seldom has to write.
///
/// # Safety
/// `place` is a word of global memory that only this function changes.
#[device_inline]
pub unsafe fn raise(place: *mut u32, value: f32) {
    // SAFETY: as the caller promises. A value that was read too early is at most too low, and then the atomic decides.
    unsafe {
        if global::load_volatile(place) < value.to_bits() {
            atomic::max_u32(place, value.to_bits());
        }
    }
}

/// The greatest |component − centre| among this lane's groups of four components of the row.
///
/// # Safety
/// `x` has `quads` groups of components, and so has the centre, if there is one.
#[device_inline]
pub unsafe fn row_greatest<E: Element>(x: *const E::Stored, quads: u32, centre: Option<Ptr<f32>>, lane: u32) -> f32 {
    let mut greatest = 0.0f32;
    let mut base = 0;
    while base < quads {
        let quad = base + lane;
        if quad < quads {
            // SAFETY: quad < quads.
            unsafe {
                let x = E::load4(x, quad);
                let c = match centre {
                    Some(centre) => element::F32::load4(*centre, quad),
                    None => [0.0; 4],
                };
                unroll::<4>(|e| greatest = math::max_f32(greatest, (x[e] - c[e]).abs()));
            }
        }
        base += 32;
    }
    greatest
}

/// A row and its transformation: v = (x − centre) · normalise.
pub struct RowOperand<E: Element> {
    /// The components of x, `quads` groups of four.
    pub x: *const E::Stored,
    /// Number of groups of four components.
    pub quads: u32,
    /// The centre, if one is subtracted: `quads` groups of components.
    pub centre: Option<Ptr<f32>>,
    /// The factor of the components ([`normaliser`]).
    pub normalise: f64,
    /// The scale of the f16 copy ([`scale_of`]).
    pub scale: f32,
}

/// Writes the f16 copy of v ([`RowOperand`]), and zeros up to `copy_quads` groups of four components. Returns Σv² and
/// the bounds. All 32 lanes arrive.
///
/// # Safety
/// The row is as its fields say, and `copy` has room for `copy_quads` groups.
#[device_inline]
pub unsafe fn copy_row<E: Element>(row: RowOperand<E>, copy: *mut u16, copy_quads: u32, lane: u32) -> (f64, Bounds) {
    let RowOperand { x, quads, centre, normalise, scale } = row;
    let (up, down) = (scale as f64, 1.0 / scale as f64);
    let (mut own, mut of_copy, mut lost) = (0.0f64, 0.0f64, 0.0f64);
    let mut base = 0;
    while base < copy_quads {
        let quad = base + lane;
        if quad < copy_quads {
            let v = if quad < quads {
                // SAFETY: quad < quads.
                let (x, c) = unsafe {
                    let c = match centre {
                        Some(centre) => element::F32::load4(*centre, quad),
                        None => [0.0; 4],
                    };
                    (E::load4(x, quad), c)
                };
                [
                    x[0] as f64 - c[0] as f64,
                    x[1] as f64 - c[1] as f64,
                    x[2] as f64 - c[2] as f64,
                    x[3] as f64 - c[3] as f64,
                ]
            } else {
                [0.0; 4]
            };
            let mut bits = [0u32; 4];
            unroll::<4>(|e| {
                let v = v[e] * normalise;
                let half = math::f32_to_f16((v * up) as f32);
                let held = math::f16_to_f32(half) as f64 * down;
                bits[e] = half as u32;
                own += v * v;
                of_copy += held * held;
                lost += (v - held) * (v - held);
            });
            let words = [bits[0] | bits[1] << 16, bits[2] | bits[3] << 16];
            // SAFETY: quad < copy_quads.
            unsafe {
                global::store(copy.wrapping_add(4 * quad as usize).cast::<global::U32x2>(), global::U32x2(words));
            }
        }
        base += 32;
    }
    let own = butterfly_sum(own);
    let of_copy = butterfly_sum(of_copy);
    let lost = butterfly_sum(lost);
    (own, Bounds::of_squares(own.max(of_copy), lost))
}

/// The number of row `at` of the listed tiles; without a list, of row `at` of all rows.
///
/// # Safety
/// The list has the row's tile.
#[device_inline]
pub(crate) unsafe fn listed_row(tiles: Option<Ptr<u32>>, at: u32) -> u32 {
    let Some(tiles) = tiles else { return at };
    // SAFETY: as the caller promises.
    let tile = unsafe { global::load(tiles.wrapping_add((at / TILE_ROWS) as usize)) };
    tile * TILE_ROWS + at % TILE_ROWS
}

/// Raises `out` to the bits of the greatest |component − centre| of all rows, or of the rows of the listed tiles.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = ElementKey,
    max_threads = 128,
    ElementKey::F32 => greatest_f32 = greatest::<element::F32>,
    ElementKey::F16 => greatest_f16 = greatest::<element::F16>,
    ElementKey::Bf16 => greatest_bf16 = greatest::<element::Bf16>,
    ElementKey::U8 => greatest_u8 = greatest::<element::U8>,
    ElementKey::I8 => greatest_i8 = greatest::<element::I8>,
)]
pub struct Greatest {
    /// `count` rows of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Number of rows.
    pub count: u32,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// `stride` components that are subtracted from each row; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// The numbers of `tile_count` tiles, whose rows are read; absent: all rows.
    pub tiles: Option<Ptr<u32>>,
    /// Number of listed tiles, 0 without a list. The last rows of the last tile need not exist.
    pub tile_count: u32,
    /// The bits of a float that is not negative: one word.
    pub out: PtrMut<u32>,
}

impl Greatest {
    /// Each warp has every n-th row, for the n warps that `multiprocessors` run at once.
    pub fn config(&self, multiprocessors: u32) -> LaunchConfig {
        LaunchConfig::warps(self.rows_read().min(multiprocessors as u64 * 64), WARPS_PER_BLOCK)
    }

    /// Number of rows that the warps divide.
    #[device_inline]
    fn rows_read(&self) -> u64 {
        if self.tiles.is_some() { self.tile_count as u64 * TILE_ROWS as u64 } else { self.count as u64 }
    }
}

/// # Safety
/// As [`Greatest`].
#[device_inline]
unsafe fn greatest<E: Element>(launch: Greatest) {
    let end = launch.rows_read();
    let Greatest { rows, count, stride, centre, tiles, out, .. } = launch;
    let rows = rows.cast::<E::Stored>();
    let lane = warp::lane_id();
    let quads = stride / 4;
    let warps = thread::grid_dim_x() * WARPS_PER_BLOCK;
    let mut at = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    let mut greatest = 0.0f32;
    while (at as u64) < end {
        // SAFETY: `at` is below the number of rows that are read; the caller promises the list.
        let row = unsafe { listed_row(tiles, at) };
        if row < count {
            let x = rows.wrapping_add(row as usize * stride as usize);
            // SAFETY: row < count; the caller promises the shapes.
            greatest = math::max_f32(greatest, unsafe { row_greatest::<E>(x, quads, centre, lane) });
        }
        at += warps;
    }
    // Floats that are not negative have the order of their bits.
    let most = warp::reduce_max(FULL_MASK, greatest.to_bits());
    if lane == 0 {
        // SAFETY: the caller promises one writable word.
        unsafe { atomic::max_u32(*out, most) };
    }
}

/// Writes the f16 copy, value, norm and residual of each row; see the module documentation.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = ElementKey,
    max_threads = 128,
    min_blocks = 8,
    ElementKey::F32 => prepare_f32 = prepare::<element::F32>,
    ElementKey::F16 => prepare_f16 = prepare::<element::F16>,
    ElementKey::Bf16 => prepare_bf16 = prepare::<element::Bf16>,
    ElementKey::U8 => prepare_u8 = prepare::<element::U8>,
    ElementKey::I8 => prepare_i8 = prepare::<element::I8>,
)]
pub struct Prepare {
    /// `count` rows of `stride` components, of the type of the key.
    pub rows: Ptr<u8>,
    /// Number of rows without padding.
    pub count: u32,
    /// Number of rows with padding; those from `count` on become zeros with value +∞.
    pub padded_count: u32,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// `stride` components that are subtracted from each row; absent: no centre.
    pub centre: Option<Ptr<f32>>,
    /// The metric of the values.
    pub metric: Metric,
    /// The numbers of `tile_count` tiles of padded rows, which are prepared; absent: all rows.
    pub tiles: Option<Ptr<u32>>,
    /// Number of listed tiles, 0 without a list.
    pub tile_count: u32,
    /// The word that [`Greatest`] wrote.
    pub greatest: Ptr<u32>,
    /// f16 copies: `padded_count` rows of `copy_stride` components.
    pub copy: PtrMut<u16>,
    /// Distance from one copy to the next in components: a multiple of 4, at least `stride`.
    pub copy_stride: u32,
    /// ‖v‖² (squared L2) or 0 of each padded row.
    pub values: PtrMut<f32>,
    /// Upper bound of the norm of each padded row; absent: neither norms nor residuals are written, and `residuals` is
    /// empty.
    pub norms: Option<PtrMut<f32>>,
    /// Upper bound of the residual of each padded row: the norm of the row minus its copy.
    pub residuals: PtrMut<f32>,
    /// Bits of the greatest norm of each tile of rows, which the launch raises; absent: none, and then `tile_residuals`
    /// is empty.
    pub tile_norms: Option<PtrMut<u32>>,
    /// Bits of the greatest residual of each tile, which the launch raises.
    pub tile_residuals: PtrMut<u32>,
    /// Bits of the greatest norm and the greatest residual of all rows, which the launch raises: two words; absent:
    /// none.
    pub set_bounds: Option<PtrMut<u32>>,
    /// The canonical Σx² of each of `count` rows; absent: not written.
    pub row_squares: Option<PtrMut<f64>>,
}

impl Prepare {
    /// One warp for each row.
    pub fn config(&self) -> LaunchConfig {
        let listed = self.tile_count as u64 * TILE_ROWS as u64;
        LaunchConfig::warps(if self.tiles.is_some() { listed } else { self.padded_count as u64 }, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`Prepare`].
#[device_inline]
unsafe fn prepare<E: Element>(launch: Prepare) {
    let Prepare { count, padded_count, stride, centre, metric, greatest, copy, copy_stride, .. } = launch;
    let Prepare { values, norms, residuals, tile_norms, tile_residuals, set_bounds, row_squares, .. } = launch;
    let rows = launch.rows.cast::<E::Stored>();
    let at = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    // SAFETY: a block has as many rows as warps, which divide a tile, so each row of the grid is one of a listed tile.
    let row = unsafe { listed_row(launch.tiles, at) };
    if row >= padded_count {
        return;
    }
    let lane = warp::lane_id();
    let exists = row < count;
    let x = rows.wrapping_add(if exists { row as usize * stride as usize } else { 0 });
    // SAFETY: the caller promises the shapes; a row from `count` on reads nothing and writes its padding.
    unsafe {
        let squares = if exists { squares::<E>(x, stride / 4, lane) } else { 0.0 };
        let scale = scale_of(metric, f32::from_bits(global::load(*greatest)));
        let to = copy.wrapping_add(row as usize * copy_stride as usize);
        let there = if exists { stride / 4 } else { 0 };
        let normalise = normaliser(metric, squares);
        let operand = RowOperand::<E> { x, quads: there, centre, normalise, scale };
        let (own, bounds) = copy_row(operand, to, copy_stride / 4, lane);
        if lane == 0 {
            let Bounds { norm, residual } = bounds;
            let value = if exists { metric.value(own) } else { f32::INFINITY };
            global::store(values.wrapping_add(row as usize), value);
            if let Some(norms) = norms {
                global::store(norms.wrapping_add(row as usize), norm);
                global::store(residuals.wrapping_add(row as usize), residual);
            }
            if let Some(tile_norms) = tile_norms {
                let tile = (row / TILE_ROWS) as usize;
                raise(tile_norms.wrapping_add(tile), norm);
                raise(tile_residuals.wrapping_add(tile), residual);
            }
            if let Some(set_bounds) = set_bounds {
                raise(*set_bounds, norm);
                raise(set_bounds.wrapping_add(1), residual);
            }
            if let Some(row_squares) = row_squares
                && exists
            {
                global::store(row_squares.wrapping_add(row as usize), squares);
            }
        }
    }
}
