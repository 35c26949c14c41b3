//! What changes an [`IvfIndex`], and reading single vectors back. A failed call leaves the index as it was.

use rayon::prelude::*;

use super::codec::{rotated, to_f32};
use super::{Codec, Encoding, IvfIndex, Lists, PqCodec, Trained, next_version};
use crate::flat::{MAX_ROWS, check_vectors};
use crate::kmeans::start::{Random, gather};
use crate::kmeans::worker::Assign;
use crate::kmeans::{KMeans, assign_rows};
use crate::pq::{PqTraining, ProductQuantizer, Rotation};
use crate::{Device, Element, Error, Metric, NONE, Result};

/// Training vectors for each codeword of a product quantizer.
const POINTS_PER_CODEWORD: usize = 256;

impl<T: Element> IvfIndex<T> {
    /// Finds centroids, and with [`Encoding::Pq`] codebooks, from a sample of vectors like those that will be added; `rows`: row-major,
    /// at least as many vectors as lists, and as codewords. An empty index can be trained again.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::TooFewTrainingVectors`], [`Error::RaggedVectors`], [`Error::NotFinite`],
    /// [`Error::OutOfDeviceMemory`], and what the device's driver reports.
    pub fn train(&mut self, rows: &[T]) -> Result<()> {
        if !self.is_empty() {
            return Err(Error::NotEmpty { len: self.len() as u64 });
        }
        let (dim, lists, metric) = (self.dim(), self.lists(), self.metric());
        let have = check_vectors(rows, dim)?;
        let codewords = match self.encoding() {
            Encoding::Flat => 0,
            Encoding::Pq { bits, .. } => 1 << bits,
        };
        let need = lists.max(codewords);
        if have < need {
            return Err(Error::TooFewTrainingVectors { have, need });
        }
        let settings = &self.settings;
        let (placement, seed) = (&settings.placement, settings.seed);
        let device = placement.first();
        let wanted = lists.saturating_mul(settings.points_per_centroid.max(1)).max(codewords * POINTS_PER_CODEWORD);
        let sample = (wanted < have).then(|| gather(rows, dim, &Random::new(seed).sample(have, wanted)));
        let rows = sample.as_deref().unwrap_or(rows);
        let spherical = metric == Metric::Cosine;
        let mut kmeans = KMeans::new(lists)
            .iterations(settings.iterations)
            .seed(seed)
            .spherical(spherical)
            .points_per_centroid(Some(settings.points_per_centroid))
            .device(placement.clone());
        if let Some(bytes) = settings.budget {
            kmeans = kmeans.memory_budget(bytes);
        }
        let trained = match settings.encoding {
            // Spherical k-means weighs vectors by their lengths: all are made equal.
            Encoding::Flat if spherical => {
                let centroids = kmeans.train(&to_f32(rows, dim, true), dim)?.centroids;
                Trained { centroids, codec: Codec::Flat }
            }
            Encoding::Flat => Trained { centroids: kmeans.train(rows, dim)?.centroids, codec: Codec::Flat },
            Encoding::Pq { sub_quantizers, bits, rotate } => {
                let training = PqTraining::new(sub_quantizers).bits(bits).seed(seed).device(device);
                let rows = to_f32(rows, dim, spherical);
                let rotation = if rotate { Some(Rotation::train(&training, &rows, dim)?) } else { None };
                let rows = rotated(rotation.as_ref(), rows, dim, device)?;
                let clustering = kmeans.labels(true).train(&rows, dim)?;
                let (centroids, labels) = (clustering.centroids, clustering.labels.unwrap_or_default());
                let mut residuals = rows.into_owned();
                residuals.par_chunks_exact_mut(dim).zip(&labels).for_each(|(row, &label)| {
                    let centroid = &centroids[label as usize * dim..][..dim];
                    row.iter_mut().zip(centroid).for_each(|(x, c)| *x -= c);
                });
                let quantizer = ProductQuantizer::train(&training, &residuals, dim)?;
                Trained { centroids, codec: Codec::Pq(PqCodec { quantizer, rotation }) }
            }
        };
        self.lists = Lists::new(lists, self.lists.code_bytes());
        self.trained = Some(trained);
        self.version = next_version();
        Ok(())
    }

    /// Appends the vectors of `rows`, row-major. Their ids count up from 0, or from one past the greatest id in the index.
    /// O(rows · lists · dim).
    ///
    /// # Errors
    /// As [`add_with_ids`](Self::add_with_ids); [`Error::ReservedId`] where the ids run out.
    pub fn add(&mut self, rows: &[T]) -> Result<()> {
        let count = check_vectors(rows, self.dim())? as u64;
        let first = self.lists.greatest_id().map_or(0, |id| id + 1);
        let Some(end) = first.checked_add(count) else { return Err(Error::ReservedId) };
        let ids: Vec<u64> = (first..end).collect();
        self.append(rows, &ids)
    }

    /// Appends the vectors of `rows`, row-major, with an id each: any numbers but [`NONE`], all different.
    /// O(rows · lists · dim).
    ///
    /// # Errors
    /// [`Error::NotTrained`], [`Error::WrongIds`], [`Error::ReservedId`], [`Error::DuplicateId`], [`Error::RaggedVectors`],
    /// [`Error::NotFinite`] with the first offending place (row within `rows`), [`Error::TooManyRows`],
    /// [`Error::OutOfDeviceMemory`], and what the device's driver reports.
    pub fn add_with_ids(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        let count = check_vectors(rows, self.dim())?;
        if ids.len() != count {
            return Err(Error::WrongIds { ids: ids.len(), rows: count });
        }
        let sorted = ascending(ids)?;
        if sorted.last() == Some(&NONE) {
            return Err(Error::ReservedId);
        }
        if let Some(id) = self.lists.find_any(&sorted) {
            return Err(Error::DuplicateId { id });
        }
        self.append(rows, ids)
    }

