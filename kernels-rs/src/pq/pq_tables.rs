//! Tables of the product quantizer, from which the scan of compressed lists ([`crate::ivf::table_scan`]) computes
//! scores, and the error bound of these scores (paper section 5.2, equation 11).
//!
//! # Problem
//! A stored vector is c + p: a centroid and a concatenation of M codewords p_m. For a query q, with sub-vectors q_m and
//! c_m,
//!
//! ```text
//! |q - c - p|² = |q - c|²                  once for a (query, list) pair
//!              + sum_m |p_m|² + 2<c_m,p_m>  known before the query: a table for each list, or one number for each row
//!              - sum_m 2<q_m,p_m>           a table for each query
//! -<q, c + p>  = -<q,c> - sum_m <q_m,p_m>   inner product: a table for each query
//! ```
//!
//! The paper stores the middle term as tables, lists · M · 2^bits numbers, which the scan adds to the query's for every
//! pair. Summed over m for each *stored row* the term is one number for each row instead ([`RowTerms`]). This is less
//! memory whenever the mean list is shorter than M · 2^bits, which is nearly always. Then all lists of a query use one
//! table, and no table is computed for a pair. Both are available. Without either, the table of a pair is |q_m − c_m −
//! p_m|², computed from scratch.
//!
//! # The bound
//! Let u = 2⁻²⁴, Q = ‖q‖, C the greatest ‖c‖, P² = Σ_m max_j ‖p_mj‖² (so P ≥ ‖p‖ of every code), D = dim / M. A score
//! is a sum of products whose magnitudes add up to at most S = (Q + C + P)² (squared L2; by Cauchy and Schwarz for each
//! of the products of |q − c|² + |p|² + 2<c,p> − 2<q,p> = terms of (q − c − p)², taken with absolute values), or S =
//! Q·(C + P). Each product has at most n roundings: two or four of its factors, D fused additions (a table entry) or
//! dim/32 + 9 (the pair's constant), two additions of tables or of the row's term, M additions of the scan. So |score −
//! real| ≤ γ_n · S with γ_n = n·u / (1 − n·u) and n = M + max(D, dim/32 + 9) + 16 ([`roundings`]). Of the 16, six are
//! left for the number with which a caller compares: rounding c + p to f32, and that of the canonical distance.
//! Underflow adds less than 10⁻³⁵.
//!
//! f16 tables hold t·σ, where σ is the power of two that brings the bound B ≥ |t| of every entry into [2¹⁴, 2¹⁵). The
//! error of an entry is at most |t|·2⁻¹¹ + 2⁻²⁴/σ, and 1/σ ≤ B·2⁻¹⁴. Over all m: 2⁻¹¹·T + M·2⁻³⁸·B, T ≥ Σ_m |t_m|.
//!
//! | table | T | B (p = greatest ‖p_mj‖) |
//! |---|---|---|
//! | query, squared L2 | 2QP | 2Qp |
//! | query, inner product | QP | Qp |
//! | query + list | P² + 2CP + 2QP | p² + 2Cp + 2Qp |
//! | from scratch | (Q + C + P)² | (Q + C + p)² |
//!
//! If S is near f32's limit, sums may overflow, and if C + P is, so may c + p (S is small then if Q is). In these cases
//! the bound is +∞, and certifies nothing.
//!
//! *Cosine.* The scan multiplies −<q, c + p> by the factor w = f32(1/‖r‖) of the row ([`crate::ivf::code_bounds`]).
//! With W, the greatest factor, the error is at most γ_n · S · W, and 2⁻²⁰ · Q for the roundings of factor, product and
//! distance, and |Q − 1| because a cosine is also divided by ‖q‖.
//!
//! # Cost
//! Tables of queries or lists: dim · 2^bits multiply-adds each, and M · 2^bits · 4 bytes written; a codeword's
//! component is loaded once for [`VECTORS`] vectors. Row terms: dim f64 multiply-adds for each row, once for an index.

use cuda_std::launch::LaunchConfig;
use cuda_std::math::{mul_add_f32, sqrt_f64};
use cuda_std::warp::butterfly_sum;
use cuda_std::{Ptr, PtrMut, device_inline, global, group, kernel, thread, unroll, warp};

use crate::pq::pq_codes::code_at;
use crate::product::bounds::round_up;
use crate::product::canonical::squares;
use crate::product::element;
use crate::product::metric::{Metric, scale_of};

