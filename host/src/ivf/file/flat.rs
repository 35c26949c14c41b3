//! Files of a [`FlatIndex`]: index files with one list and the flat encoding, whose header names the kind. Files of
//! versions before that did not write the kind, so such a file of inverted lists that hold whole vectors opens as an
//! exact index as well.

use std::path::Path;

use super::format::{IN_MEMORY, Shape};
use super::mapped::IndexFile;
use super::write::Content;
use super::{bytes_defect, parts};
use crate::error::{Error, FileDefect, Result};
use crate::flat::Flat;
use crate::index::IndexKind;
use crate::index::private::{Changed, Filed, Stored};
use crate::io::{FileBytes, Open};
use crate::ivf::Encoding;
use crate::ivf::encoding::Clamped;
use crate::{Element, FlatIndex, Placement, Watch, host_memory};

/// Bytes of vectors that are added to a loaded index at a time.
const PIECE_BYTES: usize = 256 << 20;

impl<T: Element> Filed for Flat<T> {
    fn save(&self, path: &Path, watch: &Watch<'_>) -> Result<()> {
        self.with_content(|content| content.write(path, watch))
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        self.with_content(|content| content.to_bytes())
    }

    fn load(path: &Path, placement: Placement, budget: Option<u64>, how: Open) -> Result<Self> {
        let file = IndexFile::open(path, how, IndexKind::Flat)?;
        Self::restored(&file, placement, budget, |defect| Error::BadFile { path: path.to_owned(), defect })
    }

    fn from_bytes(bytes: &[u8], placement: Placement, budget: Option<u64>) -> Result<Self> {
        let bytes = FileBytes::copied(bytes).map_err(|source| Error::Io { path: IN_MEMORY.into(), source })?;
        let file = IndexFile::of_kind(bytes, IndexKind::Flat).map_err(bytes_defect)?;
        Self::restored(&file, placement, budget, bytes_defect)
    }
}

impl<T: Element> Flat<T> {
    fn with_content<V>(&self, use_content: impl FnOnce(Content<'_>) -> Result<V>) -> Result<V> {
        let (ids, rows) = (self.ids(), self.all_rows()?);
        let centroid: Vec<f32> = host_memory::zeroed(self.dim())?;
        let shape = Shape {
            kind: Some(IndexKind::Flat),
            element: T::TYPE,
            metric: self.metric(),
            encoding: Encoding::Flat,
            dim: self.dim() as u64,
            lists: 1,
            vectors: self.len() as u64,
            probes: 1,
            form: 0,
            clamped: Clamped::default(),
            waits_for: 0,
            spread: 0.0,
        };
        let lists = vec![(ids.as_slice(), vec![bytemuck::cast_slice(&rows)])];
        use_content(Content { shape, centroids: &centroid, codebooks: &[], rotation: &[], lists })
    }

    fn restored(
        file: &IndexFile,
        device: Placement,
        budget: Option<u64>,
        bad: impl Fn(FileDefect) -> Error,
    ) -> Result<Self> {
        let shape = file.shape();
        if shape.stored_encoding() != Encoding::Flat {
            return Err(bad(FileDefect::Inconsistent("a flat index holds whole vectors, not codes")));
        }
        let (_, lists) = parts::<T>(file).map_err(bad)?;
        let dim = shape.dim as usize;
        let mut builder = FlatIndex::<T>::builder(dim).metric(shape.metric).device(device);
        if let Some(budget) = budget {
            builder = builder.memory_budget(budget);
        }
        let mut index = builder.open()?;
        // The vectors in the order of their ids: list, place.
        let mut order = host_memory::with_room(lists.len())?;
        for list in 0..lists.count() {
            order.extend(lists.ids(list).iter().enumerate().map(|(place, &id)| (id, list, place)));
        }
        order.sort_unstable();
        let row = dim * size_of::<T>();
        for piece in order.chunks((PIECE_BYTES / row).max(1)) {
            let mut rows = host_memory::zeroed::<T>(piece.len() * dim)?;
            for (to, &(_, list, place)) in rows.chunks_exact_mut(dim).zip(piece) {
                // Codes start at a multiple of the element's size, as the file's check says.
                to.copy_from_slice(bytemuck::cast_slice(lists.codes(list).get(place)));
            }
            let ids: Vec<u64> = piece.iter().map(|&(id, ..)| id).collect();
            index.add(&rows, Some(&ids), &Watch::none())?;
        }
        Ok(index)
    }
}
