//! Search on several machines: each rank holds a shard, and all ranks together behave as one index.
//!
//! # Problem and algorithm
//! A base that is too large for one machine is divided into shards of contiguous rows, one for each rank (a process, on
//! this machine or another). Each query goes to every shard. The k best of all shards' k best are the k best of the
//! base (Johnson, Douze and Jégou, "Billion-scale similarity search with GPUs", section 5.4):
//!
//! ```text
//! build, inverted file: rank 0 trains; its centroids and codebooks go to every rank
//! build:                rank r of R adds rows [n·r/R, n·(r+1)/R), under the ids that they have in the whole base
//! search:               every rank searches all queries in its shard; rank 0 merges by (distance, lower id)
//! ```
//!
//! # Results
//! Results have the same bits as those of one index of the whole base. A canonical distance ([`crate::metric`]) depends
//! on the query and the vector alone; the lists that a query probes depend on the centroids alone; every shard returns
//! exactly its k best. So the merged k best by (distance, lower id) are those of one index.
//!
//! A filtered search of inverted files needs [`SearchOptions::widen`] set to false for that. Otherwise a shard reads
//! more lists until it has k accepted vectors itself, where one index would stop earlier. The merged vectors are then
//! at least as near, place by place.
//!
//! # Failure
//! The other ranks must not wait for a rank that has failed. Before ranks exchange results they [`agree`] that all have
//! one. If a rank has failed, it returns its error and all others return [`Error::RankFailed`]; every rank may then
//! continue with the next call. If a process dies, the transport must handle it: MPI ends the others.
//!
//! # Cost
//! A search costs the search of the shard, and 12 bytes for each result from each rank to rank 0, which merges R ·
//! queries · k results. Building an inverted file sends the centroids and codebooks once to each rank.
//!
//! The trait [`Ranks`] transfers bytes between ranks. `Mpi`, in builds with the feature `mpi`, implements it.

#[cfg(feature = "mpi")]
mod mpi;

use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};

#[cfg(feature = "mpi")]
pub use self::mpi::Mpi;
use crate::io::Open;
use crate::ivf::{IvfIndexBuilder, SearchOptions};
use crate::validate::{check_length, check_whole};
use crate::{
    Element, Error, FlatIndex, FlatIndexBuilder, IvfIndex, Metric, NONE, Neighbors, Placement, Result, shards,
};

/// A group of processes that call the same collective operations in the same order, each in one thread.
///
/// An operation returns when this rank's part is done. Operations do not fail: if a rank is lost, the transport ends
/// the program. A rank whose call panics is lost: the others wait for it.
pub trait Ranks {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;
    /// Number of ranks; at least 1.
    fn count(&self) -> usize;
    /// Collective: returns the bytes of rank 0 at every rank. The arguments of other ranks are ignored.
    fn broadcast(&self, bytes: Vec<u8>) -> Vec<u8>;
    /// Collective: returns the bytes of every rank at rank 0, in the order of ranks, and nothing at the others.
    fn gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>>;
}

/// The rows of this rank's shard of a base of `rows` rows. Shards are contiguous, cover each row once, and differ by at
/// most one row in size.
pub fn share(rows: usize, ranks: &impl Ranks) -> Range<usize> {
    let (rank, count) = (ranks.rank() as u128, ranks.count() as u128);
    // The quotients are at most `rows`.
    let start = |rank: u128| (rows as u128 * rank / count) as usize;
    start(rank)..start(rank + 1)
}

/// Collective: returns `outcome` if every rank has succeeded. Otherwise a rank that has failed returns its error, and
/// the others return [`Error::RankFailed`] with the lowest rank that has failed.
///
/// # Errors
/// The error of `outcome`, or [`Error::RankFailed`] if another rank has failed.
pub fn agree<V, E: Display + From<Error>>(ranks: &impl Ranks, outcome: Result<V, E>) -> Result<V, E> {
    let status = outcome.as_ref().err().map_or_else(Vec::new, |error| format!("!{error}").into_bytes());
    let failed = ranks.gather(status).into_iter().enumerate().find(|(_, status)| !status.is_empty());
    let verdict =
        failed.map_or_else(Vec::new, |(rank, status)| [&(rank as u64).to_le_bytes()[..], &status[1..]].concat());
    let verdict = ranks.broadcast(verdict);
    match (outcome, verdict.split_first_chunk()) {
        (Ok(value), None) => Ok(value),
        (Err(own), _) => Err(own),
        (Ok(_), Some((&rank, reason))) => {
            let reason = String::from_utf8_lossy(reason).into_owned();
            Err(Error::RankFailed { rank: u64::from_le_bytes(rank) as usize, reason }.into())
        }
    }
}

