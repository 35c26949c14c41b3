//! From vectors to lists and codes: what happens to rows before they are put into an index.

use std::borrow::Cow;

use super::encoding::pq::coder::{Coder as DeviceCoder, ListCoder};
use super::{Codec, PqCodec, Settings, Trained};
use crate::device::open::open;
use crate::generate::{Generator, Rows};
use crate::kmeans::assign_rows;
use crate::kmeans::worker::Assign;
use crate::pq::encode::Residuals;
use crate::shards::{divided, joined};
use crate::{Device, Element, Metric, Result, host_memory};

/// Lists and codes of some vectors, in their order.
pub(crate) struct Coded<'a> {
    pub(crate) labels: Vec<u32>,
    /// One code after the other.
    pub(crate) codes: Cow<'a, [u8]>,
}

impl Coded<'_> {
    pub(crate) fn into_owned(self) -> Coded<'static> {
        Coded { labels: self.labels, codes: Cow::Owned(self.codes.into_owned()) }
    }
}

/// Codes vectors for one index; what all batches share is made once.
pub(crate) struct Coder<'a, T: Element> {
    settings: &'a Settings,
    trained: &'a Trained,
    /// The devices, which divide the rows; with what makes product-quantizer codes on a GPU or the emulator.
    places: Vec<(Device, Option<Box<dyn ListCoder + 'a>>)>,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Element> Coder<'a, T> {
    pub(crate) fn new(settings: &'a Settings, trained: &'a Trained) -> Result<Self> {
        let coder = |&device: &Device| {
            let Codec::Pq(pq) = &trained.codec else { return Ok((device, None)) };
            let (by, quantizer) = (by(settings.metric), &pq.quantizer);
            let Some(runtime) = open(device)?.1 else { return Ok((device, None)) };
            let coder = DeviceCoder::new(runtime, by, &trained.centroids, quantizer, settings.budget)?;
            Ok((device, Some(Box::new(coder) as Box<dyn ListCoder>)))
        };
        let places = settings.placement.devices().iter().map(coder).collect::<Result<_>>()?;
        Ok(Coder { settings, trained, places, element: std::marker::PhantomData })
    }

    /// Lists and codes of checked rows, row-major.
    pub(crate) fn code<'r>(&self, rows: &'r [T]) -> Result<Coded<'r>> {
        let (settings, trained) = (self.settings, self.trained);
        let &Settings { dim, metric, ref placement, budget, .. } = settings;
        let Codec::Pq(pq) = &trained.codec else {
            let labels = assign_rows(placement, by(metric), rows, dim, &trained.centroids, budget)?;
            return Ok(Coded { labels, codes: Cow::Borrowed(bytemuck::cast_slice(rows)) });
        };
        let rows = trained.codec.transform(rows, dim, metric, placement.first())?;
        self.code_rows(pq, Rows::Given(&rows), rows.len() / dim)
    }

    /// Product-quantizer codes of rows that were transformed.
    fn code_rows(&self, pq: &PqCodec, rows: Rows<'_>, count: usize) -> Result<Coded<'static>> {
        let &Settings { dim, metric, budget, .. } = self.settings;
        let centroids = &self.trained.centroids;
        let parts = divided(&self.places, count, |part, (device, coder)| {
            let (count, rows) = (part.len(), rows.part(part, dim));
            if let Some(coder) = coder {
                let mut labels = host_memory::zeroed(count)?;
                let mut codes = host_memory::zeroed(host_memory::count::<u8>(&[count, pq.quantizer.code_bytes()])?)?;
                coder.code(rows, &mut labels, &mut codes)?;
                return Ok((labels, codes));
            }
            let rows = match rows {
                Rows::Given(rows) => Cow::Borrowed(rows),
                Rows::Generated { generator, first } => Cow::Owned(generator.rows(first, count)),
            };
            let labels = assign_rows(&(*device).into(), by(metric), &rows, dim, centroids, budget)?;
            let codes = pq.quantizer.encode_residuals(&rows, Residuals { labels: &labels, centroids })?;
            Ok((labels, codes))
        })?;
        let (labels, codes) = parts.into_iter().unzip();
        Ok(Coded { labels: joined(labels), codes: Cow::Owned(joined(codes)) })
    }
}

impl Coder<'_, f32> {
    /// Lists and codes of `count` rows of `generator` from number `first` on.
    pub(crate) fn code_generated(&self, generator: &Generator, first: u64, count: usize) -> Result<Coded<'static>> {
        match &self.trained.codec {
            // Coded as they are: neither rotated nor normalised.
            Codec::Pq(pq) if pq.rotation.is_none() && self.settings.metric != Metric::Cosine => {
                self.code_rows(pq, Rows::Generated { generator, first }, count)
            }
            _ => Ok(self.code(&generator.rows(first, count))?.into_owned()),
        }
    }
}

/// How an index assigns vectors to lists.
fn by(metric: Metric) -> Assign {
    if metric == Metric::Cosine { Assign::InnerProduct } else { Assign::L2 }
}