/// Number of threads of a block of these kernels.
pub const THREADS: u32 = 256;
/// Number of vectors for which a thread of [`SubTables`] computes table entries.
pub const VECTORS: u32 = 8;
/// Number of warps of a block of [`RowTerms`] and [`TableBounds`].
pub const WARPS_PER_BLOCK: u32 = THREADS / 32;

/// Squared L2 by the query's table and a term for each row. A value of the kernels' `form` parameter, as the others.
pub const FORM_ROW_TERMS: u32 = 0;
/// Squared L2 by the sum of the query's table and the list's.
pub const FORM_LIST_TERMS: u32 = 1;
/// Squared L2 by a table of the pair, from scratch.
pub const FORM_RESIDUAL: u32 = 2;
/// Inner product by the query's table.
pub const FORM_INNER_PRODUCT: u32 = 3;

/// n of the module documentation: the number of roundings of one product in a score, with a margin.
pub const fn roundings(dim: u32, sub_quantizers: u32) -> u64 {
    let sub_dim = dim / if sub_quantizers == 0 { 1 } else { sub_quantizers };
    let constant = dim / 32 + 9;
    sub_quantizers as u64 + if sub_dim > constant { sub_dim } else { constant } as u64 + 16
}

/// Computes the table of each vector:
/// tables\[v\]\[m\]\[j\] = Σ_i p_i · (squares · p_i + scale · x_i) over codeword p = codebooks\[m\]\[j\] and sub-vector
/// x = m of vector v.
///
/// # Safety
/// All pointers cover the shapes of their fields, stride ≥ M · sub_dim, and all components are finite.
#[kernel(max_threads = 256, sub_tables = tables_of)]
pub struct SubTables {
    /// `count` vectors of `stride` components.
    pub vectors: Ptr<f32>,
    /// Distance from one vector to the next in components.
    pub stride: u32,
    /// Number of vectors.
    pub count: u32,
    /// Codewords \[`sub_quantizers`\]\[2^`bits`\]\[`sub_dim`\].
    pub codebooks: Ptr<f32>,
    /// Number of components of a sub-vector.
    pub sub_dim: u32,
    /// Number of sub-quantizers, M.
    pub sub_quantizers: u32,
    /// Number of bits of a code.
    pub bits: u32,
    /// −2 or −1 for the table of a query (squared L2, inner product), 2 for that of a list.
    pub scale: f32,
    /// 0 for the table of a query, 1 for that of a list.
    pub squares: f32,
    /// The tables, \[`count`\]\[`sub_quantizers`\]\[2^`bits`\].
    pub tables: PtrMut<f32>,
}

impl SubTables {
    /// One thread for each entry of the tables of [`VECTORS`] vectors; the blocks of the same vectors are neighbours.
    pub fn config(&self) -> LaunchConfig {
        let blocks = self.count.div_ceil(VECTORS) as u64 * (self.sub_quantizers << self.bits).div_ceil(THREADS) as u64;
        LaunchConfig::linear(blocks, THREADS)
    }
}

/// # Safety
/// As [`SubTables`].
#[device_inline]
unsafe fn tables_of(launch: SubTables) {
    let SubTables { vectors, stride, count, codebooks, sub_dim, sub_quantizers, bits, .. } = launch;
    let SubTables { scale, squares, tables, .. } = launch;
    let entries = sub_quantizers << bits;
    let blocks = entries.div_ceil(THREADS).max(1);
    let first = thread::block_idx_x() / blocks * VECTORS;
    let entry = thread::block_idx_x() % blocks * THREADS + thread::thread_idx_x();
    if entry >= entries || first >= count {
        return;
    }
    let p = codebooks.wrapping_add(entry as usize * sub_dim as usize);
    let sub_vector = ((entry >> bits) * sub_dim) as usize;
    let mut x = [*vectors; VECTORS as usize];
    // After the last vector the last is evaluated again and not stored.
    unroll::<{ VECTORS as usize }>(|v| {
        let row = (first + v as u32).min(count - 1);
        x[v] = vectors.wrapping_add(row as usize * stride as usize + sub_vector);
    });
    let mut sums = [0.0f32; VECTORS as usize];
    let mut i = 0;
    while i < sub_dim as usize {
        // SAFETY: component i of codeword `entry` and of sub-vector m of existing vectors.
        unsafe {
            let p = global::load_nc(p.wrapping_add(i));
            unroll::<{ VECTORS as usize }>(|v| {
                let x = global::load_nc(x[v].wrapping_add(i));
                sums[v] = mul_add_f32(p, mul_add_f32(squares, p, scale * x), sums[v]);
            });
        }
        i += 1;
    }
    unroll::<{ VECTORS as usize }>(|v| {
        let row = first + v as u32;
        if row < count {
            // SAFETY: row < count and entry < entries.
            unsafe { global::store(tables.wrapping_add(row as usize * entries as usize + entry as usize), sums[v]) };
        }
    });
}

