//! The program's operations on an index of any kind that a file can hold.

use std::path::Path;

use rayon::prelude::*;
use warpann::io::Open;
use warpann::{Element, Index, Kind};

use crate::progress::staged;
use crate::report::{Failure, Outcome};

/// Inverted files, in messages.
pub const INVERTED_FILES: &str = "inverted files";

/// A kind of index that a file can hold.
pub trait Stored: Kind {
    /// The part of a report for this kind only.
    type Details;
    /// The name of the kind on the command line.
    fn kind(index: &Index<Self>) -> String;
    /// Adds the vectors of `base`, with one id for each or with ids that count up. Only inverted files add a number of
    /// vectors at a time.
    fn add_all(index: &mut Index<Self>, base: &[Self::Element], ids: Option<&[u64]>, batch: Option<usize>) -> Outcome {
        if batch.is_some() {
            return Err(Failure::OtherKind { option: "--batch", known: INVERTED_FILES, kind: Self::kind(index) });
        }
        let name = format!("adding {} vectors", base.len() / index.dim());
        Ok(staged(name, |watch| index.add_watched(base, ids, watch))?)
    }
    /// The first row of `base` that is not the vector whose id is the number of the row; none if all are. Equal
    /// vectors, and in an index of codes vectors of equal codes, are the same vector. `base` has as many rows as the
    /// index has vectors, and their numbers are the ids. The index was opened from `path`. O(base), and with codes as
    /// much as adding the base.
    fn first_other(
        index: &Index<Self>,
        base: &[Self::Element],
        path: &Path,
        how: Open,
    ) -> warpann::Result<Option<usize>>;
    /// The kind and its parameters in a few words, such as `ivf-flat, 64 lists`.
    fn description(index: &Index<Self>) -> String;
    /// The part of a report for this kind only.
    fn details(index: &Index<Self>) -> Self::Details;
}

/// The number of the first of `rows`, of dimension `dim`, that is not equal to what `vector` returns for its number;
/// none if all are equal.
pub fn first_unequal<T: Element>(
    rows: &[T],
    dim: usize,
    vector: impl Fn(u64) -> warpann::Result<Vec<f32>> + Sync,
) -> warpann::Result<Option<usize>> {
    let unequal = |(number, row): (usize, &[T])| match vector(number as u64) {
        Ok(vector) if vector.iter().copied().eq(row.iter().map(|x| x.to_f32())) => None,
        Ok(_) => Some(Ok(number)),
        Err(error) => Some(Err(error)),
    };
    rows.par_chunks_exact(dim).enumerate().filter_map(unequal).find_first(|_| true).transpose()
}
