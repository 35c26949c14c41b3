//! Searches of queries that may each find other rows, in one launch for all.
//!
//! ```text
//! sets of rows ──list_rows──► a list of rows for each query ──canonical──► their distances ──select──► the k best
//! ```
//!
//! # Which sets share a launch
//! A search among the rows of one set reads these rows anyway. Where the filter on tensor cores would not pay for the
//! queries of the set, that search computes the canonical distances of the accepted rows, and so does this one, for all
//! such sets at once. The other sets have a search each. The results are the same: canonical distances
//! have one definition, and equal ones are in the order of rows.
//!
//! # Cost
//! For a set of m of n rows that q queries have: min(m, n / 32) words of 4 bytes over the bus, where bits alone would
//! be 125 kB for a million rows; 8 bytes of scratch for each place of the longest list of a tile, for each query; q · m
//! canonical distances. On the emulated driver a call of 16 queries with 16 sets makes 19 calls of the driver, and 16
//! searches make 448 (`tests/tests/driver_load.rs`, 2026-11-28). Not measured on a GPU.

use std::borrow::Cow;
use std::ops::Range;

use warpann_kernels::flat::list_rows::ListRows;
use warpann_kernels::product::canonical::Canonical;

use super::among::numbers_of;
use super::block::Block;
use super::rows::BaseRows;
use super::{FlatDevice, Resident, TILE_QUERIES};
use crate::device::lanes::Lane;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved};
use crate::device::tiling::{Budget, Tiling};
use crate::filter::FilterGroup;
use crate::flat::backend::FlatBackend;
use crate::index::each::{Slots, search_all, slots_of_groups};
use crate::neighbors::slots;
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set, upload_vectors};
use crate::search_options::SearchRequest;
use crate::select::gpu::{Columns, Select, SelectPlan, select};
use crate::threads::apart;
use crate::vectors::VectorSlice;
use crate::{Bitset, Error, Result, SearchOptions, SearchStatistics, events, host_memory};

/// A bit for each row, set if some queries may find the row; the number of these rows; and the places of the queries.
#[derive(Clone)]
pub(crate) struct RowSet<'a> {
    pub(crate) rows: &'a Bitset,
    pub(crate) count: usize,
    pub(crate) queries: Range<usize>,
}

/// Largest size of the scratch of a tile. The list of a single query is smaller, even if its vectors have one
/// component.
const MOST_BYTES: u64 = 1 << 30;

/// The largest numbers of a batch of sets.
#[derive(Clone, Copy)]
struct Most {
    /// Rows of a set.
    rows: u32,
    /// Words of a set, in the form that has fewer.
    words: u32,
}

/// The scratch of a tile of queries.
struct ListsPlan {
    queries: SetLayout,
    /// For each query the place of its set and its number of rows, and then the sets.
    words: Reserved<u32>,
    rows: Reserved<u32>,
    distances: Reserved<f32>,
    keys: Reserved<f32>,
    ids: Reserved<u32>,
    selection: SelectPlan,
    bytes: usize,
}

impl ListsPlan {
    fn new(shape: VectorShape, queries: usize, most: Most, k: u32, limits: &Limits) -> ListsPlan {
        let mut layout = Layout::default();
        let (places, results) = (queries.saturating_mul(most.rows as usize), queries.saturating_mul(k as usize));
        let selection = SelectPlan::by_table(&mut layout, queries as u32, Columns::from(most.rows), k, limits);
        let mut plan = ListsPlan {
            queries: SetLayout::reserve(&mut layout, shape, queries),
            words: layout.array(queries.saturating_mul(most.words as usize + 2)),
            rows: layout.array(places),
            distances: layout.array(places),
            keys: layout.array(results),
            ids: layout.array(results),
            selection,
            bytes: 0,
        };
        plan.bytes = layout.bytes();
        plan
    }
}

