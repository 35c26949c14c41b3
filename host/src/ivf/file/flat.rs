//! Files of a [`FlatIndex`]: index files with one list and the flat encoding. So [`IvfIndex::load`](crate::IvfIndex::load) opens them too, and
//! a flat index opens every file of inverted lists that hold whole vectors.

use std::path::Path;

use super::format::Shape;
use super::mapped::IndexFile;
use super::write::Content;
use super::{IN_MEMORY, bytes_defect, parts};
use crate::error::{Error, FileDefect, Result};
use crate::io::{FileBytes, Open};
use crate::ivf::Encoding;
use crate::ivf::encoding::Clamped;
use crate::{Element, FlatIndex, Placement, Watch, host_memory};

/// Bytes of vectors that are added to a loaded index at a time.
const PIECE_BYTES: usize = 256 << 20;

impl<T: Element> FlatIndex<T> {
    /// Writes the index to a file, which gets the name `path` when it is complete. The file is one that an [`IvfIndex`](crate::IvfIndex)
    /// with one list writes. O(bytes), and host memory for all vectors.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::OutOfHostMemory`]; errors of the device's driver.
    ///
    /// ```
    /// use warpann::{Device, FlatIndex, Metric};
    ///
    /// let mut index = FlatIndex::<f32>::new(2, Metric::L2, Device::Cpu)?;
    /// index.add_with_ids(&[0.0, 0.0, 3.0, 4.0], &[7, 9])?;
    /// let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("points.index");
    /// index.save(&path)?;
    /// let loaded = FlatIndex::<f32>::load(&path, Device::Cpu, None)?;
    /// assert_eq!(loaded.search(&[3.0, 4.0], 1)?.ids, [9]);
    /// # Ok::<(), warpann::Error>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_watched(path, &Watch::none())
    }

    /// As [`save`](Self::save), with a [`Watch`]. If it cancels, the old file stays as it was.
    ///
    /// # Errors
    /// As [`save`](Self::save); [`Error::Cancelled`].
    pub fn save_watched(&self, path: impl AsRef<Path>, watch: &Watch<'_>) -> Result<()> {
        self.with_content(|content| content.write(path.as_ref(), watch))
    }

    /// The bytes that [`save`](Self::save) writes. O(bytes).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`]; errors of the device's driver.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.with_content(|content| content.to_bytes())
    }

    fn with_content<V>(&self, use_content: impl FnOnce(Content<'_>) -> Result<V>) -> Result<V> {
        let (ids, rows) = (self.ids(), self.all_rows()?);
        let centroid: Vec<f32> = host_memory::zeroed(self.dim())?;
        let shape = Shape {
            element: T::TYPE,
            metric: self.metric(),
            encoding: Encoding::Flat,
            dim: self.dim() as u64,
            lists: 1,
            vectors: self.len() as u64,
            probes: 1,
            exponent: 0,
            clamped: Clamped::default(),
        };
        let lists = vec![(ids.as_slice(), bytemuck::cast_slice(&rows))];
        use_content(Content { shape, centroids: &centroid, codebooks: &[], rotation: &[], lists })
    }

    /// Loads an index from a file, to search on `device` (a [`Device`](crate::Device), or a [`Placement`] over several) within `budget`
    /// bytes ([`FlatIndexBuilder::memory_budget`](crate::FlatIndexBuilder::memory_budget)). The file may be one of an
    /// [`IvfIndex`](crate::IvfIndex) with [`Encoding::Flat`]. O(bytes): every byte is checked.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] with the defect of the bytes, with [`FileDefect::WrongElement`] if the vectors are not of type `T`,
    /// or if the encoding is not [`Encoding::Flat`]; [`Error::OutOfHostMemory`]; and the errors of opening the device, as in
    /// [`FlatIndexBuilder::build`](crate::FlatIndexBuilder::build).
    pub fn load(path: impl AsRef<Path>, device: impl Into<Placement>, budget: Option<u64>) -> Result<Self> {
        let path = path.as_ref();
        let file = IndexFile::open(path, Open::Auto)?;
        Self::restored(&file, device.into(), budget, |defect| Error::BadFile { path: path.to_owned(), defect })
    }

    /// As [`load`](Self::load), from the bytes of a file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_bytes(bytes: &[u8], device: impl Into<Placement>, budget: Option<u64>) -> Result<Self> {
        let bytes = FileBytes::copied(bytes).map_err(|source| Error::Io { path: IN_MEMORY.into(), source })?;
        let file = IndexFile::from_bytes(bytes).map_err(bytes_defect)?;
        Self::restored(&file, device.into(), budget, bytes_defect)
    }

    fn restored(
        file: &IndexFile,
        device: Placement,
        budget: Option<u64>,
        bad: impl Fn(FileDefect) -> Error,
    ) -> Result<Self> {
        let shape = file.shape();
        if shape.encoding != Encoding::Flat {
            return Err(bad(FileDefect::Inconsistent("a flat index holds whole vectors, not codes")));
        }
        let (_, lists) = parts::<T>(file).map_err(bad)?;
        let dim = shape.dim as usize;
        let mut builder = Self::builder(dim).metric(shape.metric).device(device);
        if let Some(budget) = budget {
            builder = builder.memory_budget(budget);
        }
        let mut index = builder.build()?;
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
                to.copy_from_slice(bytemuck::cast_slice(&lists.codes(list)[place * row..][..row]));
            }
            let ids: Vec<u64> = piece.iter().map(|&(id, ..)| id).collect();
            index.add_with_ids(&rows, &ids)?;
        }
        Ok(index)
    }
}
