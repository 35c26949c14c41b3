//! Queries made ready for the scan and for canonical distances.

use super::bound::{self, QueryBound, all_whole};
use super::exact;
use super::exact::Term;
use crate::element::ElementType;
use crate::parallel::{Loop, ParallelSlice};
use crate::simd::Isa;
use crate::{Element, Metric};

/// A cache line of f32, so that panels are aligned to registers.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

/// A cache line of f64.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Wide([f64; 8]);

/// Queries that one thread makes ready at least.
const ALONE: usize = 256;

/// Some queries, made ready.
#[derive(Debug)]
pub(crate) struct Queries {
    dim: usize,
    /// As f64, row-major, each from a cache line's start: what canonical distances are taken of.
    wide: Vec<Wide>,
    /// What x is multiplied by for x' of [`super::bound`].
    factors: Vec<f64>,
    /// The bound of each.
    pub(crate) bounds: Vec<QueryBound>,
    /// Σx² by the canonical definition.
    pub(crate) squares: Vec<f64>,
}

impl Queries {
    /// Makes whole `queries` ready; O(queries · dim).
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

    /// Number of queries.
    pub(crate) fn len(&self) -> usize {
        self.squares.len()
    }

    /// Query `query` as f64.
    #[inline]
    pub(crate) fn wide(&self, query: usize) -> &[f64] {
        let stride = self.dim.div_ceil(8);
        let wide: &[f64] = bytemuck::cast_slice(&self.wide[query * stride..(query + 1) * stride]);
        &wide[..self.dim]
    }

    /// What x is multiplied by for x'.
    #[inline]
    pub(crate) fn factor(&self, query: usize) -> f64 {
        self.factors[query]
    }

    /// x' of query `query`: what the scan multiplies by.
    #[inline]
    pub(crate) fn factored(&self, query: usize) -> impl Iterator<Item = f32> {
        let factor = self.factors[query];
        self.wide(query).iter().map(move |x| (x * factor) as f32)
    }
}

/// One query made ready for canonical distances from single vectors.
#[derive(Debug)]
pub(crate) struct Scorer {
    isa: Isa,
    metric: Metric,
    wide: Vec<f64>,
    square: f64,
}

impl Scorer {
    /// Makes `query` ready.
    pub(crate) fn new<T: Element>(metric: Metric, query: &[T]) -> Self {
        let isa = Isa::detect();
        let wide = query.iter().map(|x| f64::from(x.to_f32())).collect();
        Self { isa, metric, wide, square: canonical_square(isa, query) }
    }

    /// The canonical distance of `row`; `scratch` is for its conversion.
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

/// `values` as f32: themselves, or converted into `scratch`.
#[inline]
pub(crate) fn as_f32<'a, T: Element>(values: &'a [T], scratch: &'a mut Vec<f32>) -> &'a [f32] {
    if T::TYPE == ElementType::F32 {
        return bytemuck::cast_slice(values);
    }
    scratch.resize(values.len(), 0.0);
    convert(values, scratch);
    scratch
}

/// Exact conversion, in the form the compiler vectorises.
pub(crate) fn convert<T: Element>(from: &[T], to: &mut [f32]) {
    if T::TYPE == ElementType::F16 {
        // The slice form looks for the processor's conversion once.
        let from: &[half::f16] = bytemuck::cast_slice(from);
        half::slice::HalfFloatSliceExt::convert_to_f32_slice(from, to);
        return;
    }
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}