/// The product-quantizer codes of the vectors of all lists.
#[group]
pub struct CodedLists {
    /// The rows of the storage, `code_bytes` each.
    pub codes: Ptr<u8>,
    /// Number of bytes of a row.
    pub code_bytes: u32,
    /// The first row of each list.
    pub list_starts: Ptr<u32>,
    /// The number of rows of each list.
    pub list_lengths: Ptr<u32>,
    /// Centroids of the lists, `stride` components each.
    pub centroids: Ptr<f32>,
    /// Distance from one centroid to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Codewords \[`sub_quantizers`\]\[2^`bits`\]\[`sub_dim`\].
    pub codebooks: Ptr<f32>,
    /// Number of components of a sub-vector.
    pub sub_dim: u32,
    /// Number of sub-quantizers, M.
    pub sub_quantizers: u32,
    /// Number of bits of a code, 4 to 8.
    pub bits: u32,
}

/// Computes |p|² + 2<c,p> of every stored row, summed in f64; c is the centroid of its list and p the decoded code.
/// Padding rows get no term.
///
/// # Safety
/// All pointers cover the shapes of their fields.
#[kernel(max_threads = 256, row_terms = terms_of)]
pub struct RowTerms {
    /// The lists and their codes.
    #[group]
    pub coded: CodedLists,
    /// Number of blocks that share the rows of a list.
    pub slices: u32,
    /// The term of each stored row.
    pub terms: PtrMut<f32>,
}

impl RowTerms {
    /// `slices` blocks for each of `lists` lists; each warp processes one row at a time.
    pub fn config(&self, lists: u32) -> LaunchConfig {
        LaunchConfig::linear(lists as u64 * self.slices as u64, THREADS)
    }
}

/// # Safety
/// As [`RowTerms`].
#[device_inline]
unsafe fn terms_of(launch: RowTerms) {
    let RowTerms { coded, slices, terms } = launch;
    let CodedLists { codes, code_bytes, list_starts, list_lengths, centroids, stride, .. } = coded;
    let CodedLists { codebooks, sub_dim, sub_quantizers, bits, .. } = coded;
    let slices = slices.max(1);
    let (list, slice) = ((thread::block_idx_x() / slices) as usize, thread::block_idx_x() % slices);
    let lane = warp::lane_id();
    let dim = sub_dim * sub_quantizers;
    let centroid = centroids.wrapping_add(list * stride as usize);
    // SAFETY: the list exists, rows stay below its length and components below the dimension; a code is below 2^bits.
    unsafe {
        let start = global::load_nc(list_starts.wrapping_add(list));
        let length = global::load_nc(list_lengths.wrapping_add(list));
        let mut row = slice * WARPS_PER_BLOCK + warp::warp_id();
        while row < length {
            let stored = (start + row) as usize;
            let code = codes.wrapping_add(stored * code_bytes as usize);
            let mut sum = 0.0f64;
            let mut base = 0;
            while base < dim {
                let component = base + lane;
                if component < dim {
                    let m = component / sub_dim.max(1);
                    let codeword = ((m << bits) + code_at(code, m, bits)) as usize * sub_dim as usize;
                    let p = global::load_nc(codebooks.wrapping_add(codeword + (component - m * sub_dim) as usize));
                    let c = global::load_nc(centroid.wrapping_add(component as usize));
                    sum += p as f64 * (p as f64 + 2.0 * c as f64);
                }
                base += 32;
            }
            let sum = butterfly_sum(sum);
            if lane == 0 {
                global::store(terms.wrapping_add(stored), sum as f32);
            }
            row += slices * WARPS_PER_BLOCK;
        }
    }
}