    /// Appends checked rows with ids that are new, different and not reserved.
    fn append(&mut self, rows: &[T], ids: &[u64]) -> Result<()> {
        let trained = self.trained_for("add")?;
        self.check_room(ids.len())?;
        if ids.is_empty() {
            return Ok(());
        }
        let (dim, placement, budget) = (self.dim(), &self.settings.placement, self.settings.budget);
        let by = if self.metric() == Metric::Cosine { Assign::InnerProduct } else { Assign::L2 };
        let centroids = &trained.centroids;
        let (labels, codes);
        let codes: &[u8] = match &trained.codec {
            Codec::Flat => {
                labels = assign_rows(placement, by, rows, dim, centroids, budget)?;
                bytemuck::cast_slice(rows)
            }
            Codec::Pq(pq) => {
                let rows = trained.codec.transform(rows, dim, self.metric(), placement.first())?;
                labels = assign_rows(placement, by, &rows, dim, centroids, budget)?;
                codes = pq.encode(placement, &rows, &labels, centroids, budget)?;
                &codes
            }
        };
        self.lists.append(&labels, codes, ids)?;
        self.version = next_version();
        Ok(())
    }

    fn check_room(&self, more: usize) -> Result<()> {
        let asked = self.len() as u64 + more as u64;
        if asked > MAX_ROWS { Err(Error::TooManyRows { asked, limit: MAX_ROWS }) } else { Ok(()) }
    }

    /// Removes the vectors with these ids, in any order. O(len · log ids).
    ///
    /// # Errors
    /// [`Error::UnknownId`] where the index has no such id, [`Error::DuplicateId`] where one is named twice.
    pub fn remove(&mut self, ids: &[u64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.lists.remove(&ascending(ids)?)?;
        self.version = next_version();
        Ok(())
    }

    /// Adds the vectors of `other`, with their ids, to this index. Both must have been trained alike: one way is to build several
    /// indexes with the same settings and seed and train them on the same vectors; then each takes a part of the base. O(vectors of
    /// both).
    ///
    /// # Errors
    /// [`Error::NotTrained`]; [`Error::Incompatible`] where dimension, number of lists, metric, encoding, centroids or codebooks differ;
    /// [`Error::DuplicateId`], [`Error::TooManyRows`], [`Error::OutOfDeviceMemory`].
    pub fn merge(&mut self, other: &IvfIndex<T>) -> Result<()> {
        let (ours, theirs) = (self.trained_for("merge")?, other.trained_for("merge")?);
        let same_bits =
            |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        let checks = [
            (self.dim() == other.dim(), "dimension"),
            (self.lists() == other.lists(), "number of lists"),
            (self.metric() == other.metric(), "metric"),
            (self.encoding() == other.encoding(), "encoding"),
            (same_bits(&ours.centroids, &theirs.centroids), "centroids"),
            (ours.codec == theirs.codec, "codebooks"),
        ];
        if let Some((_, what)) = checks.into_iter().find(|(same, _)| !same) {
            return Err(Error::Incompatible { what });
        }
        if other.is_empty() {
            return Ok(());
        }
        self.check_room(other.len())?;
        if let Some(id) = self.lists.find_any(&other.ids()) {
            return Err(Error::DuplicateId { id });
        }
        self.lists.append_lists(&other.lists)?;
        self.version = next_version();
        Ok(())
    }

    /// The components of vector `id` as f32, which holds every element type's values: as added for [`Encoding::Flat`], what its code
    /// stands for otherwise (under cosine of a vector of length 1), rotated back. O(dim), O(dim²) with a rotation; and O(len) the
    /// first time after a change.
    ///
    /// # Errors
    /// [`Error::UnknownId`].
    pub fn reconstruct(&self, id: u64) -> Result<Vec<f32>> {
        let unknown = Error::UnknownId { id, len: self.len() as u64 };
        let Some(trained) = &self.trained else { return Err(unknown) };
        let Some((list, place)) = self.lists.directory().find(id) else { return Err(unknown) };
        let (dim, bytes) = (self.dim(), self.lists.code_bytes());
        let code = &self.lists.codes(list)[place * bytes..][..bytes];
        match &trained.codec {
            Codec::Flat => Ok(bytemuck::cast_slice::<_, T>(code).iter().map(|x| x.to_f32()).collect()),
            Codec::Pq(pq) => {
                let mut vector = vec![0.0; dim];
                pq.decode_into(code, &trained.centroids[list * dim..][..dim], &mut vector);
                match &pq.rotation {
                    Some(rotation) => rotation.apply_transposed(&vector, Device::Cpu),
                    None => Ok(vector),
                }
            }
        }
    }
}

/// `ids` in ascending order, or the error that one occurs twice.
fn ascending(ids: &[u64]) -> Result<Vec<u64>> {
    let mut sorted = ids.to_vec();
    sorted.par_sort_unstable();
    match sorted.par_windows(2).find_first(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::DuplicateId { id: pair[0] }),
        None => Ok(sorted),
    }
}
