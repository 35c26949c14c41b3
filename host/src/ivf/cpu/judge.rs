//! Canonical distances of the candidates that passed the scan.

use super::job::Job;
use crate::ElementType;
use crate::ivf::lists::CodeRows;
use crate::product::cpu::bits::BitCount;
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{Judge, TOGETHER};
use crate::product::cpu::exact;
use crate::simd;

/// A query as vectors are compared with it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Query<'a> {
    /// The components of a query as f64, and Σx².
    Numbers(&'a [f64], f64),
    /// The bits of a query, and the instructions that count those in which a vector differs.
    Bits(&'a [u8], BitCount),
}

/// Computes canonical distances of one query from vectors, which are given by location.
pub(super) struct PairJudge<'a> {
    job: &'a Job<'a>,
    query: Query<'a>,
    bound: &'a QueryBound,
    /// Whether codes are f32 vectors, which are read without a copy. Through the codec, a search for 100 neighbours
    /// takes a seventh longer.
    in_place: bool,
    /// The list of the last judged vector.
    here: Place<'a>,
    /// The list of the last prefetched vector.
    ahead: Place<'a>,
    /// The list of the last vector whose rank was asked for.
    ranked: Place<'a>,
    /// Memory for rows that must be decoded.
    scratch: &'a mut Vec<f32>,
}

/// A list, its locations, codes and ranks. Consecutive candidates are mostly in the same list.
#[derive(Debug, Default)]
struct Place<'a> {
    list: usize,
    range: std::ops::Range<u32>,
    codes: CodeRows<'a>,
    ranks: &'a [u32],
}

impl<'a> Place<'a> {
    /// The list of a location, and the place in the list.
    #[inline]
    fn find(&mut self, job: &'a Job<'a>, location: u32) -> (usize, usize) {
        if !self.range.contains(&location) {
            self.list = job.image.list(location);
            self.range = job.image.range(self.list);
            (self.codes, self.ranks) = (job.view.codes(self.list), job.view.ranks(self.list));
        }
        (self.list, (location - self.range.start) as usize)
    }

    /// The list of a location, and the code.
    #[inline]
    fn code(&mut self, job: &'a Job<'a>, location: u32) -> (usize, &'a [u8]) {
        let (list, place) = self.find(job, location);
        (list, self.codes.get(place))
    }
}

impl<'a> PairJudge<'a> {
    /// Takes a query, and its bound.
    pub(super) fn new(
        job: &'a Job<'a>,
        (query, bound): (Query<'a>, &'a QueryBound),
        scratch: &'a mut Vec<f32>,
    ) -> Self {
        let in_place = job.view.codec.in_place() && job.view.element == ElementType::F32;
        let [here, ahead, ranked] = [(); 3].map(|()| Place::default());
        PairJudge { job, query, bound, in_place, here, ahead, ranked, scratch }
    }

    /// The distance of a vector at a place of a list, given as f32.
    fn distance(&self, query: (&[f64], f64), (list, place): (usize, usize), row: &[f32]) -> f32 {
        let job = self.job;
        exact::distance(job.isa, job.metric, query, row, || job.norms(list).squares[place])
    }
}

impl Judge for PairJudge<'_> {
    fn canonical(&mut self, id: u32) -> f32 {
        let (list, place) = self.here.find(self.job, id);
        let (query, square) = match self.query {
            Query::Numbers(query, square) => (query, square),
            Query::Bits(query, by) => return by.difference(query, self.here.codes.get(place)) as f32,
        };
        let (query, at) = ((query, square), (list, place));
        if self.in_place {
            return self.distance(query, at, bytemuck::cast_slice(self.here.codes.get(place)));
        }
        let mut row = std::mem::take(self.scratch);
        let (view, dim) = (self.job.view, self.job.view.dim);
        let centroid = &view.centroids[list * dim..][..dim];
        let distance = self.distance(query, at, view.codec.decode(self.here.codes.get(place), centroid, 1, &mut row));
        *self.scratch = row;
        distance
    }

    fn canonicals(&mut self, ids: &[u32], to: &mut [f32]) {
        let (job, dim) = (self.job, self.job.view.dim);
        let (query, square) = match self.query {
            Query::Numbers(query, square) if !job.view.codec.in_place() => (query, square),
            _ => {
                ids.iter().zip(to).for_each(|(&id, to)| *to = self.canonical(id));
                return;
            }
        };
        // All codes are decoded before the first row is read: a load of several short stores waits until they are in
        // the cache.
        let mut rows = std::mem::take(self.scratch);
        rows.resize(rows.len().max(TOGETHER * dim), 0.0);
        let mut places = [(0, 0); TOGETHER];
        for ((&id, at), row) in ids.iter().zip(&mut places).zip(rows.chunks_exact_mut(dim)) {
            let (list, place) = self.here.find(job, id);
            let code = self.here.codes.get(place);
            job.view.codec.decode_into(code, &job.view.centroids[list * dim..][..dim], row);
            *at = (list, place);
        }
        for ((to, row), at) in to.iter_mut().zip(rows.chunks_exact(dim)).zip(places) {
            *to = self.distance((query, square), at, row);
        }
        *self.scratch = rows;
    }

    fn rank(&mut self, id: u32) -> u32 {
        let (_, place) = self.ranked.find(self.job, id);
        self.ranked.ranks[place]
    }

    fn bound(&self) -> &QueryBound {
        self.bound
    }

    fn prefetch(&mut self, id: u32) {
        simd::prefetch(self.ahead.code(self.job, id).1);
    }

    fn metric(&self) -> crate::Metric {
        self.job.metric
    }
}
