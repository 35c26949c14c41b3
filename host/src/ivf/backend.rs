//! The seam between [`IvfIndex`](super::IvfIndex), which checks arguments and keeps the master copy in host memory, and the devices
//! that search it.

use std::borrow::Cow;
use std::marker::PhantomData;

use super::bitset::Bitset;
use super::codec::Codec;
use super::lists::Lists;
use super::{RangeNeighbors, Scan};
use crate::{Device, Element, Metric, Result};

/// An index as a search sees it: trained, with at least one vector.
#[derive(Debug)]
pub(crate) struct View<'a, T: Element> {
    /// Components of a vector.
    pub(crate) dim: usize,
    /// The metric of the index.
    pub(crate) metric: Metric,
    /// Lists × dim, row-major; in rotated space where the codec rotates.
    pub(crate) centroids: &'a [f32],
    /// What the bytes of a code mean.
    pub(crate) codec: &'a Codec,
    /// Codes and ids.
    pub(crate) lists: &'a Lists,
    /// Changes with every change of the index, and differs between indexes: an image of another version is stale.
    pub(crate) version: u64,
    pub(crate) element: PhantomData<T>,
}

impl<'a, T: Element> View<'a, T> {
    /// The vectors of a list of [`Codec::Flat`], row-major.
    #[inline]
    pub(crate) fn rows(&self, list: usize) -> &'a [T] {
        bytemuck::cast_slice(self.lists.codes(list))
    }

    /// What canonical distances between queries and stored vectors are taken by: the metric of the index, but the inner product
    /// where the codec has normalised both.
    pub(crate) fn distance_metric(&self) -> Metric {
        match self.codec {
            Codec::Flat => self.metric,
            Codec::Pq(_) if self.metric == Metric::Cosine => Metric::InnerProduct,
            Codec::Pq(_) => self.metric,
        }
    }

    /// What queries are compared with centroids by.
    pub(crate) fn probe_metric(&self) -> Metric {
        match self.metric {
            Metric::L2 => Metric::L2,
            Metric::InnerProduct | Metric::Cosine => Metric::InnerProduct,
        }
    }

    /// Queries as they are compared with centroids and stored vectors: as f32; for PQ of a cosine index normalised; rotated, on
    /// `device`, where the codec rotates.
    pub(crate) fn queries<'q>(&self, queries: &'q [T], device: Device) -> Result<Cow<'q, [f32]>> {
        self.codec.transform(queries, self.dim, self.metric, device)
    }
}

/// What is asked besides the queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Lists to search, 1 to their number.
    pub(crate) probes: usize,
    /// Which vectors may be found: bit r for the vector of rank r ([`Lists::directory`]).
    pub(crate) filter: Option<&'a Bitset>,
    /// How to scan.
    pub(crate) scan: Scan,
}

/// What a device does for an inverted file. Arguments were checked: whole finite queries, at least one; k ≥ 1.
pub(crate) trait IvfBackend<T: Element>: Send + Sync {
    /// Fills `ids` and `distances` (queries × k, both) with the k best vectors of the probed lists by (canonical distance, lower
    /// id), then [`NONE`](crate::NONE) and the worst distance.
    fn search(
        &self,
        view: &View<'_, T>,
        queries: &[T],
        k: usize,
        request: &Request<'_>,
        ids: &mut [u64],
        distances: &mut [f32],
    ) -> Result<()>;

    /// All vectors of the probed lists whose canonical distance is at most `radius` (similarity: at least), which is a number,
    /// best first for each query, equal ones by lower id.
    fn range_search(
        &self,
        view: &View<'_, T>,
        queries: &[T],
        radius: f32,
        request: &Request<'_>,
    ) -> Result<RangeNeighbors>;

    /// The device in words.
    fn describe(&self) -> String;
}
