//! Codes of a few bits of vectors' residuals, and their rests.
//!
//! # Problem
//! `host/src/ivf/encoding/bits` defines codes: for each of [`TRIALS`] grids the sums of w·level and level² over all
//! components, in [`LANES`] lanes of f32; the levels and the step of the best grid; and the rest, in f64. The CPU and
//! this kernel make the same bits.
//!
//! # Algorithm
//! A warp has one vector. Its halves try two grids at a time, so that a lane has one of the 16 lanes of the sums, and
//! sums of lanes are added one after the other, as on the CPU. Then a lane has one of each group of 32 components, and
//! the bits of all lanes together make the words of the group ([`super::encoding::bits`]). The rest is a sum in f64 of
//! 32 lanes, which are added by halves.
//!
//! # Cost
//! One read of the vectors and their centroids, and for each component 10 instructions a grid. 96 components take some
//! 1,500 instructions of a warp: calculated, 1.7 s of an H200 for 10⁹ vectors.

use cuda_std::launch::LaunchConfig;
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{FULL_MASK, butterfly_argmax, butterfly_sum};
use cuda_std::{Ptr, PtrMut, atomic, device_inline, global, kernel, math, shared, thread, unroll, warp};

use super::encoding::bits::{Field, GROUP, HEAD_BYTES, MOST_BITS, WIDTHS, row_bytes};

/// Number of grids that an encoder tries.
pub const TRIALS: u32 = 16;
/// The first grid, as a share of the one that reaches the greatest component. By the normal distribution, the best grid
/// of two bits for 1,536 components is at .47; one of few components may need the last one, 1.34.
const FIRST: f32 = 0.4;
/// Number of lanes of sums.
pub const LANES: u32 = 16;
/// The least step but 0: 2^-120, so that products with it are normal numbers.
pub const LEAST_STEP: f32 = f32::from_bits((127 - 120) << 23);
/// The greatest step: 2^100. With it, decoded residuals are finite.
pub const GREATEST_STEP: f32 = f32::from_bits((127 + 100) << 23);
/// Adding and subtracting this rounds numbers below 2^22 to whole ones.
const ROUNDING: f32 = 12_582_912.0;
/// More than the share of a vector's length by which rotation and rounding change distances.
pub const SLACK: f64 = 1.0 / 65536.0;
/// Lengths below this count as 0: 2⁻¹²⁰.
pub const LEAST_LENGTH: f64 = f64::from_bits((1023 - 120) << 52);

/// Number of threads of a warp.
const WARP: u32 = 32;
/// Largest number of warps in a block.
const WARPS: u32 = 4;

/// The levels of a number of bits: `scale` · n + `shift` for whole numbers n, 0 to `most`, and their negatives.
#[derive(Debug, Clone, Copy)]
pub struct Levels {
    /// The distance from one level to the next.
    pub scale: f32,
    /// The least level that is not negative.
    pub shift: f32,
    most: f32,
    /// The grid whose greatest level is next to 1.
    grid: f32,
}

impl Levels {
    /// The levels of codes of `bits` bits, 1 to 8.
    #[device_inline]
    pub fn of(bits: u32) -> Levels {
        if bits < MOST_BITS {
            let count = (1u32 << (bits - 1)) as f32;
            Levels { scale: 2.0, shift: 1.0, most: count - 1.0, grid: 0.5 / count }
        } else {
            Levels { scale: 1.0, shift: 0.0, most: 127.0, grid: 1.0 / 128.0 }
        }
    }

    /// 1 / grid of a trial.
    #[device_inline]
    pub fn up(self, trial: u32) -> f32 {
        1.0 / (self.grid * (FIRST + trial as f32 / TRIALS as f32))
    }

    /// The number of the level nearest to `size`, which is in units of the levels and not negative.
    #[device_inline]
    pub fn number(self, size: f32) -> f32 {
        let number = ((size - self.shift) / self.scale).max(0.0).min(self.most);
        (number + ROUNDING) - ROUNDING
    }

    /// The level of a number.
    #[device_inline]
    pub fn level(self, number: f32) -> f32 {
        self.scale * number + self.shift
    }
}

/// The code of a component, as a number with a sign.
#[device_inline]
pub fn code_of(bits: u32, number: i32, negative: bool) -> i32 {
    match (bits < MOST_BITS, negative) {
        (_, false) => number,
        (true, true) => -1 - number,
        (false, true) => -number,
    }
}

/// The rest of a code of x that stands for r, by ‖x‖, ‖r‖ and the length of what is left: ‖x − r‖, or for `directions`
/// ‖x / ‖x‖ − r / ‖r‖‖. The factor is for the roundings of the sums, and for lengths of queries, which a rotation
/// changes.
#[device_inline]
pub fn rest_of(of_x: f64, of_r: f64, left: f64, directions: bool) -> f32 {
    let (error, slack) = match directions {
        false => (left, SLACK * of_x),
        true if of_x > 0.0 && of_r > 0.0 => (left, SLACK),
        // The similarity of a zero vector is 0, that of the other is at most 1.
        true => (1.0, SLACK),
    };
    let rest = ((error + slack) * (1.0 + 2.0 * SLACK) + LEAST_LENGTH) as f32;
    // The next number, unless this is infinite.
    if rest < f32::INFINITY { f32::from_bits(rest.to_bits() + 1) } else { rest }
}

