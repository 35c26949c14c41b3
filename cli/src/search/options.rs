//! The options that only a search in an index has: filters, refinement and range search.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use warpann::io::Vectors;
use warpann::ivf::{IvfIndex, Refiner};
use warpann::{Bitset, Element, Error, Index, Kind, NONE, Proof, SearchOptions};

use crate::id_list;
use crate::progress::spinning;
use crate::report::{Failure, Outcome, complain};
use crate::vectors::{Access, exactly};

/// Options of `search --index`.
#[derive(Debug, clap::Args)]
pub struct IndexOptions {
    /// With --index: find only vectors whose ids are in this file: ivecs, ibin, npy or bin; or txt, with an id or a
    /// range such as 100-199 in each line. Ids that the index does not hold are ignored.
    #[arg(long, value_name = "FILE", group = "accepted")]
    filter: Option<PathBuf>,
    /// With --index: find only vectors whose ids are not in this file, in any of the same formats.
    #[arg(long, value_name = "FILE", group = "accepted")]
    exclude: Option<PathBuf>,
    /// With --filter or --exclude, and an inverted file: read exactly --probes lists for each query. Otherwise a search
    /// reads as many more as it needs for the recall of a search without filter and for k results.
    #[arg(long, requires = "accepted")]
    pub no_widen: bool,
    /// With --index and an inverted file: find more candidates in the index, and order them by their distances from the
    /// original vectors in this file: fvecs, bvecs, fbin, u8bin, i8bin or npy. The k best are the results.
    #[arg(long, value_name = "FILE")]
    refine: Option<PathBuf>,
    /// With --refine: N times k candidates. N need not be whole: 1.2 are 12 candidates for 10 neighbours.
    #[arg(long, value_name = "N", default_value_t = 4.0, requires = "refine", value_parser = factor)]
    refine_factor: f64,
    /// With --refine, and whole vectors or codes of bits: take more candidates until no other vector of the probed
    /// lists can be among the k best. The proof is certain, or with `--prove probable` right with high probability, for
    /// which it needs fewer candidates.
    #[arg(
        long,
        value_name = "PROOF",
        requires = "refine",
        num_args = 0..=1,
        default_value_t = Proof::None,
        default_missing_value = "certain"
    )]
    pub prove: Proof,
    /// With --refine: the ids of its vectors, one for each: ibin, ivecs or npy; or txt, with an id or a range such as
    /// 100-199 in each line. Default: 0, 1, 2, ..
    #[arg(long, value_name = "FILE", requires = "refine")]
    refine_ids: Option<PathBuf>,
    /// With --index: leave out neighbours beyond this distance (l2: squared), or of less than this similarity (ip,
    /// cosine). With --refine, the distance from the original vectors.
    #[arg(long, value_name = "R", value_parser = radius, allow_negative_numbers = true)]
    pub within: Option<f32>,
    /// With --index: find all vectors up to this distance (l2: squared), or of at least this similarity (ip, cosine),
    /// instead of k neighbours.
    #[arg(
        long,
        value_name = "R",
        value_parser = radius,
        allow_negative_numbers = true,
        conflicts_with_all = ["k", "gt", "refine", "distances", "within"]
    )]
    pub radius: Option<f32>,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (1.0..f64::INFINITY).contains(&number) => Ok(number),
        Ok(_) => Err("must be a number of at least 1".into()),
        Err(error) => Err(format!("{error}")),
    }
}

fn radius(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(radius) if !radius.is_nan() => Ok(radius),
        _ => Err("expected a number".into()),
    }
}

impl IndexOptions {
    /// Refuses all options, for a search without an index.
    pub fn none(&self) -> Outcome {
        let given = [
            (self.filter.is_some(), "--filter"),
            (self.exclude.is_some(), "--exclude"),
            (self.refine.is_some(), "--refine"),
            (self.within.is_some(), "--within"),
            (self.radius.is_some(), "--radius"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(Failure::NeedsIndex { option }),
            None => Ok(()),
        }
    }

    /// The first of the given options that only inverted files have.
    pub fn of_ivf(&self) -> Option<&'static str> {
        let given = [(self.no_widen, "--no-widen"), (self.refine.is_some(), "--refine")];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// The files that the options name.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.filter, &self.exclude, &self.refine, &self.refine_ids];
        files.into_iter().flatten().map(PathBuf::as_path)
    }