/// Collective: merges the results of all shards at rank 0; returns `None` at the others. Ids are those of the whole
/// base.
///
/// # Errors
/// As [`agree`] on `mine`, and as [`merge_parts`].
pub fn merge<E: Display + From<Error>>(
    ranks: &impl Ranks,
    metric: Metric,
    mine: Result<Neighbors, E>,
) -> Result<Option<Neighbors>, E> {
    let mine = agree(ranks, mine)?;
    let k = (mine.k as u64).to_le_bytes();
    let others =
        ranks.gather([&k[..], bytemuck::cast_slice(&mine.ids), bytemuck::cast_slice(&mine.distances)].concat());
    let all = (ranks.rank() == 0).then(|| {
        let others = others.iter().skip(1).map(|bytes| received(bytes).ok_or(UNEQUAL));
        let parts = std::iter::once(Ok(mine)).chain(others).collect::<Result<Vec<_>>>()?;
        Ok(merge_parts(metric, parts)?)
    });
    agree(ranks, all.transpose())
}

/// The k best of the results of several shards, which have different ids. Each shard searched for the same queries and
/// k. O(shards · queries · k).
///
/// # Errors
/// [`Error::Incompatible`] if there is no part, or if parts have different numbers of queries or neighbours.
pub fn merge_parts(metric: Metric, parts: Vec<Neighbors>) -> Result<Neighbors> {
    let (k, slots) = parts.first().map_or((0, 1), |first| (first.k, first.ids.len()));
    let same = |part: &Neighbors| part.k == k && part.ids.len() == slots && part.distances.len() == slots;
    if !slots.is_multiple_of(k) || !parts.iter().all(same) {
        return Err(UNEQUAL);
    }
    let mut parts = parts.into_iter().map(|part| (part.ids, part.distances));
    let (mut ids, mut distances) = parts.next().ok_or(UNEQUAL)?;
    shards::merge(metric, k, &mut ids, &mut distances, &parts.collect::<Vec<_>>());
    Ok(Neighbors { k, ids, distances })
}

/// Shards did not search for the same.
const UNEQUAL: Error = Error::Incompatible { what: "number of queries or neighbours" };

/// The results that a rank sent: k, all ids and all distances. `None` if the bytes have another form.
fn received(bytes: &[u8]) -> Option<Neighbors> {
    let (&k, rest) = bytes.split_first_chunk()?;
    let slots = rest.len() / (size_of::<u64>() + size_of::<f32>());
    let (ids, distances) = rest.split_at(slots * size_of::<u64>());
    if distances.len() != slots * size_of::<f32>() {
        return None;
    }
    // Copies, because received bytes may be unaligned.
    let (ids, distances) = (bytemuck::pod_collect_to_vec(ids), bytemuck::pod_collect_to_vec(distances));
    Some(Neighbors { k: u64::from_le_bytes(k) as usize, ids, distances })
}

/// The file of this rank's shard of the index `path`: `path` with `.RANK-of-COUNT` appended.
pub fn part(path: impl AsRef<Path>, ranks: &impl Ranks) -> PathBuf {
    let mut name = path.as_ref().as_os_str().to_owned();
    name.push(format!(".{}-of-{}", ranks.rank(), ranks.count()));
    name.into()
}

/// An index that is divided among ranks; every rank holds a shard.
///
/// All functions are collective: every rank calls them with the same arguments, except for those that are documented as
/// different for each rank.
pub struct Sharded<'a, R, I> {
    ranks: &'a R,
    index: I,
    /// The number that a rank adds to the ids of its shard.
    first: u64,
    len: u64,
}

impl<'a, R: Ranks, I> Sharded<'a, R, I> {
    /// The shard of this rank.
    pub fn shard(&self) -> &I {
        &self.index
    }

    /// Number of vectors in all shards.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no rank has a vector.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The group of ranks that holds the index.
    pub fn ranks(&self) -> &'a R {
        self.ranks
    }

    /// Collective: counts the vectors of all ranks.
    fn new(ranks: &'a R, index: I, first: u64, held: usize) -> Self {
        let sum = ranks.gather((held as u64).to_le_bytes().to_vec()).iter().map(|held| number(held)).sum::<u64>();
        let len = number(&ranks.broadcast(sum.to_le_bytes().to_vec()));
        Self { ranks, index, first, len }
    }
}

/// The number that a rank sent as eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

impl<'a, R: Ranks, T: Element> Sharded<'a, R, FlatIndex<T>> {
    /// Collective: an exact index of `base` (row-major, all rows; of a mapped file only this rank's [`share`] is read)
    /// with the settings of `builder`. Each rank may have a different device.
    ///
    /// # Errors
    /// As [`FlatIndexBuilder::build`] and [`FlatIndex::add`], rows counted from the start of `base`;
    /// [`Error::RankFailed`] if another rank failed.
    pub fn build(ranks: &'a R, builder: FlatIndexBuilder<T>, base: &[T]) -> Result<Self> {
        let own = || {
            let mut index = builder.build()?;
            let dim = index.dim();
            let rows = share(check_whole(base, dim)?, ranks);
            index.add(&base[rows.start * dim..rows.end * dim]).map_err(|error| error.after_rows(rows.start))?;
            Ok((index, rows))
        };
        let (index, rows) = agree(ranks, own())?;
        Ok(Self::new(ranks, index, rows.start as u64, rows.len()))
    }