/// Writes the code of each vector's residual.
///
/// # Safety
/// The arrays are as long as the fields say; every label has a centroid.
#[kernel(max_threads = 128, encode_bits = encode)]
pub struct EncodeBits {
    /// `count` vectors of `stride` components.
    pub rows: Ptr<f32>,
    /// Number of vectors.
    pub count: u32,
    /// Distance from one vector or centroid to the next in components.
    pub stride: u32,
    /// Number of components of a vector.
    pub dim: u32,
    /// The centroid of each vector.
    pub labels: Ptr<u32>,
    /// Rows laid out as those of `rows`, one for each label.
    pub centroids: Ptr<f32>,
    /// Bits of a component, 1 to 8.
    pub bits: u32,
    /// Whether the rest is that of directions: 0 for no.
    pub directions: u32,
    /// The codes: [`row_bytes`] for each vector. Those of refused vectors are not written.
    pub codes: PtrMut<u8>,
    /// The least of 2^32 · row + column of vectors that no code can hold: one number, which must be greater before.
    pub refused: PtrMut<u64>,
}

impl EncodeBits {
    /// Number of warps of a block in this many bytes of shared memory: 0 if there is no room for one.
    const fn warps(dim: u32, shared_bytes: u32) -> u32 {
        let most = shared_bytes / 4 / dim;
        if most < WARPS { most } else { WARPS }
    }

    /// Whether a vector of `dim` components fits.
    pub const fn fits(dim: u32, shared_bytes: u32) -> bool {
        Self::warps(dim, shared_bytes) > 0
    }

    /// A warp for each vector, which [`fits`](Self::fits).
    pub fn config(&self, shared_bytes: u32) -> LaunchConfig {
        let warps = Self::warps(self.dim, shared_bytes);
        LaunchConfig::warps(u64::from(self.count), warps).with_shared(4 * self.dim * warps)
    }
}

/// Σ w·level and Σ level² of the levels of a grid: each half of the warp for one grid, in lanes that are added one
/// after the other. All lanes arrive.
///
/// # Safety
/// `w` has `dim` numbers, which were written before the warp met.
#[device_inline]
unsafe fn products(levels: Levels, w: SharedPtr<f32>, dim: u32, up: f32) -> [f32; 2] {
    let (half, lane) = (warp::lane_id() / LANES, warp::lane_id() % LANES);
    let (mut dot, mut square) = (0.0f32, 0.0f32);
    let mut i = lane;
    while i < dim {
        // SAFETY: i < dim.
        let w = unsafe { w.add(i).load() }.abs();
        let level = levels.level(levels.number(w * up));
        dot += w * level;
        square += level * level;
        i += LANES;
    }
    let (mut dots, mut squares) = (0.0f32, 0.0f32);
    let mut other = 0;
    while other < LANES {
        dots += warp::shuffle_idx(FULL_MASK, dot, half * LANES + other);
        squares += warp::shuffle_idx(FULL_MASK, square, half * LANES + other);
        other += 1;
    }
    [dots, squares]
}

/// The step of the best grid for `w`, of which the greatest is 1, and 1 / grid: the same in all lanes, which all
/// arrive.
///
/// # Safety
/// As [`products`].
#[device_inline]
unsafe fn best_grid(levels: Levels, w: SharedPtr<f32>, dim: u32) -> (f64, f32) {
    let half = warp::lane_id() / LANES;
    let (mut best, mut best_trial, mut step) = (0.0f32, TRIALS, 0.0f64);
    let mut pair = 0;
    while pair < TRIALS / 2 {
        let trial = 2 * pair + half;
        // SAFETY: as the caller promises.
        let [dot, square] = unsafe { products(levels, w, dim, levels.up(trial)) };
        let found = dot * dot / square;
        if found > best {
            (best, best_trial, step) = (found, trial, dot as f64 / square as f64);
        }
        pair += 1;
    }
    let of_other = warp::shuffle_xor(FULL_MASK, best, LANES);
    let trial_of_other = warp::shuffle_xor(FULL_MASK, best_trial, LANES);
    let step_of_other = warp::shuffle_xor(FULL_MASK, step, LANES);
    // The first of equals.
    if of_other > best || of_other == best && trial_of_other < best_trial {
        (best_trial, step) = (trial_of_other, step_of_other);
    }
    (step, if best_trial < TRIALS { levels.up(best_trial) } else { 1.0 })
}

