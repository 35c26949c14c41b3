//! Copies the results of a device to the caller's slots.

use std::ops::Range;

use bytemuck::cast_slice;
use warpann_kernels::NO_ROW;
#[cfg(any(test, feature = "shifted"))]
use warpann_kernels::select::entry::{self, EMPTY};

use crate::threads::{piece_rows, work_off};
use crate::vectors::VectorSlice;
use crate::{NONE, Result, host_memory};

/// The slots of a call: `k` ids and distances for each query.
pub(crate) struct Slots<'a> {
    /// Number of slots of each query.
    pub k: usize,
    /// The distance of an empty slot.
    pub worst: f32,
    pub ids: &'a mut [u64],
    pub distances: &'a mut [f32],
}

/// The results of a device for some queries, best first: the same number of f32 distances and u32 rows for each query.
/// A row [`NO_ROW`] is an empty result.
#[derive(Clone, Copy)]
pub(crate) struct FoundRows<'a> {
    /// Number of results of each query, at most its number of slots.
    pub each: usize,
    pub distances: &'a [f32],
    pub rows: &'a [u32],
}

impl<'a> FoundRows<'a> {
    /// Results whose distances and rows are the bytes that the device wrote.
    pub fn new(each: usize, distances: &'a [u8], rows: &'a [u8]) -> FoundRows<'a> {
        FoundRows { each, distances: cast_slice(distances), rows: cast_slice(rows) }
    }
}

impl Slots<'_> {
    /// Fills the slots of consecutive queries, from query `first` on. `id_of` maps a row to its id and must not use a
    /// rayon pool.
    pub fn fill(&mut self, first: usize, found: FoundRows<'_>, id_of: impl Fn(u32) -> u64 + Sync) {
        let (k, each, worst) = (self.k, found.each, self.worst);
        self.in_pieces(first, found.rows.len() / each, |queries, ids, distances| {
            let results = queries.start * each..queries.end * each;
            let (rows, found) = (&found.rows[results.clone()], &found.distances[results]);
            if each == k {
                return fill(ids, distances, rows, found, worst, &id_of);
            }
            let slots = ids.chunks_mut(k).zip(distances.chunks_mut(k));
            for ((ids, distances), (rows, found)) in slots.zip(rows.chunks(each).zip(found.chunks(each))) {
                fill(ids, distances, rows, found, worst, &id_of);
            }
        });
    }

    /// Fills the slots of consecutive queries, from query `first` on, with sorted entries (`entry::pack`) of which each
    /// query has `each`, at most its number of slots.
    #[cfg(any(test, feature = "shifted"))]
    pub fn fill_entries(&mut self, first: usize, each: usize, entries: &[u64]) {
        let (k, worst) = (self.k, self.worst);
        self.in_pieces(first, entries.len() / each, |queries, ids, distances| {
            let entries = &entries[queries.start * each..queries.end * each];
            if each == k {
                return fill_entries(ids, distances, entries, worst);
            }
            for ((ids, distances), entries) in ids.chunks_mut(k).zip(distances.chunks_mut(k)).zip(entries.chunks(each))
            {
                fill_entries(ids, distances, entries, worst);
            }
        });
    }

    /// Calls `fill` for pieces of `queries` queries from query `first` on: the piece's queries, counted from `first`,
    /// and their slots.
    fn in_pieces(&mut self, first: usize, queries: usize, fill: impl Fn(Range<usize>, &mut [u64], &mut [f32]) + Sync) {
        let k = self.k;
        let slots = first * k..(first + queries) * k;
        let (ids, distances) = (&mut self.ids[slots.clone()], &mut self.distances[slots]);
        let bytes = size_of_val(ids) + size_of_val(distances);
        let share = piece_rows(bytes / queries.max(1));
        let pieces = ids.chunks_mut(share * k).zip(distances.chunks_mut(share * k)).enumerate();
        work_off(pieces, bytes, |(piece, (ids, distances)): (usize, (&mut [u64], &mut [f32]))| {
            let start = piece * share;
            fill(start..start + ids.len() / k, ids, distances);
        });
    }
}

