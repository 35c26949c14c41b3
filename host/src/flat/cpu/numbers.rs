//! Vectors of numbers: scores in f32 by products, with a bound of their error.

use super::among::Gathered;
use super::group::{Collected, Comparison, GroupTile, Rows};
use super::rows::FlatCpu;
use crate::flat::backend::FlatBackend;
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::Judge;
use crate::product::cpu::collect::{Collect, Collecting};
use crate::product::cpu::exact;
use crate::product::cpu::panels::Panels;
use crate::product::cpu::scan::Tile;
use crate::product::cpu::{BLOCK, Queries, as_f32, tile_rows};
use crate::simd;
use crate::{Element, Metric};

/// The queries of a group, packed in panels.
pub(super) struct Packed<'a, T: Element> {
    index: &'a FlatCpu<T>,
    queries: Queries,
    panels: Panels,
}

/// Memory for tiles as f32.
#[derive(Debug, Default)]
pub(super) struct TileMemory {
    converted: Vec<f32>,
    gathered: Gathered,
}

impl<'a, T: Element> Packed<'a, T> {
    pub(super) fn new(index: &'a FlatCpu<T>, queries: &[T]) -> Packed<'a, T> {
        let queries = Queries::new(index.isa, index.metric, index.dim, queries);
        let mut panels = Panels::new(index.isa, index.dim);
        panels.pack(queries.len(), |query, components| queries.factored(query, components));
        Packed { index, queries, panels }
    }
}

impl<T: Element> Comparison for Packed<'_, T> {
    type Scratch = TileMemory;
    const EXACT: bool = false;

    fn queries(&self) -> usize {
        self.queries.len()
    }

    fn rows(&self) -> usize {
        self.index.len()
    }

    fn tile_rows(&self) -> usize {
        tile_rows(self.index.dim)
    }

    fn row_bytes(&self) -> usize {
        self.index.dim * size_of::<T>()
    }

    fn compare<C: Collect>(&self, rows: &Rows<'_>, to: Collected<'_, C>, scratch: &mut TileMemory) {
        let index = self.index;
        let (tile, largest) = match rows {
            Rows::Range(range, _) => {
                let source = &index.rows[range.start * index.dim..range.end * index.dim];
                let tile = Tile {
                    dim: index.dim,
                    rows: as_f32(source, &mut scratch.converted),
                    first_id: range.start as u32,
                    scale: index.scale.get(range.clone()).unwrap_or_default(),
                    offset: index.offset.get(range.clone()).unwrap_or_default(),
                };
                (tile, index.largest[range.start / BLOCK])
            }
            Rows::Listed(listed) => scratch.gathered.tile(index, listed),
        };
        let Collected { limits, found } = to;
        let of = GroupTile { queries: self, rows, largest };
        self.panels.scan(&tile, &mut Collecting { bounds: &self.queries.bounds, limits, found, tile: of });
    }

    fn judge(&self, query: usize) -> impl Judge {
        PairJudge {
            index: self.index,
            query: self.queries.wide(query),
            bound: &self.queries.bounds[query],
            square: self.queries.squares[query],
            scratch: Vec::new(),
        }
    }
}

/// Computes the canonical distances of one query.
struct PairJudge<'a, T: Element> {
    index: &'a FlatCpu<T>,
    query: &'a [f64],
    bound: &'a QueryBound,
    square: f64,
    scratch: Vec<f32>,
}

impl<T: Element> Judge for PairJudge<'_, T> {
    fn canonical(&mut self, id: u32) -> f32 {
        let row = self.index.row(id);
        let row = as_f32(row, &mut self.scratch);
        let square = || self.index.squares[id as usize];
        exact::distance(self.index.isa, self.index.metric, (self.query, self.square), row, square)
    }

    fn bound(&self) -> &QueryBound {
        self.bound
    }

    fn prefetch(&mut self, id: u32) {
        simd::prefetch(self.index.row(id));
    }

    fn metric(&self) -> Metric {
        self.index.metric
    }
}
