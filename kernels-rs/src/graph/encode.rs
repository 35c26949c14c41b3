//! Codes of vectors, as the library's `graph::codes` defines them: one signed byte for each component.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{max_f32, min_f32};
use cuda_std::shared::SharedPtr;
use cuda_std::warp::{self, butterfly, butterfly_sum};
use cuda_std::{Ptr, PtrMut, device_inline, global, kernel, shared, thread, unroll};

use crate::graph::distance::{Compared, SUMS};
use crate::product::element;
use crate::product::metric::Metric;

/// Number of threads of a block, which is one warp.
const THREADS: u32 = 32;
/// The greatest code; the least is its negative, so that codes are symmetric about 0.
pub const MOST: f32 = 127.0;
/// In a sum with this number the last bit is worth 1, so it is rounded to an integer, ties to even, which its lowest
/// bits hold.
pub const ROUNDER: f32 = (3 << 22) as f32;

/// The largest excess that is counted: by how many codes a component lies beyond the range. So the squares of all
/// components have a sum of 64 bits.
pub const MOST_EXCESS: f32 = 65_535.0;

/// By how many codes a component, in units of codes, lies beyond the range: rounded towards 0, at most [`MOST_EXCESS`].
#[device_inline]
pub fn excess(x: f32) -> u32 {
    min_f32(max_f32(max_f32(x, -x) - MOST, 0.0), MOST_EXCESS) as u32
}

/// An element type of floats: the key of kernels for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatKey {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Writes the codes of vectors, each of which a warp keeps in shared memory, and whether codes can stand for them.
///
/// # Safety
/// The arrays are as long as the fields say.
#[kernel(
    key = FloatKey,
    max_threads = 32,
    FloatKey::F32 => encode_f32 = encode::<element::F32>,
    FloatKey::F16 => encode_f16 = encode::<element::F16>,
    FloatKey::Bf16 => encode_bf16 = encode::<element::Bf16>,
)]
pub struct Encode {
    /// Number of vectors.
    pub count: u32,
    /// `count` rows of `stride` components, of the type of the key, which are finite.
    pub rows: Ptr<u8>,
    /// Distance from one row to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Number of components of a vector.
    pub dim: u32,
    /// The metric: for cosine, vectors are divided by their norms first.
    pub metric: Metric,
    /// The shift of each component, which is subtracted from it: `dim` numbers.
    pub shifts: Ptr<f32>,
    /// Codes in a unit of a component; 0: each vector has a scale of its own, by which its greatest component becomes
    /// [`MOST`].
    pub scale: f32,
    /// Greatest sum of the squares of [`excess`] of a vector for which its codes can stand.
    pub limit: u64,
    /// Rows of `code_stride` codes, zero padded.
    pub codes: PtrMut<u8>,
    /// Distance from one row of codes to the next: a multiple of 4, at least `dim`.
    pub code_stride: u32,
    /// One word for each vector: 1 if its codes cannot stand for it, else 0.
    pub doubtful: PtrMut<u32>,
}

impl Encode {
    /// One warp for each vector.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::linear(self.count.into(), THREADS).with_shared(Self::shared_bytes(self.stride))
    }

    /// Shared memory of a block in bytes.
    pub const fn shared_bytes(stride: u32) -> u32 {
        4 * stride.next_multiple_of(SUMS)
    }
}

/// # Safety
/// As [`Encode`].
#[device_inline]
unsafe fn encode<E: Compared>(launch: Encode) {
    let Encode { rows, stride, dim, metric, shifts, scale, limit, codes, code_stride, doubtful, .. } = launch;
    let number = thread::block_idx_x() as usize;
    let vector: SharedPtr<f32> = shared::dynamic();
    // SAFETY: for the whole body, the arrays have the vector, its codes and the shifts; barriers stand between writes
    // and reads of different lanes.
    unsafe {
        let row = (*rows).cast::<E::Stored>().wrapping_add(number * stride as usize);
        E::store(row, stride, vector.cast(), THREADS);
        thread::sync_threads();
        if metric.divides_by_norms() {
            E::normalise(vector.cast(), stride, THREADS);
            thread::sync_threads();
        }
        let mut greatest = 0.0f32;
        if scale == 0.0 {
            let mut at = warp::lane_id();
            while at < dim {
                let x = vector.add(at).load();
                greatest = max_f32(greatest, max_f32(x, -x));
                at += THREADS;
            }
            greatest = butterfly(greatest, max_f32);
        }
        let codes = codes.cast::<u32>().wrapping_add(number * code_stride as usize / 4);
        let mut word = warp::lane_id();
        let mut squares = 0u64;
        while word < code_stride / 4 {
            // All loads come before the first branch, so that they wait together.
            let mut scaled = [0.0f32; 4];
            unroll::<4>(|e| {
                let at = 4 * word + e as u32;
                if at < dim {
                    scaled[e] = vector.add(at).load() - global::load_nc(shifts.wrapping_add(at as usize));
                }
            });
            // In units of codes.
            if scale != 0.0 {
                unroll::<4>(|e| scaled[e] *= scale);
            } else if greatest != 0.0 {
                unroll::<4>(|e| scaled[e] = scaled[e] / greatest * MOST);
            }
            let mut four = 0u32;
            unroll::<4>(|e| {
                // Of padding 0.
                let x = scaled[e];
                let code = (max_f32(min_f32(x, MOST), -MOST) + ROUNDER).to_bits() & 0xff;
                four |= code << (8 * e as u32);
                let excess = excess(x) as u64;
                squares += excess * excess;
            });
            global::store(codes.wrapping_add(word as usize), four);
            word += THREADS;
        }
        let is_doubtful = butterfly_sum(squares) > limit;
        if warp::lane_id() == 0 {
            global::store(doubtful.wrapping_add(number), is_doubtful as u32);
        }
    }
}