/// All lanes of a warp stay together: what they branch on is the same for all.
///
/// # Safety
/// As [`EncodeBits`].
#[device_inline]
unsafe fn encode(launch: EncodeBits) {
    let EncodeBits { rows, count, stride, dim, labels, centroids, bits, directions, codes, refused } = launch;
    let (warp, lane) = (warp::warp_id(), warp::lane_id());
    let row = thread::block_idx_x() * (thread::block_dim_x() / WARP) + warp;
    if row >= count {
        return;
    }
    // SAFETY: the caller promises the shapes; i is below dim. Only this warp accesses its part of shared memory, which
    // has `dim` numbers for each warp, and it meets between writes and reads.
    unsafe {
        let w = shared::dynamic::<f32>().add(warp * dim);
        let x = rows.wrapping_add(row as usize * stride as usize);
        let label = global::load_nc(labels.wrapping_add(row as usize));
        let centroid = centroids.wrapping_add(label as usize * stride as usize);
        let component = |i: u32| {
            let x = global::load_nc(x.wrapping_add(i as usize));
            (x, global::load_nc(centroid.wrapping_add(i as usize)))
        };
        // The greatest size, and the first component that has it; of a residual that is not finite, the first of those.
        let (mut greatest, mut column, mut odd) = (0.0f32, dim, dim);
        let mut i = lane;
        while i < dim {
            let (x, c) = component(i);
            let y = x - c;
            w.add(i).store(y);
            if y.abs() > greatest {
                (greatest, column) = (y.abs(), i);
            }
            if !y.is_finite() && odd == dim {
                odd = i;
            }
            i += WARP;
        }
        let (greatest, column) = butterfly_argmax(greatest, column);
        let odd = warp::reduce_min(FULL_MASK, odd);
        let (mut step, mut up) = (0.0f32, 1.0f32);
        let levels = Levels::of(bits);
        if odd == dim && greatest > 0.0 {
            let mut i = lane;
            while i < dim {
                let (y, at) = (w.add(i).load(), w.add(i));
                let size = y.abs() / greatest;
                // The sign of a size that becomes 0 stays.
                at.store(if y < 0.0 { -size } else { size });
                i += WARP;
            }
            warp::sync_warp(FULL_MASK);
            let (of_best, up_of_best) = best_grid(levels, w, dim);
            (step, up) = ((greatest as f64 * of_best) as f32, up_of_best);
        }
        if odd < dim || step > GREATEST_STEP {
            if lane == 0 {
                let column = if odd < dim { odd } else { column };
                atomic::min_u64(*refused, (row as u64) << 32 | column as u64);
            }
            return;
        }
        if step < LEAST_STEP {
            step = 0.0;
        }

        let code: *mut u32 = codes.wrapping_add(row as usize * row_bytes(dim as usize, bits)).cast();
        let words = code.wrapping_add(HEAD_BYTES as usize / 4);
        let code_of = |i: u32| {
            let w = w.add(i).load();
            code_of(bits, levels.number(w.abs() * up) as i32, w.is_sign_negative())
        };
        // A code of zeros stands for the centroid if the step is 0.
        let decoded = |i: u32, c: f32| {
            let code = if step > 0.0 { code_of(i) } else { 0 };
            (code, c + step * levels.level(code as f32))
        };
        let (mut of_x, mut of_r, mut left) = (0.0f64, 0.0f64, 0.0f64);
        let mut group = 0;
        while group * GROUP < dim {
            let i = group * GROUP + lane;
            let mut code = 0;
            if i < dim {
                let (x, c) = component(i);
                let r;
                (code, r) = decoded(i, c);
                let (x, r) = (x as f64, r as f64);
                of_x += x * x;
                of_r += r * r;
                left += (x - r) * (x - r);
            }
            unroll::<{ WIDTHS.len() }>(|at| {
                let field = Field::of(bits, WIDTHS[at]);
                if field.exists() {
                    let (s, e) = (lane / 4, lane % 4);
                    let own = field.of_code(bits, code as u32) << field.place_in_word(s, e);
                    let mut word = field.word(0);
                    while word <= field.word(7) {
                        let all = warp::reduce_or(FULL_MASK, if word == field.word(s) { own } else { 0 });
                        if lane == word {
                            global::store(words.wrapping_add((group * bits + word) as usize), all);
                        }
                        word += 1;
                    }
                }
            });
            group += 1;
        }
        let (of_x, of_r) = (math::sqrt_f64(butterfly_sum(of_x)), math::sqrt_f64(butterfly_sum(of_r)));
        if directions != 0 && of_x > 0.0 && of_r > 0.0 {
            left = 0.0;
            let mut group = 0;
            while group * GROUP < dim {
                let i = group * GROUP + lane;
                if i < dim {
                    let (x, c) = component(i);
                    let apart = x as f64 / of_x - decoded(i, c).1 as f64 / of_r;
                    left += apart * apart;
                }
                group += 1;
            }
        }
        let rest = rest_of(of_x, of_r, math::sqrt_f64(butterfly_sum(left)), directions != 0);
        if lane == 0 {
            global::store(code, step.to_bits());
            global::store(code.wrapping_add(1), rest.to_bits());
        }
    }
}
