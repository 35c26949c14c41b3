//! A product-quantized index for the scan by lookup tables: sizes, norms and arrays.

use cuda_std::Ptr;
use warpann_kernels::pq::pq_tables::{FORM_INNER_PRODUCT, FORM_LIST_TERMS, FORM_RESIDUAL, FORM_ROW_TERMS};

/// Upper bounds of norms, from which error bounds are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Norms {
    /// Bound for all centroids.
    pub centroid: f64,
    /// Bound for all decoded residuals: √Σ_m max_j |p_mj|².
    pub codeword: f64,
    /// Bound for single codewords of all sub-quantizers.
    pub sub_codeword: f64,
}

impl Norms {
    /// Norms of `centroids` (rows of `dim`, without gaps) and `codebooks` \[sub_quantizers\]\[2^bits\]\[dim /
    /// sub_quantizers\].
    pub fn new(centroids: &[f32], codebooks: &[f32], dim: usize, sub_quantizers: usize) -> Norms {
        // This factor covers twice the rounding error of sums of up to 2^32 squares in f64.
        const UP: f64 = 1.0 + 1e-6;
        let greatest = |rows: &[f32], width: usize| {
            let squares = |row: &[f32]| row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
            rows.chunks_exact(width.max(1)).map(squares).fold(0.0, f64::max)
        };
        let sub_dim = dim / sub_quantizers.max(1);
        let of_each = codebooks.chunks(codebooks.len().div_ceil(sub_quantizers.max(1)).max(1));
        let (mut sum, mut most) = (0.0, 0.0f64);
        for book in of_each {
            let square = greatest(book, sub_dim);
            sum += square;
            most = most.max(square);
        }
        Norms {
            centroid: greatest(centroids, dim).sqrt() * UP,
            codeword: sum.sqrt() * UP,
            sub_codeword: most.sqrt() * UP,
        }
    }
}

/// The stored terms of an index for squared L2 distances: the paper's first term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terms {
    /// One number for each stored row.
    Rows,
    /// One table for each list.
    Lists,
    /// No terms are stored.
    None,
}

/// The sizes of a product-quantized index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Number of components of a vector; a multiple of `sub_quantizers`.
    pub dim: u32,
    /// Number of sub-quantizers, M.
    pub sub_quantizers: u32,
    /// Bits of one sub-quantizer's code, 4 to 8.
    pub bits: u32,
    /// Number of lists.
    pub lists: u32,
    /// Number of rows of all lists with their padding; below 2³².
    pub stored_rows: u32,
    /// Number of rows of the longest list.
    pub longest_list: u32,
    /// Whether scores are −<q, c + p> instead of |q − c − p|².
    pub inner_product: bool,
    /// Bounds of the norms.
    pub norms: Norms,
}

impl Shape {
    /// Number of components of a row of queries and centroids.
    pub fn stride(&self) -> u32 {
        self.dim.next_multiple_of(4)
    }

    /// Bytes of a row's code.
    pub fn code_bytes(&self) -> u32 {
        (self.sub_quantizers * self.bits).div_ceil(8)
    }

    /// Number of entries of a whole table.
    pub(super) fn entries(&self) -> u32 {
        self.sub_quantizers << self.bits
    }

    /// Number of f32 values of `terms`.
    pub fn terms_len(&self, terms: Terms) -> usize {
        match terms {
            _ if self.inner_product => 0,
            Terms::Rows => self.stored_rows as usize,
            Terms::Lists => (self.lists as usize).saturating_mul(self.entries() as usize),
            Terms::None => 0,
        }
    }

    /// The best kind of terms that fit `budget` bytes: terms of rows, else terms of lists (fewer bytes if lists are
    /// longer than M · 2^bits), else none.
    pub fn choose_terms(&self, budget: u64) -> Terms {
        let fit = |&terms: &Terms| (self.terms_len(terms) as u64).saturating_mul(4) <= budget;
        if self.inner_product {
            return Terms::None;
        }
        [Terms::Rows, Terms::Lists].into_iter().find(fit).unwrap_or(Terms::None)
    }

    /// The number of the form of scores in the kernels.
    pub(super) fn form(&self, terms: Terms) -> u32 {
        match terms {
            _ if self.inner_product => FORM_INNER_PRODUCT,
            Terms::Rows => FORM_ROW_TERMS,
            Terms::Lists => FORM_LIST_TERMS,
            Terms::None => FORM_RESIDUAL,
        }
    }

    /// Number of components of a codeword.
    pub(super) fn sub_dim(&self) -> u32 {
        self.dim / self.sub_quantizers.max(1)
    }
}

/// The arrays of a product-quantized index in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// \[lists\]\[stride\], padded with zeros.
    pub centroids: Ptr<f32>,
    /// \[sub_quantizers\]\[2^bits\]\[dim / sub_quantizers\].
    pub codebooks: Ptr<f32>,
    /// \[stored_rows\]\[code_bytes\]: the codes of all stored rows.
    pub codes: Ptr<u8>,
    /// The first stored row of each list, a multiple of 8.
    pub list_starts: Ptr<u32>,
    /// The number of rows of each list; the storage of a list reaches to the next multiple of 8.
    pub list_lengths: Ptr<u32>,
    /// \[stored_rows\]: the factor of each row's sum, and a word with the greatest. `None`: 1.
    pub factors: Option<(Ptr<f32>, Ptr<f32>)>,
}
