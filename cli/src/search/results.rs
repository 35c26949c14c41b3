//! The outputs of a search: ids and distances in formats of the library, or both as a table.

use std::path::{Path, PathBuf};

use warpann::{Error, NONE};

use super::Args;
use crate::parquet;
use crate::report::{Failure, Outcome};
use crate::streams::{F32_FORMATS, Written};

/// Extensions of the formats of `--out`.
const RESULT_FORMATS: &str = "ibin, ivecs, npy, csv, parquet";
/// Columns of the csv.
const COLUMNS: [&str; 4] = ["query", "rank", "id", "distance"];

impl Args {
    /// The files of `--out` and `--distances`, as far as they are given.
    pub fn outputs(&self) -> impl Iterator<Item = &Path> {
        [&self.out, &self.distances].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Checks the formats of the outputs.
    pub(super) fn check_formats(&self) -> Outcome {
        if let Some(path) = &self.distances {
            self.stdout.format_of(path, F32_FORMATS)?;
        }
        let Some(path) = &self.out else { return Ok(()) };
        let format = self.stdout.format_of(path, RESULT_FORMATS)?;
        if self.options.radius.is_some() && matches!(format, Written::Binary(_)) {
            return Err(Failure::Message(format!(
                "{}: the results of a range search are written as csv or parquet, because each query has another number of them",
                path.display()
            )));
        }
        Ok(())
    }

    /// Checks that the file of the results can hold ids up to `greatest`.
    pub fn check_ids(&self, greatest: Option<u64>) -> Outcome {
        let (Some(path), Some(id)) = (&self.out, greatest) else { return Ok(()) };
        let limit = match self.stdout.format_of(path, RESULT_FORMATS)? {
            Written::Binary(format) => format.greatest_id(),
            Written::Parquet => parquet::GREATEST_ID,
            Written::Csv => u64::MAX,
        };
        if id > limit {
            let defect = warpann::FileDefect::IdTooLarge { id, limit };
            return Err(Error::BadFile { path: path.to_owned(), defect }.into());
        }
        Ok(())
    }

    /// Writes the outputs. `rows` are ids and distances of each query; for output other than csv and parquet all have
    /// k.
    pub(super) fn write<'r>(
        &self,
        ids: &[u64],
        distances: &[f32],
        rows: impl Iterator<Item = (&'r [u64], &'r [f32])>,
    ) -> Outcome {
        if let Some(path) = &self.out {
            match self.stdout.format_of(path, RESULT_FORMATS)? {
                Written::Csv => self.stdout.write_table(path, &COLUMNS, lines(rows))?,
                Written::Parquet => self.stdout.write_bytes(path, &parquet::table(path, lines(rows))?)?,
                Written::Binary(_) => self.stdout.write_ids(path, ids, self.k)?,
            }
        }
        if let Some(path) = &self.distances {
            self.stdout.write_vectors(path, distances, self.k)?;
        }
        Ok(())
    }
}

/// A line of the table for each neighbour: query, rank from 1, id, distance. Empty slots are left out.
fn lines<'r>(
    rows: impl Iterator<Item = (&'r [u64], &'r [f32])>,
) -> impl Iterator<Item = (usize, usize, &'r u64, &'r f32)> {
    rows.enumerate().flat_map(|(query, (ids, distances))| {
        let found = ids.iter().zip(distances).take_while(|&(&id, _)| id != NONE);
        found.enumerate().map(move |(place, (id, distance))| (query, place + 1, id, distance))
    })
}