/// Computes a bound of |score − real value| over all candidates of each query (module documentation), +∞ if scores may
/// overflow. For f16 tables it also computes the query's σ.
///
/// # Safety
/// All pointers that are present cover the shapes of their fields.
#[kernel(max_threads = 256, table_bounds = bounds_of)]
pub struct TableBounds {
    /// `count` queries of `stride` components.
    pub queries: Ptr<f32>,
    /// Distance from one query to the next in components: a multiple of 4, zero padded.
    pub stride: u32,
    /// Number of queries.
    pub count: u32,
    /// The form of the scores: a `FORM_*` of this module.
    pub form: u32,
    /// Number of sub-quantizers, M.
    pub sub_quantizers: u32,
    /// Upper bound of C, the greatest centroid norm.
    pub centroid_norm: f64,
    /// Upper bound of P (module documentation).
    pub codeword_norm: f64,
    /// Upper bound of the greatest ‖p_mj‖.
    pub sub_codeword_norm: f64,
    /// Upper bound of γ_n (module documentation).
    pub gamma: f64,
    /// The greatest factor of a row: one word; absent if rows have no factors. With factors the real values are cosines
    /// of queries whose length is nearly 1.
    pub greatest_factor: Option<Ptr<f32>>,
    /// The bound of each query.
    pub errors: PtrMut<f32>,
    /// The σ of each query; absent for f32 tables.
    pub scales: Option<PtrMut<f32>>,
}

impl TableBounds {
    /// One warp for each query.
    pub fn config(&self) -> LaunchConfig {
        LaunchConfig::warps(self.count as u64, WARPS_PER_BLOCK)
    }
}

/// # Safety
/// As [`TableBounds`].
#[device_inline]
unsafe fn bounds_of(launch: TableBounds) {
    let TableBounds { queries, stride, count, form, sub_quantizers, centroid_norm, codeword_norm, .. } = launch;
    let TableBounds { sub_codeword_norm, gamma, greatest_factor, errors, scales, .. } = launch;
    let query = thread::block_idx_x() * WARPS_PER_BLOCK + warp::warp_id();
    if query >= count {
        return;
    }
    let lane = warp::lane_id();
    let x = queries.wrapping_add(query as usize * stride as usize);
    // SAFETY: query < count.
    let norm = sqrt_f64(unsafe { squares::<element::F32>(x, stride / 4, lane) });
    if lane != 0 {
        return;
    }
    let (c, p, part) = (centroid_norm, codeword_norm, sub_codeword_norm);
    let whole = norm + c + p;
    let sum = if form == FORM_INNER_PRODUCT { norm * (c + p) } else { whole * whole };
    let mut error = gamma * sum;
    if let Some(scales) = scales {
        let (of_all, of_one) = if form == FORM_ROW_TERMS {
            (2.0 * norm * p, 2.0 * norm * part)
        } else if form == FORM_INNER_PRODUCT {
            (norm * p, norm * part)
        } else if form == FORM_LIST_TERMS {
            (p * (p + 2.0 * (c + norm)), part * (part + 2.0 * (c + norm)))
        } else {
            (whole * whole, (norm + c + part) * (norm + c + part))
        };
        // Entries are rounded before they become f16, and summed afterwards: (1 + γ) for each.
        let up = (1.0 + gamma) * (1.0 + gamma);
        error += up * (of_all / 2048.0 + sub_quantizers as f64 * of_one / 274_877_906_944.0);
        // SAFETY: query < count.
        unsafe { global::store(scales.wrapping_add(query as usize), scale_of(Metric::L2, round_up(of_one))) };
    }
    let mut error = error + 1e-35;
    if let Some(greatest_factor) = greatest_factor {
        // SAFETY: one word.
        let factor = unsafe { global::load_nc(*greatest_factor) } as f64;
        // The roundings of factor, product and distance, and the length of the query (module documentation).
        let of_length = if norm == 0.0 { 0.0 } else { norm / 1_048_576.0 + (norm - 1.0).abs() };
        error = error * factor + of_length;
    }
    // No partial sum exceeds `sum` and its error, and no component c + p exceeds c + p of the norms. NaN is not below
    // the limit either.
    let bound = if sum + error < 1e38 && c + p < 1e38 { round_up(error) } else { f32::INFINITY };
    // SAFETY: query < count.
    unsafe { global::store(errors.wrapping_add(query as usize), bound) };
}