/// Searches again for the queries whose numbers `which` lists, and puts the results into their slots: `k` in `ids` and
/// `distances` for each of `queries`. On error nothing changes.
pub(crate) fn search_again(
    queries: VectorSlice<'_>,
    which: &[usize],
    k: usize,
    (ids, distances): (&mut [u64], &mut [f32]),
    search: impl FnOnce(VectorSlice<'_>, &mut [u64], &mut [f32]) -> Result<()>,
) -> Result<()> {
    if which.is_empty() {
        return Ok(());
    }
    let some = queries.gather(which)?;
    let mut found_ids = host_memory::filled(NONE, which.len() * k)?;
    let mut found_distances = host_memory::filled(0.0, which.len() * k)?;
    search(some.as_slice(queries.dim()), &mut found_ids, &mut found_distances)?;
    for ((query, found_ids), found_distances) in which.iter().zip(found_ids.chunks(k)).zip(found_distances.chunks(k)) {
        let slots = query * k..(query + 1) * k;
        ids[slots.clone()].copy_from_slice(found_ids);
        distances[slots].copy_from_slice(found_distances);
    }
    Ok(())
}

/// Fills the slots of one query. It has no branch, so that it becomes SIMD code if `id_of` allows that. Slots behind
/// the last result stay empty.
fn fill(ids: &mut [u64], distances: &mut [f32], rows: &[u32], found: &[f32], worst: f32, id_of: &impl Fn(u32) -> u64) {
    let (ids, no_ids) = ids.split_at_mut(rows.len());
    let (distances, no_distances) = distances.split_at_mut(rows.len());
    for ((id, distance), (&row, &found)) in ids.iter_mut().zip(distances).zip(rows.iter().zip(found)) {
        *id = if row == NO_ROW { NONE } else { id_of(row) };
        *distance = if row == NO_ROW { worst } else { found };
    }
    no_ids.fill(NONE);
    no_distances.fill(worst);
}

/// Fills the slots of one query, or of several that have as many entries as slots, with sorted entries. Slots behind
/// the last entry stay empty.
#[cfg(any(test, feature = "shifted"))]
pub(crate) fn fill_entries(ids: &mut [u64], distances: &mut [f32], entries: &[u64], worst: f32) {
    let (ids, no_ids) = ids.split_at_mut(entries.len());
    let (distances, no_distances) = distances.split_at_mut(entries.len());
    for ((id, distance), &entry) in ids.iter_mut().zip(distances).zip(entries) {
        *id = if entry == EMPTY { NONE } else { u64::from(entry::payload(entry)) };
        *distance = if entry == EMPTY { worst } else { entry::value_of(entry::key(entry)) };
    }
    no_ids.fill(NONE);
    no_distances.fill(worst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slots of `queries` queries, after results with empty rows were filled in for the queries from `first` on.
    fn filled(k: usize, each: usize, queries: usize, first: usize) -> (Vec<u64>, Vec<f32>) {
        let (mut ids, mut distances) = (vec![7; queries * k], vec![7.0; queries * k]);
        let count = (queries - first) * each;
        let rows: Vec<u32> = (0..count as u32).map(|at| if at % 3 == 2 { NO_ROW } else { at }).collect();
        let found: Vec<f32> = (0..count).map(|at| at as f32).collect();
        let found = FoundRows { each, distances: &found, rows: &rows };
        let mut slots = Slots { k, worst: f32::INFINITY, ids: &mut ids, distances: &mut distances };
        slots.fill(first, found, |row| u64::from(row) + 100);
        (ids, distances)
    }

    #[test]
    fn every_slot_is_filled_or_empty_and_others_are_left_alone() {
        // The last case uses several threads.
        for (k, each, queries, first) in
            [(1, 1, 1, 0), (4, 4, 9, 2), (5, 3, 9, 0), (5, 1, 7, 6), (20, 20, 9_000, 1), (20, 19, 9_000, 1)]
        {
            let (ids, distances) = filled(k, each, queries, first);
            for at in 0..queries * k {
                let (query, slot) = (at / k, at % k);
                let expected = if query < first {
                    (7, 7.0)
                } else {
                    let result = (query - first) * each + slot;
                    let there = slot < each && result % 3 != 2;
                    if there { (result as u64 + 100, result as f32) } else { (NONE, f32::INFINITY) }
                };
                assert_eq!((ids[at], distances[at]), expected, "query {query}, slot {slot} of {k}, {each} found");
            }
        }
    }

    #[test]
    fn entries_become_ids_and_distances() {
        // The last case uses several threads.
        for (k, each, queries, first) in
            [(1, 1, 1, 0), (4, 4, 9, 2), (5, 3, 9, 0), (20, 20, 9_000, 1), (20, 19, 9_000, 1)]
        {
            let (mut ids, mut distances) = (vec![7; queries * k], vec![7.0; queries * k]);
            let found: Vec<Option<(u32, f32)>> = (0..(queries - first) * each)
                .map(|at| (at % 3 != 2).then_some((at as u32 + 5, at as f32 / 2.0)))
                .collect();
            let entries: Vec<u64> = found
                .iter()
                .map(|found| found.map_or(u64::MAX, |(row, distance)| entry::pack(entry::key_of(distance), row)))
                .collect();
            let mut slots = Slots { k, worst: f32::INFINITY, ids: &mut ids, distances: &mut distances };
            slots.fill_entries(first, each, &entries);
            for at in 0..queries * k {
                let (query, slot) = (at / k, at % k);
                let there = (query >= first && slot < each).then(|| found[(query - first) * each + slot]).flatten();
                let expected = match there {
                    Some((row, distance)) => (u64::from(row), distance),
                    None if query < first => (7, 7.0),
                    None => (NONE, f32::INFINITY),
                };
                assert_eq!((ids[at], distances[at]), expected, "query {query}, slot {slot} of {k}, {each} found");
            }
        }
    }
}
