//! Queries, converted for the scan and for canonical distances.

use std::ops::Range;

use super::bound::{self, QueryBound, all_whole};
use super::exact;
use super::exact::Term;
use crate::element::ElementType;
use crate::parallel::{Loop, ParallelSlice};
use crate::simd::Isa;
use crate::{Element, Metric};

/// A cache line of f32. The type aligns panels to registers.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

/// A cache line of f64, aligned to 64 bytes.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Wide([f64; 8]);

/// Smallest number of queries of one task.
const ALONE: usize = 256;

/// A batch of converted queries, with their error bounds.
#[derive(Debug)]
pub(crate) struct Queries {
    dim: usize,
    /// The queries as f64, for canonical distances: row-major, each at the start of a cache line.
    wide: Vec<Wide>,
    /// The factor of each query x that gives x' of [`super::bound`].
    factors: Vec<f64>,
    /// The error bound of each query.
    pub(crate) bounds: Vec<QueryBound>,
    /// Σx² of each query by the canonical definition.
    pub(crate) squares: Vec<f64>,
}

impl Queries {
    /// Converts `queries`, whole rows of `dim` components; O(queries · dim).
    pub(crate) fn new<T: Element>(isa: Isa, metric: Metric, dim: usize, queries: &[T]) -> Self {
        let (stride, count) = (dim.div_ceil(8), queries.len() / dim);
        let mut wide = vec![Wide([0.0; 8]); count * stride];
        let make_ready = |scratch: &mut Vec<f32>, (wide, query): (&mut [Wide], &[T])| {
            let wide: &mut [f64] = &mut bytemuck::cast_slice_mut(wide)[..dim];
            let query = as_f32(query, scratch);
            wide.iter_mut().zip(query).for_each(|(wide, &x)| *wide = f64::from(x));
            let square = exact::sum(isa, Term::Product, wide, query);
            (square, QueryBound::new(metric, dim, square).with_whole(all_whole(query)))
        };
        let each = wide.par_chunks_exact_mut(stride).zip(queries.par_chunks_exact(dim)).with_min_len(ALONE);
        let mut ready = Vec::new();
        each.map_init(Vec::new, make_ready, &mut ready);
        let (squares, bounds): (Vec<f64>, Vec<QueryBound>) = ready.into_iter().unzip();
        let factors = squares.iter().map(|&square| bound::factor(metric, square)).collect();
        Self { dim, wide, factors, bounds, squares }
    }

    /// `count` queries of bits, which are counted and not converted. Of a bound only the metric has a meaning.
    pub(crate) fn of_bits(count: usize) -> Self {
        let bounds = vec![QueryBound::new(Metric::Hamming, 0, 0.0); count];
        Self { dim: 0, wide: Vec::new(), factors: Vec::new(), bounds, squares: vec![0.0; count] }
    }

    /// Number of queries in the batch.
    pub(crate) fn len(&self) -> usize {
        self.squares.len()
    }

    /// The components of query `query` as f64.
    #[inline]
    pub(crate) fn wide(&self, query: usize) -> &[f64] {
        let stride = self.dim.div_ceil(8);
        let wide: &[f64] = bytemuck::cast_slice(&self.wide[query * stride..(query + 1) * stride]);
        &wide[..self.dim]
    }

    /// The factor of query `query` that gives x' of [`super::bound`].
    #[inline]
    pub(crate) fn factor(&self, query: usize) -> f64 {
        self.factors[query]
    }

    /// Some of the components of x' of query `query`, which the scan multiplies with rows.
    #[inline]
    pub(crate) fn factored(&self, query: usize, components: Range<usize>) -> impl Iterator<Item = f32> {
        let factor = self.factors[query];
        self.wide(query)[components].iter().map(move |x| (x * factor) as f32)
    }
}

/// One query, converted for canonical distances from single vectors.
#[derive(Debug)]
pub(crate) struct Scorer {
    isa: Isa,
    metric: Metric,
    wide: Vec<f64>,
    /// Σx², for metrics that divide by norms.
    square: f64,
}

impl Scorer {
    /// Converts `query` and computes Σx² where it is needed; O(dim).
    pub(crate) fn new<T: Element>(metric: Metric, query: &[T]) -> Self {
        let isa = Isa::detect();
        let wide = query.iter().map(|x| f64::from(x.to_f32())).collect();
        let square = if metric.divides_by_norms() { canonical_square(isa, query) } else { 0.0 };
        Self { isa, metric, wide, square }
    }

    /// The canonical distance of `row`, which is converted in `scratch`.
    pub(crate) fn distance<T: Element>(&self, row: &[T], scratch: &mut Vec<f32>) -> f32 {
        let row = as_f32(row, scratch);
        let square = || canonical_square(self.isa, row);
        exact::distance(self.isa, self.metric, (&self.wide, self.square), row, square)
    }
}

/// Σy² by the canonical definition.
pub(crate) fn canonical_square<T: Element>(isa: Isa, row: &[T]) -> f64 {
    let mut narrow = Vec::new();
    let narrow = as_f32(row, &mut narrow);
    let wide: Vec<f64> = narrow.iter().map(|&value| f64::from(value)).collect();
    exact::sum(isa, Term::Product, &wide, narrow)
}

/// `values` as f32: the same slice if they are f32, else converted in `scratch`.
#[inline]
pub(crate) fn as_f32<'a, T: Element>(values: &'a [T], scratch: &'a mut Vec<f32>) -> &'a [f32] {
    if T::TYPE == ElementType::F32 {
        return bytemuck::cast_slice(values);
    }
    scratch.resize(values.len(), 0.0);
    convert(values, scratch);
    scratch
}

/// Converts exactly, in a form that the compiler vectorises.
pub(crate) fn convert<T: Element>(from: &[T], to: &mut [f32]) {
    if T::TYPE == ElementType::F16 {
        // The slice form detects the processor's conversion instruction once.
        let from: &[half::f16] = bytemuck::cast_slice(from);
        half::slice::HalfFloatSliceExt::convert_to_f32_slice(from, to);
        return;
    }
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}