    /// Collective: as [`FlatIndex::search`] in the whole base, at rank 0; `None` at the others.
    ///
    /// # Errors
    /// As [`FlatIndex::search`]; [`Error::RankFailed`] if another rank failed.
    pub fn search(&self, queries: &[T], k: usize) -> Result<Option<Neighbors>> {
        let mine = self.index.search(queries, k).map(|mut found| {
            found.ids.iter_mut().filter(|id| **id != NONE).for_each(|id| *id += self.first);
            found
        });
        merge(self.ranks, self.index.metric(), mine)
    }
}

impl<'a, R: Ranks, T: Element> Sharded<'a, R, IvfIndex<T>> {
    /// Collective: an inverted-file index of `base` (row-major, all rows) with the settings of `builder`. Each rank may
    /// have a different device and memory budget. Rank 0 trains, with `train` or, if it is absent, with the base. Each
    /// rank adds its [`share`], with `ids` (one for each row of the base) or, if they are absent, with the row numbers.
    ///
    /// # Errors
    /// As [`IvfIndex::train`] and [`IvfIndex::add_with_ids`], rows counted from the start of `base`;
    /// [`Error::RankFailed`] if another rank failed. Each share is checked for duplicate ids, but not ids of different
    /// shares.
    pub fn build(
        ranks: &'a R,
        builder: IvfIndexBuilder<T>,
        base: &[T],
        ids: Option<&[u64]>,
        train: Option<&[T]>,
    ) -> Result<Self> {
        let trained = || {
            let mut index = builder.build()?;
            let dim = index.dim();
            let rows = check_whole(base, dim)?;
            ids.map_or(Ok(()), |ids| check_length("ids", rows, ids.len()))?;
            if ranks.rank() > 0 {
                return Ok((index, Vec::new()));
            }
            index.train(train.unwrap_or(base))?;
            let training = index.kind.training_bytes()?;
            Ok((index, training))
        };
        let (index, training) = agree(ranks, trained())?;
        let training = ranks.broadcast(training);
        let added = || {
            let mut index = if ranks.rank() == 0 {
                index
            } else {
                let (device, budget) = index.kind.place();
                IvfIndex::from_bytes(&training, device, budget)?
            };
            let dim = index.dim();
            let rows = share(base.len() / dim, ranks);
            let vectors = &base[rows.start * dim..rows.end * dim];
            let first = rows.start;
            let added = match ids {
                Some(ids) => index.add_with_ids(vectors, &ids[rows]),
                None => index.add_with_ids(vectors, &rows.map(|row| row as u64).collect::<Vec<_>>()),
            };
            added.map_err(|error| error.after_rows(first))?;
            Ok(index)
        };
        let index = agree(ranks, added())?;
        let held = index.len();
        Ok(Self::new(ranks, index, 0, held))
    }

    /// Collective: writes each rank's shard to its [`part`] of `path`, which is a complete index file.
    ///
    /// # Errors
    /// As [`IvfIndex::save`]; [`Error::RankFailed`] if another rank failed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        agree(self.ranks, self.index.save(part(path, self.ranks)))
    }

    /// Collective: opens an index that [`save`](Self::save) wrote from the same number of ranks. Each rank may have a
    /// different device and budget.
    ///
    /// # Errors
    /// As [`IvfIndex::load`], and [`Error::Io`] if the index was saved from another number of ranks;
    /// [`Error::Incompatible`] if a part belongs to another index; [`Error::RankFailed`] if another rank failed.
    pub fn load(
        ranks: &'a R,
        path: impl AsRef<Path>,
        device: impl Into<Placement>,
        budget: Option<u64>,
    ) -> Result<Self> {
        Self::load_with(ranks, path, device, budget, Open::Auto)
    }

    /// Collective: as [`load`](Self::load); `how` says whether a rank's file is read or mapped.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        ranks: &'a R,
        path: impl AsRef<Path>,
        device: impl Into<Placement>,
        budget: Option<u64>,
        how: Open,
    ) -> Result<Self> {
        let loaded = IvfIndex::<T>::load_with(part(path, ranks), device, budget, how);
        let opened = loaded.and_then(|index| Ok((index.kind.training_bytes()?, index)));
        let (training, index) = agree(ranks, opened)?;
        let same = ranks.broadcast(training.clone()) == training;
        agree(ranks, if same { Ok(()) } else { Err(Error::Incompatible { what: "training or probes" }) })?;
        let held = index.len();
        Ok(Self::new(ranks, index, 0, held))
    }

    /// Collective: as [`IvfIndex::search_with`] in the whole index, at rank 0; `None` at the others. Each rank passes a
    /// different filter, for the vectors in its shard; with `widen(false)` the results are those of one index.
    ///
    /// # Errors
    /// As [`IvfIndex::search_with`]; [`Error::RankFailed`] if another rank failed.
    pub fn search(&self, queries: &[T], k: usize, options: &SearchOptions<'_>) -> Result<Option<Neighbors>> {
        merge(self.ranks, self.index.metric(), self.index.search_with(queries, k, options))
    }
}
