//! Sets of vectors from files: base, queries and ground truth.

use std::path::{Path, PathBuf};

use warpann::io::{IdMatrix, Vectors, read_ground_truth, read_vectors};
use warpann::{Element, NONE};

use crate::{Failure, Outcome};

/// Base vectors, queries of the same dimension, and the true neighbours of the first queries if they are known. Base and queries are not
/// empty, and the neighbours are rows of the base.
pub struct Set {
    /// The vectors in which the benchmark searches.
    pub base: Vectors,
    /// The vectors for which the benchmark searches.
    pub query: Vectors,
    /// The true neighbours of the queries, if they are known.
    pub truth: Option<IdMatrix>,
}

impl Set {
    /// Reads and checks the files.
    pub fn read(base: &Path, query: &Path, truth: Option<&Path>) -> Outcome<Self> {
        let (vectors, queries) = (read_vectors(base)?, read_vectors(query)?);
        let (base_dim, query_dim) = (vectors.dim(), queries.dim());
        if base_dim == 0 || vectors.rows() == 0 || queries.rows() == 0 || query_dim != base_dim {
            return Err(Failure::Queries { path: query.to_owned(), queries: queries.rows(), query_dim, base_dim });
        }
        let known = truth.map(read_ground_truth).transpose()?.map(|truth| truth.ids);
        if let (Some(path), Some(known)) = (truth, &known)
            && let Some(&id) = known.ids.iter().find(|&&id| id != NONE && id >= vectors.rows() as u64)
        {
            return Err(Failure::Truth { path: path.to_owned(), id, rows: vectors.rows() });
        }
        Ok(Self { base: vectors, query: queries, truth: known })
    }

    /// Reads `base`, `query` (`.fbin`, `.u8bin` or `.i8bin`) and, if it is there, `gt` (`.ibin` or `.bin`) of a folder.
    pub fn in_folder(folder: &Path) -> Outcome<Self> {
        let first = |name: &str, extensions: &[&str]| -> Option<PathBuf> {
            let path = |extension: &&str| folder.join(name).with_extension(extension);
            extensions.iter().map(path).find(|path| path.exists())
        };
        let vectors = |name: &str| {
            // If there is none, the error names the usual one.
            first(name, &["fbin", "u8bin", "i8bin"]).unwrap_or_else(|| folder.join(name).with_extension("fbin"))
        };
        Self::read(&vectors("base"), &vectors("query"), first("gt", &["ibin", "bin"]).as_deref())
    }
}

/// The components of both, if they are of type `T`.
pub fn slices<'a, T: Element>(base: &'a Vectors, query: &'a Vectors) -> Outcome<(&'a [T], &'a [T])> {
    match (base.as_slice(), query.as_slice()) {
        (Some(base), Some(query)) => Ok((base, query)),
        _ => Err(Failure::Elements { base: base.element().name(), query: query.element().name() }),
    }
}
