//! From vectors to lists and codes: the work on rows before they are added to an index.

use std::borrow::Cow;

use super::encoding::{CoderOn, ListCoder};
use super::{Settings, Trained};
use crate::generate::{Generator, Rows};
use crate::kmeans::assign_rows;
use crate::pq::encode::Residuals;
use crate::shards::{divided, joined};
use crate::vectors::VectorSlice;
use crate::{Device, Element, Result, host_memory};

/// Lists and codes of some vectors, in the order of the vectors.
pub(crate) struct Coded<'a> {
    pub(crate) labels: Vec<u32>,
    /// The codes of all vectors, one after the other.
    pub(crate) codes: Cow<'a, [u8]>,
}

impl Coded<'_> {
    pub(crate) fn into_owned(self) -> Coded<'static> {
        Coded { labels: self.labels, codes: Cow::Owned(self.codes.into_owned()) }
    }
}

/// Codes vectors for one index. All batches share its tables, which are made once.
pub(crate) struct Coder<'a, T: Element> {
    settings: &'a Settings,
    trained: &'a Trained,
    /// The devices, which divide the rows; each with a coder for a GPU or the emulator, if the encoding has one.
    places: Vec<(Device, Option<Box<dyn ListCoder + 'a>>)>,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Element> Coder<'a, T> {
    pub(crate) fn new(settings: &'a Settings, trained: &'a Trained) -> Result<Self> {
        let coder = |&device: &Device| {
            let (by, centroids, budget) = (settings.metric.assigned_by(), &trained.centroids[..], settings.budget);
            Ok((device, trained.codec.list_coder(CoderOn { device, by, centroids, budget })?))
        };
        let places = settings.placement.devices().iter().map(coder).collect::<Result<_>>()?;
        Ok(Coder { settings, trained, places, element: std::marker::PhantomData })
    }

    /// Number of components of a vector.
    pub(crate) fn dim(&self) -> usize {
        self.settings.dim
    }

    /// Finds lists and codes of checked rows, row-major.
    pub(crate) fn code<'r>(&self, rows: &'r [T]) -> Result<Coded<'r>> {
        let (settings, trained) = (self.settings, self.trained);
        let &Settings { dim, metric, ref placement, budget, .. } = settings;
        if trained.codec.in_place() {
            let labels = assign_rows(placement, metric.assigned_by(), rows, dim, &trained.centroids, budget)?;
            return Ok(Coded { labels, codes: Cow::Borrowed(bytemuck::cast_slice(rows)) });
        }
        let rows = trained.codec.transform(VectorSlice::of(rows, dim), metric, placement.first())?;
        self.code_rows(Rows::Given(&rows), rows.len() / dim)
    }

    /// Finds lists and codes of transformed rows.
    fn code_rows(&self, rows: Rows<'_>, count: usize) -> Result<Coded<'static>> {
        let &Settings { dim, metric, budget, encoding, .. } = self.settings;
        let Trained { centroids, codec } = self.trained;
        let code_bytes = encoding.scheme().code_bytes(dim, T::TYPE);
        let parts = divided(&self.places, count, |part, (device, coder)| {
            let (first_row, count, rows) = (part.start, part.len(), rows.part(part, dim));
            if let Some(coder) = coder {
                let mut labels = host_memory::zeroed(count)?;
                let mut codes = host_memory::zeroed(host_memory::count::<u8>(&[count, code_bytes])?)?;
                coder.code(rows, &mut labels, &mut codes)?;
                return Ok((labels, codes));
            }
            let rows = match rows {
                Rows::Given(rows) => Cow::Borrowed(rows),
                Rows::Generated { generator, first } => Cow::Owned(generator.rows(first, count)),
            };
            let labels = assign_rows(&(*device).into(), metric.assigned_by(), &rows, dim, centroids, budget)?;
            let codes = codec.encode(&rows, Residuals { labels: &labels, centroids });
            let codes = codes.map_err(|error| error.after_rows(first_row))?;
            Ok((labels, codes))
        })?;
        let (labels, codes) = parts.into_iter().unzip();
        Ok(Coded { labels: joined(labels), codes: Cow::Owned(joined(codes)) })
    }
}

impl Coder<'_, f32> {
    /// Finds lists and codes of `count` rows of `generator`, from row `first` on.
    pub(crate) fn code_generated(&self, generator: &Generator, first: u64, count: usize) -> Result<Coded<'static>> {
        let codec = &self.trained.codec;
        // These codecs neither rotate nor normalise rows, so a device can generate the rows that it codes.
        if !codec.in_place() && codec.rotation().is_none() && !self.settings.metric.divides_by_norms() {
            return self.code_rows(Rows::Generated { generator, first }, count);
        }
        Ok(self.code(&generator.rows(first, count))?.into_owned())
    }
}
