//! Canonical distances of what passed the scan.

use super::Job;
use crate::ElementType;
use crate::ivf::backend::View;
use crate::product::cpu::bound::QueryBound;
use crate::product::cpu::candidates::{Judge, TOGETHER};
use crate::product::cpu::exact;
use crate::simd;

/// Canonical distances of one query; vectors are named by location.
pub(super) struct PairJudge<'a> {
    job: &'a Job<'a>,
    query: &'a [f64],
    bound: &'a QueryBound,
    square: f64,
    /// Whether codes are f32 vectors, which are read where they lie. Through the codec a search for 100 neighbours takes a seventh longer.
    in_place: bool,
    /// Where the last one judged was.
    here: Place<'a>,
    /// Where the last one fetched was.
    ahead: Place<'a>,
    /// For rows that are not stored as they are compared.
    scratch: &'a mut Vec<f32>,
}

/// A list, and its locations. Candidates are looked up list after list, mostly.
#[derive(Debug, Default)]
struct Place<'a> {
    list: usize,
    range: std::ops::Range<u32>,
    codes: &'a [u8],
}

impl<'a> Place<'a> {
    /// List, and place in it, of a location.
    #[inline]
    fn find(&mut self, view: &View<'a>, location: u32) -> (usize, usize) {
        if !self.range.contains(&location) {
            self.list = view.place(location).0;
            let first = view.first_location(self.list);
            self.range = first..first + view.length(self.list) as u32;
            self.codes = view.codes(self.list);
        }
        (self.list, (location - self.range.start) as usize)
    }

    /// List, and code, of a location.
    #[inline]
    fn code(&mut self, view: &View<'a>, location: u32) -> (usize, &'a [u8]) {
        let ((list, place), bytes) = (self.find(view, location), view.code_bytes());
        (list, &self.codes[place * bytes..(place + 1) * bytes])
    }
}

impl<'a> PairJudge<'a> {
    /// Of a query given as f64, with Σx² and its bound.
    pub(super) fn new(
        job: &'a Job<'a>,
        (query, square, bound): (&'a [f64], f64, &'a QueryBound),
        scratch: &'a mut Vec<f32>,
    ) -> Self {
        let in_place = job.view.codec.in_place() && job.view.element == ElementType::F32;
        PairJudge { job, query, bound, square, in_place, here: Place::default(), ahead: Place::default(), scratch }
    }

    fn distance(&self, list: usize, place: usize, row: &[f32]) -> f32 {
        let job = self.job;
        exact::distance(job.isa, job.metric, (self.query, self.square), row, || job.norms(list).squares[place])
    }
}

impl Judge for PairJudge<'_> {
    fn canonical(&mut self, id: u32) -> f32 {
        let (list, place) = self.here.find(self.job.view, id);
        if self.in_place {
            let bytes = self.job.view.code_bytes();
            let row = &self.here.codes[place * bytes..(place + 1) * bytes];
            return self.distance(list, place, bytemuck::cast_slice(row));
        }
        let mut row = std::mem::take(self.scratch);
        let distance = self.distance(list, place, self.job.rows(list, place..place + 1, &mut row));
        *self.scratch = row;
        distance
    }

    fn canonicals(&mut self, ids: &[u32], to: &mut [f32]) {
        let (job, dim) = (self.job, self.job.view.dim);
        if job.view.codec.in_place() {
            ids.iter().zip(to).for_each(|(&id, to)| *to = self.canonical(id));
            return;
        }
        // All decoded before the first is read: a register of several short stores waits for them to reach the cache.
        let mut rows = std::mem::take(self.scratch);
        rows.resize(rows.len().max(TOGETHER * dim), 0.0);
        for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(dim)) {
            let (list, code) = self.here.code(job.view, id);
            job.view.codec.decode_into(code, &job.view.centroids[list * dim..][..dim], row);
        }
        // Never the cosine, for which alone the list matters: codes are of normalised vectors then.
        to.iter_mut().zip(rows.chunks_exact(dim)).for_each(|(to, row)| *to = self.distance(0, 0, row));
        *self.scratch = rows;
    }

    fn rank(&self, id: u32) -> u32 {
        self.job.directory.ranks()[id as usize]
    }

    fn bound(&self) -> &QueryBound {
        self.bound
    }

    fn prefetch(&mut self, id: u32) {
        simd::prefetch(self.ahead.code(self.job.view, id).1);
    }

    fn metric(&self) -> crate::Metric {
        self.job.metric
    }
}