    /// Reads the ids of a filter, if the options name one.
    pub fn filter(&self, access: &Access) -> Outcome<Option<Filter<'_>>> {
        let (path, keep) = match (&self.filter, &self.exclude) {
            (Some(path), _) => (path, true),
            (None, Some(path)) => (path, false),
            (None, None) => return Ok(None),
        };
        let named = spinning("reading the filter", || Named::read(path, access))?;
        Ok(Some(Filter { path, named, keep }))
    }

    /// The original vectors, if the options name them. `dim` is the dimension of the index.
    pub fn originals(&self, access: &Access, dim: usize) -> Outcome<Option<Originals<'_>>> {
        let Some(path) = &self.refine else { return Ok(None) };
        let vectors = access.vectors(path)?;
        if vectors.dim() != dim {
            return Err(Error::WrongDimension { expected: dim, actual: vectors.dim() }.into());
        }
        let ids = self.refine_ids.as_ref().map(|path| access.ids(path)).transpose()?.map(|ids| ids.ids);
        Ok(Some(Originals { path, vectors, ids, factor: self.refine_factor }))
    }
}

/// The ids that a search may find, or may not.
pub struct Filter<'a> {
    path: &'a Path,
    named: Named,
    /// Whether the search may find these ids, or all others.
    keep: bool,
}

impl Filter<'_> {
    /// The filter for the ids of an index. Prints a note if the index does not hold some ids of a list.
    pub fn bits<K: Kind>(&self, index: &Index<K>) -> Bitset {
        let mut found = 0;
        let bits = index.filter(|id| {
            let named = self.named.contains(id);
            found += usize::from(named);
            named == self.keep
        });
        if let Named::Ids(ids) = &self.named
            && found < ids.len()
        {
            let (ids, path) = (ids.len(), self.path.display());
            complain(format_args!("note: {} of the {ids} ids in {path} are not in the index", ids - found));
        }
        bits
    }
}

/// The ids that a file names.
enum Named {
    /// In ascending order, without duplicates, for binary search.
    Ids(Vec<u64>),
    /// First and last id of ranges, in ascending order. No two of them meet.
    Ranges(Vec<(u64, u64)>),
}

impl Named {
    fn read(path: &Path, access: &Access) -> Outcome<Named> {
        // Ranges of a filter may hold more ids than memory.
        if id_list::is_text(path) {
            return Ok(Named::Ranges(joined(id_list::ranges(path)?)));
        }
        let mut ids = access.ids(path)?.ids;
        // Empty slots name no vector.
        ids.retain(|&id| id != NONE);
        ids.sort_unstable();
        ids.dedup();
        Ok(Named::Ids(ids))
    }

    fn contains(&self, id: u64) -> bool {
        match self {
            Named::Ids(ids) => ids.binary_search(&id).is_ok(),
            Named::Ranges(ranges) => {
                ranges.get(ranges.partition_point(|&(_, last)| last < id)).is_some_and(|&(first, _)| first <= id)
            }
        }
    }
}

/// Ranges in ascending order, joined where they meet.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let meet = next.0 <= before.1.saturating_add(1);
        if meet {
            before.1 = before.1.max(next.1);
        }
        meet
    });
    ranges
}

/// The original vectors of an index.
pub struct Originals<'a> {
    path: &'a Path,
    vectors: Vectors,
    ids: Option<Vec<u64>>,
    factor: f64,
}

impl Originals<'_> {
    /// Number of candidates for `k` neighbours of each of `queries` queries.
    pub fn candidates(&self, queries: usize, k: usize) -> Outcome<usize> {
        let candidates = SearchOptions::new().refine(self.factor).candidates(k)?;
        let all = candidates.checked_mul(queries).filter(|&all| all < isize::MAX as usize);
        all.map(|_| candidates).ok_or(Error::ResultTooLarge { queries, k: candidates }.into())
    }

    /// The components as those of the index.
    pub fn exactly<T: Element>(&self) -> Outcome<Cow<'_, [T]>> {
        exactly::<T>(&self.vectors, self.path)
    }

    /// Candidates for each neighbour.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// A refiner's error. An id that the original vectors lack is an error that names their file.
    pub fn failure(&self, error: Error) -> Failure {
        match error {
            Error::UnknownId { id, .. } => Failure::Message(format!(
                "{}: none of its vectors has id {id}, which the index holds",
                self.path.display()
            )),
            error => error.into(),
        }
    }

    /// Checks that `rows`, which [`exactly`](Self::exactly) returned, can have the vectors of `index`, and makes a
    /// refiner of them.
    pub fn refiner<'r, T: Element>(&self, index: &IvfIndex<T>, rows: &'r [T]) -> Outcome<Refiner<'r, T>> {
        let refiner = Refiner::new(index.metric(), index.dim(), rows)?;
        if let Some(ids) = &self.ids {
            return Ok(refiner.with_ids(ids)?);
        }
        let count = self.vectors.rows() as u64;
        if let Some(id) = index.greatest_id().filter(|&id| id >= count) {
            return Err(Failure::Message(format!(
                "{} has {count} vectors, and the index has a vector with id {id}; name the ids of the file by --refine-ids",
                self.path.display()
            )));
        }
        Ok(refiner)
    }
}
