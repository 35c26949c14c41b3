//! The data that all parts of a search read.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::flat::cpu::FlatCpu;
use crate::ivf::view::View;
use crate::product::cpu::bits::BitCount;
use crate::product::cpu::bound::{self, all_whole, largest_norm};
use crate::product::cpu::{BLOCK, canonical_square, exact};
use crate::simd::Isa;
use crate::{Bitset, Metric};

/// The data that searches need for one version of an index.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) version: u64,
    pub(super) coarse: Arc<FlatCpu<f32>>,
    /// The location of the first vector of each list, and then the number of vectors.
    pub(super) starts: Vec<u32>,
    pub(super) norms: Vec<Arc<OnceLock<Norms>>>,
}

impl Image {
    /// The locations of a list.
    #[inline]
    pub(super) fn range(&self, list: usize) -> Range<u32> {
        self.starts[list]..self.starts[list + 1]
    }

    /// The list of a location.
    pub(super) fn list(&self, location: u32) -> usize {
        // The last list that starts at or before the location. Empty lists with the same start come before it.
        self.starts.partition_point(|&start| start <= location) - 1
    }
}

/// Norms of the vectors of one list, in the form of [`FlatCpu`].
#[derive(Debug, Default)]
pub(super) struct Norms {
    pub(super) offset: Vec<f32>,
    pub(super) scale: Vec<f32>,
    pub(super) squares: Vec<f64>,
    pub(super) largest: Vec<f32>,
    /// The greatest scale of each block; 0 without scales.
    pub(super) steepest: Vec<f32>,
    /// Whether all components of a block are whole numbers.
    pub(super) whole: Vec<bool>,
    /// The norm of the list's centroid.
    pub(super) centroid: f64,
}

impl Norms {
    fn new(metric: Metric, squares: Vec<f64>) -> Norms {
        let largest = squares.chunks(BLOCK).map(|block| largest_norm(metric, block.iter().copied())).collect();
        let mut norms = Norms { largest, ..Norms::default() };
        if bound::has_offset(metric) {
            norms.offset = squares.iter().map(|&square| square as f32).collect();
        }
        if metric.divides_by_norms() {
            norms.scale = squares.iter().map(|&square| bound::scale(square)).collect();
            norms.squares = squares;
        }
        norms.steepest = vec![0.0; norms.largest.len()];
        for (steepest, scales) in norms.steepest.iter_mut().zip(norms.scale.chunks(BLOCK)) {
            *steepest = scales.iter().fold(0.0, |steepest, scale| steepest.max(*scale));
        }
        norms
    }
}

/// The data that all parts of one search read.
pub(super) struct Job<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) image: &'a Image,
    pub(super) isa: Isa,
    /// The metric of [`View`].
    pub(super) metric: Metric,
    /// How bits are counted, if vectors are of bits. Then they are compared as bytes, and have no norms.
    pub(super) count: Option<BitCount>,
    pub(super) filter: Option<&'a Bitset>,
}

/// Memory for rows of a list that are not read where they are.
#[derive(Debug, Default)]
pub(super) struct RowScratch {
    /// Codes that are not in one place.
    pub(super) codes: Vec<u64>,
    /// Rows that had to be decoded; all f32 vectors are read from their codes.
    decoded: Vec<f32>,
}

impl<'a> Job<'a> {
    /// A search of these vectors.
    pub(super) fn new(view: &'a View<'a>, image: &'a Image, isa: Isa, filter: Option<&'a Bitset>) -> Self {
        let by = if isa == Isa::Portable { BitCount::Portable } else { BitCount::detect() };
        let count = view.metric.compares_bits().then_some(by);
        Job { view, image, isa, metric: view.metric, count, filter }
    }

    /// Rows of a list as f32 for comparison; all rows except f32 vectors in one place are copied into `scratch`.
    pub(super) fn rows<'s>(&'s self, list: usize, rows: Range<usize>, scratch: &'s mut RowScratch) -> &'s [f32] {
        let (dim, count) = (self.view.dim, rows.len());
        let codes = self.view.codes(list).part(rows).slice(&mut scratch.codes);
        self.view.codec.decode(codes, &self.view.centroids[list * dim..][..dim], count, &mut scratch.decoded)
    }

    /// Whether the filter accepts the vector at this place of a list, whose ranks are `ranks`.
    #[inline]
    pub(super) fn may_be_found(&self, ranks: &[u32], place: usize) -> bool {
        self.filter.is_none_or(|filter| filter.get(ranks[place] as usize))
    }

    /// Norms of a list's vectors; the first call computes them.
    pub(super) fn norms(&self, list: usize) -> &Norms {
        self.image.norms[list].get_or_init(|| {
            let (dim, length) = (self.view.dim, self.view.length(list));
            let mut squares = Vec::with_capacity(length);
            let mut whole = Vec::with_capacity(length.div_ceil(BLOCK));
            let mut scratch = RowScratch::default();
            for start in (0..length).step_by(BLOCK) {
                let rows = self.rows(list, start..(start + BLOCK).min(length), &mut scratch);
                exact::squares(self.isa, dim, rows, &mut squares);
                whole.push(all_whole(rows));
            }
            let centroid = canonical_square(self.isa, &self.view.centroids[list * dim..][..dim]).sqrt();
            Norms { whole, centroid, ..Norms::new(self.metric, squares) }
        })
    }
}