impl<'a> RowSet<'a> {
    /// The sets of groups, of which each has accepted rows and their number.
    pub(crate) fn all(
        accepted: &'a [(Cow<'a, Bitset>, usize)],
        groups: &'a [FilterGroup<'_>],
    ) -> impl Iterator<Item = RowSet<'a>> {
        let set = |((rows, count), (_, queries)): (&'a (Cow<'a, Bitset>, usize), &FilterGroup<'_>)| RowSet {
            rows,
            count: *count,
            queries: queries.clone(),
        };
        accepted.iter().zip(groups).map(set)
    }

    /// Number of words of a set of bits.
    fn bit_words(&self) -> usize {
        self.rows.len().div_ceil(32)
    }

    /// Number of words of the form that has fewer.
    fn words(&self) -> usize {
        self.count.min(self.bit_words())
    }

    /// Appends the set in the form that has fewer words.
    fn pack(&self, to: &mut Vec<u32>) -> Result<()> {
        host_memory::reserve(to, self.words())?;
        if self.count < self.bit_words() {
            to.extend(numbers_of(self.rows)?);
        } else {
            to.extend_from_slice(&bytemuck::cast_slice(self.rows.words())[..self.bit_words()]);
        }
        Ok(())
    }
}

impl FlatDevice {
    /// Searches for the `k` best rows of each query among those of its set. The places of the sets ascend, and the
    /// results of other queries stay as they are. There is at least one row. Returns the number of searches.
    ///
    /// # Errors
    /// Those of [`FlatBackend::search`]; some results may then be filled.
    pub(crate) fn search_sets(
        &self,
        queries: VectorSlice<'_>,
        sets: &[RowSet<'_>],
        k: usize,
        (ids, distances): Slots<'_>,
    ) -> Result<u64> {
        let resident = match &self.rows {
            BaseRows::Device(resident) => Some(&**resident),
            BaseRows::Host { .. } => None,
        };
        let (shared, others): (Vec<&RowSet<'_>>, Vec<_>) = sets.iter().partition(|set| self.shares(set));
        let Some(resident) = resident.filter(|_| shared.len() > 1) else {
            return self.search_apart(queries, &sets.iter().collect::<Vec<_>>(), k, (ids, distances));
        };
        let searches = self.search_apart(queries, &others, k, (ids, distances))?;
        // `apart` keeps a pool thread from starting another search while it has a lane.
        match apart(|| self.search_lists(resident, queries, &shared, k, (ids, distances))) {
            // The lists of one query may be too long, where a search by itself takes rows in pieces.
            Err(Error::OutOfDeviceMemory { .. }) => {
                Ok(searches + self.search_apart(queries, &shared, k, (ids, distances))?)
            }
            result => result.map(|()| searches + 1),
        }
    }

    /// As [`search_sets`](Self::search_sets) by a search for each set.
    fn search_apart(
        &self,
        queries: VectorSlice<'_>,
        sets: &[&RowSet<'_>],
        k: usize,
        results: Slots<'_>,
    ) -> Result<u64> {
        let slots = slots_of_groups(k, sets.iter().map(|set| set.queries.clone()), results);
        search_all(sets.iter().zip(slots).collect(), |(set, (ids, distances)): (&&RowSet<'_>, Slots<'_>)| {
            let some = queries.part(set.queries.clone());
            let request = SearchRequest::new(some, &SearchOptions::new(), Some(set.rows));
            self.search(&request, k, ids, distances)?;
            Ok(SearchStatistics { passes: 1, ..SearchStatistics::default() })
        })
        .map(|statistics| statistics.passes)
    }

    /// Whether a search among the rows of a set computes the canonical distances of all of them.
    fn shares(&self, set: &RowSet<'_>) -> bool {
        let pairs = (set.count as u64).saturating_mul(set.queries.len() as u64);
        pairs.saturating_mul(self.shape.dim as u64) <= self.tuning.shared_work
    }

    /// As [`search_sets`](Self::search_sets) by lists of rows.
    fn search_lists(
        &self,
        resident: &Resident,
        queries: VectorSlice<'_>,
        sets: &[&RowSet<'_>],
        k: usize,
        (ids, distances): Slots<'_>,
    ) -> Result<()> {
        let block = self.prepared_block(resident)?;
        // Places of queries, and the set of each.
        let places: Vec<usize> = sets.iter().flat_map(|set| set.queries.clone()).collect();
        let of: Vec<&RowSet<'_>> = sets.iter().flat_map(|set| set.queries.clone().map(|_| *set)).collect();
        let most = sets.iter().fold(Most { rows: 1, words: 1 }, |most, set| Most {
            rows: most.rows.max(set.count as u32),
            words: most.words.max(set.words() as u32),
        });
        let (count, limits) = (places.len(), self.runtime.limits());
        let each = k.min(most.rows as usize) as u32;
        let plan = |queries| Ok(ListsPlan::new(self.shape, queries, most, each, limits).bytes);
        let free = self.budget.saturating_sub(self.resident_bytes(resident)).min(MOST_BYTES);
        // The place of a set fits 32 bits.
        let tile = TILE_QUERIES.min((u32::MAX / most.words) as usize).max(1);
        let tiling = Tiling::new(Budget::new(&self.runtime, free), (count, tile), 1, plan)?;
        events::path("exact search", || self.runtime.describe(), "lists of accepted rows", count);

        let (some, slots) = (queries.gather(&places)?, count * k);
        let some = some.as_slice(self.shape.dim);
        let (mut found_ids, mut found) = (host_memory::zeroed(slots)?, host_memory::zeroed(slots)?);
        let outs = found_ids.chunks_mut(tiling.rows * k).zip(found.chunks_mut(tiling.rows * k));
        tiling.run(&self.runtime, &self.lanes, outs, |lane, tile, (ids, distances)| {
            let slots = slots::Slots { k, worst: self.shape.metric.worst(), ids, distances };
            self.search_tile_of_lists(&block, lane, some.part(tile.clone()), &of[tile], (most, each), slots)
        })?;
        for (&place, (found_ids, found)) in places.iter().zip(found_ids.chunks(k).zip(found.chunks(k))) {
            ids[place * k..][..k].copy_from_slice(found_ids);
            distances[place * k..][..k].copy_from_slice(found);
        }
        Ok(())
    }

    /// Searches for `each` rows of each query of a tile; `of` has the sets of the queries.
    fn search_tile_of_lists(
        &self,
        block: &Block,
        lane: &mut Lane,
        queries: VectorSlice<'_>,
        of: &[&RowSet<'_>],
        (most, each): (Most, u32),
        mut slots: slots::Slots<'_>,
    ) -> Result<()> {
        let (runtime, shape, count) = (&self.runtime, self.shape, queries.len());
        let plan = ListsPlan::new(shape, count, most, each, runtime.limits());
        let (mut starts, mut sets) = (host_memory::with_room(2 * count)?, Vec::new());
        for (at, set) in of.iter().enumerate() {
            // Queries of one set stand together.
            match starts.last() {
                Some(&start) if std::ptr::eq(of[at - 1], *set) => starts.push(start),
                _ => {
                    starts.push(sets.len() as u32);
                    set.pack(&mut sets)?;
                }
            }
        }
        starts.extend(of.iter().map(|set| set.count as u32));
        let scratch = lane.scratch(runtime, plan.bytes)?;
        let on = OnStream { runtime, stream: &lane.stream };
        let set = VectorSet::new(scratch, plan.queries, count as u32);
        let (words, rows, distances) = (scratch.at(plan.words), scratch.at(plan.rows), scratch.at(plan.distances));
        let (starts_at, sets_at) = (words.take(2 * count), words.skip(2 * count).take(sets.len()));
        let counts = starts_at.skip(count);
        let lists = ListRows {
            query_count: count as u32,
            sets: sets_at.into(),
            starts: starts_at.take(count).into(),
            counts: counts.into(),
            bit_words: of[0].bit_words() as u32,
            stride: most.rows,
            rows,
        };
        let canonical = Canonical {
            rows: Some(rows.into()),
            counts: Some(counts.into()),
            columns: most.rows,
            list_stride: u64::from(most.rows),
            ..block.canonical(set, distances)
        };
        let best = Select {
            keys: distances.into(),
            ids: Some(rows.into()),
            row_stride: u64::from(most.rows),
            starts: None,
            lengths: Some(counts.into()),
            columns: most.rows,
            rows: count as u32,
            k: each,
            best: shape.best(),
            out_keys: scratch.at(plan.keys),
            out_ids: scratch.at(plan.ids),
        };
        // SAFETY: the plan reserved every part for this number of queries and the largest set, the rows are those of
        // the block, which is prepared, and the stream runs these in order.
        unsafe {
            runtime.copy_to_device(on.stream, starts_at, &starts)?;
            runtime.copy_to_device(on.stream, sets_at, &sets)?;
            upload_vectors(runtime, on.stream, shape, set.rows(), queries)?;
            runtime.launch(on.stream, &ListRows::KERNEL, lists.config(), lists)?;
            if shape.metric.divides_by_norms() {
                prepare_set(runtime, on.stream, shape, set, false)?;
            }
            block.launch_canonical(runtime, on.stream, canonical, most.rows)?;
            select(runtime, on.stream, &best, &plan.selection, scratch)?;
            block.copy_results(on, &best, None, &mut slots).map(drop)
        }
    }
}
