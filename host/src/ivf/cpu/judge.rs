//! Canonical distances of what passed the scan.

use super::Job;
use crate::Element;
use crate::cpu::bound::QueryBound;
use crate::cpu::candidates::{Judge, TOGETHER};
use crate::cpu::{exact, simd};
use crate::ivf::backend::View;
use crate::ivf::codec::Codec;

/// Canonical distances of one query; vectors are named by location.
pub(super) struct PairJudge<'a, T: Element> {
    job: &'a Job<'a, T>,
    query: &'a [f64],
    bound: &'a QueryBound,
    square: f64,
    /// Where the last one judged was.
    here: Place,
    /// Where the last one fetched was.
    ahead: Place,
    row: Vec<f32>,
}

/// A list, and its locations. Candidates are looked up list after list, mostly.
#[derive(Debug, Default)]
struct Place {
    list: usize,
    range: std::ops::Range<u32>,
}

impl Place {
    /// List, and place in it, of a location.
    #[inline]
    fn find<T: Element>(&mut self, view: &View<'_, T>, location: u32) -> (usize, usize) {
        if !self.range.contains(&location) {
            self.list = view.place(location).0;
            let first = view.first_location(self.list);
            self.range = first..first + view.length(self.list) as u32;
        }
        (self.list, (location - self.range.start) as usize)
    }
}

impl<'a, T: Element> PairJudge<'a, T> {
    /// Of a query given as f64, with Σx² and its bound.
    pub(super) fn new(job: &'a Job<'a, T>, (query, square, bound): (&'a [f64], f64, &'a QueryBound)) -> Self {
        PairJudge { job, query, bound, square, here: Place::default(), ahead: Place::default(), row: Vec::new() }
    }

    fn distance(&self, list: usize, place: usize, row: &[f32]) -> f32 {
        let job = self.job;
        exact::distance(job.isa, job.metric, (self.query, self.square), row, || job.norms(list).squares[place])
    }
}

impl<T: Element> Judge for PairJudge<'_, T> {
    fn canonical(&mut self, id: u32) -> f32 {
        let (list, place) = self.here.find(self.job.view, id);
        let mut row = std::mem::take(&mut self.row);
        let distance = self.distance(list, place, self.job.rows(list, place..place + 1, &mut row));
        self.row = row;
        distance
    }

    fn canonicals(&mut self, ids: &[u32], to: &mut [f32]) {
        let (job, dim) = (self.job, self.job.view.dim);
        let Codec::Pq(pq) = job.view.codec else {
            ids.iter().zip(to).for_each(|(&id, to)| *to = self.canonical(id));
            return;
        };
        // All decoded before the first is read: a register of several short stores waits for them to reach the cache.
        let mut rows = std::mem::take(&mut self.row);
        rows.resize(TOGETHER * dim, 0.0);
        let bytes = job.view.code_bytes();
        for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(dim)) {
            let (list, place) = self.here.find(job.view, id);
            let code = &job.view.codes(list)[place * bytes..(place + 1) * bytes];
            pq.decode_into(code, &job.view.centroids[list * dim..][..dim], row);
        }
        // Never the cosine, for which alone the list matters: codes are of normalised vectors then.
        to.iter_mut().zip(rows.chunks_exact(dim)).for_each(|(to, row)| *to = self.distance(0, 0, row));
        self.row = rows;
    }

    fn rank(&self, id: u32) -> u32 {
        self.job.directory.ranks()[id as usize]
    }

    fn bound(&self) -> &QueryBound {
        self.bound
    }

    fn prefetch(&mut self, id: u32) {
        let (list, place) = self.ahead.find(self.job.view, id);
        let bytes = self.job.view.code_bytes();
        simd::prefetch(&self.job.view.codes(list)[place * bytes..(place + 1) * bytes]);
    }

    fn metric(&self) -> crate::Metric {
        self.job.metric
    }
}
