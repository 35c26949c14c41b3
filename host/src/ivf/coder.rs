//! From vectors to lists and codes: the work on rows before they are added to an index.
//!
//! A GPU finds lists, and for some encodings codes, with centroids and tables that it has prepared. After few vectors
//! these stay for the next call, of this version of the index or of another ([`KeptCoders`]). So 1,000 vectors cost a
//! copy of them and a few launches (`kmeans::gpu::assigner`), and no allocation. When each call allocated and prepared
//! all of it, adding one vector of 128 components to one of 1,024 lists took 0.28 ms (f32) or 1.18 ms (pq:32x8; H100,
//! 2026-11-25).

use std::borrow::Cow;
use std::mem::replace;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::encoding::{Clamped, DeviceCoder, Trained};
use super::settings::Settings;
use crate::generate::{Generator, Rows};
use crate::kmeans::{assign_on_cpu, open_assigner};
use crate::pq::encode::Residuals;
use crate::shards::{divided, joined};
use crate::vectors::{VectorSlice, bits_apart};
use crate::{Device, Element, Input, Result, events, host_memory};

/// Vectors of at most this number of bytes leave the coders to the next call.
const FEW_BYTES: usize = 8 << 20;
/// The most device memory of coders that stay, in bytes.
const KEPT_BYTES: usize = 64 << 20;
/// Bytes of vectors of bits that are taken apart at a time.
const APART_BYTES: usize = 64 << 20;
/// Coders that stay take at most one part of this number of the memory budget.
const KEPT_SHARE: u64 = 16;

/// Lists and codes of some vectors, in the order of the vectors.
pub(crate) struct Coded<'a> {
    pub(crate) labels: Vec<u32>,
    /// The codes of all vectors, one after the other.
    pub(crate) codes: Cow<'a, [u8]>,
    /// Numbers of vectors and components beyond the reach of the codes.
    pub(crate) clamped: Clamped,
}

impl Coded<'_> {
    pub(crate) fn into_owned(self) -> Coded<'static> {
        Coded { labels: self.labels, codes: Cow::Owned(self.codes.into_owned()), clamped: self.clamped }
    }
}

/// Coders of the devices of an index, kept for later additions. The devices divide the vectors; each makes its coder
/// when it first gets some.
pub(crate) struct Coders {
    places: Vec<Place>,
}

/// The coders that the versions of an index leave for the next call that adds few vectors. They belong to one training
/// and to the devices of one placement: an index that changes these takes another place for coders.
#[derive(Default)]
pub(crate) struct KeptCoders(Mutex<Option<Coders>>);

impl KeptCoders {
    /// The coders. Until they come back, another call makes coders of its own.
    pub(crate) fn take(&self) -> Option<Coders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Leaves coders, or none.
    pub(crate) fn put(&self, coders: Option<Coders>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = replace(&mut *kept, coders);
        // Their memory is freed without the lock.
        drop(kept);
        drop(before);
    }

    /// As [`Coders::bytes`]; `None` without coders.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> Option<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Coders::bytes)
    }
}

/// A device, with its coder unless it is the CPU or has had no vectors.
struct Place {
    device: Device,
    made: Mutex<Option<Arc<DeviceCoder>>>,
}

impl Coders {
    /// Coders for the devices of an index, each of which opens its device at its first vectors.
    pub(crate) fn new(settings: &Settings) -> Coders {
        let place = |&device: &Device| Place { device, made: Mutex::new(None) };
        Coders { places: settings.placement.devices().iter().map(place).collect() }
    }

    /// Whether coders may stay after a call for rows of this number of bytes. Coders that stay are for such calls.
    pub(crate) fn may_stay(bytes: usize) -> bool {
        bytes <= FEW_BYTES
    }

    /// The same, for the next call, unless they take much memory of a device.
    pub(crate) fn kept(self, settings: &Settings) -> Option<Coders> {
        let share =
            settings.budget.map_or(usize::MAX, |budget| usize::try_from(budget / KEPT_SHARE).unwrap_or(usize::MAX));
        (self.bytes() <= share.min(KEPT_BYTES)).then_some(self)
    }

    /// The greatest number of bytes that the coder of a place has in device memory.
    pub(super) fn bytes(&self) -> usize {
        self.places.iter().map(|place| place.made().as_ref().map_or(0, |made| made.bytes())).max().unwrap_or(0)
    }
}

impl Place {
    fn made(&self) -> std::sync::MutexGuard<'_, Option<Arc<DeviceCoder>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The coder, which is made for vectors like these; `None` on the CPU.
    fn coder(&self, settings: &Settings, trained: &Trained, like: VectorSlice<'_>) -> Result<Option<Arc<DeviceCoder>>> {
        let mut made = self.made();
        if made.is_none() {
            let (by, budget) = (settings.metric.assigned_by(), settings.budget);
            if let Some(assigner) = open_assigner(self.device, by, like, &trained.centroids, budget)? {
                *made = Some(Arc::new(trained.codec.device_coder(assigner)?));
            }
        }
        Ok(made.clone())
    }
}

/// Codes vectors for one index.
pub(crate) struct Coder<'a, T: Element> {
    settings: &'a Settings,
    trained: &'a Trained,
    coders: &'a Coders,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Element> Coder<'a, T> {
    pub(crate) fn new(settings: &'a Settings, trained: &'a Trained, coders: &'a Coders) -> Self {
        Coder { settings, trained, coders, element: std::marker::PhantomData }
    }

    /// Number of components of a vector.
    pub(crate) fn dim(&self) -> usize {
        self.settings.dim
    }

    /// Finds lists and codes of rows, whole and row-major. Checks that they are finite: a device while it copies them,
    /// because to read a million vectors of 128 components only for that took 7 of 41 ms (Xeon of an H200, 2026-11-26).
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite), [`Error::DoesNotFit`](crate::Error::DoesNotFit),
    /// [`Error::Overflow`](crate::Error::Overflow), and the errors of the devices.
    pub(crate) fn code<'r>(&self, rows: &'r [T]) -> Result<Coded<'r>> {
        let vectors = VectorSlice::of(rows, self.dim());
        vectors.located(Input::Base, self.code_vectors(rows, vectors))
    }

    /// As [`code`](Self::code), but errors may name other places of values that are not finite. `vectors` are the rows.
    fn code_vectors<'r>(&self, rows: &'r [T], vectors: VectorSlice<'r>) -> Result<Coded<'r>> {
        let (settings, trained) = (self.settings, self.trained);
        let &Settings { dim, metric, ref placement, .. } = settings;
        if vectors.len() == 0 {
            return Ok(Coded { labels: Vec::new(), codes: Cow::Borrowed(&[]), clamped: Clamped::default() });
        }
        if trained.codec.in_place() {
            let labels = divided(&self.coders.places, vectors.len(), |part, place| {
                let vectors = vectors.part(part);
                if metric.compares_bits() {
                    return self.labels_of_bits(place, vectors);
                }
                self.labels(place.coder(settings, trained, vectors)?, vectors)
            })?;
            let codes = Cow::Borrowed(bytemuck::cast_slice(rows));
            return Ok(Coded { labels: joined(labels), codes, clamped: Clamped::default() });
        }
        let rows = trained.codec.transform(vectors, metric, placement.first())?;
        self.code_rows(Rows::Given(&rows), rows.len() / dim)
    }

    /// Finds lists of vectors by a device that finds lists only, or by the CPU.
    fn labels(&self, coder: Option<Arc<DeviceCoder>>, vectors: VectorSlice<'_>) -> Result<Vec<u32>> {
        match coder.as_deref() {
            Some(DeviceCoder::Lists(assigner)) => assigner.labels(vectors),
            _ => assign_on_cpu(self.settings.metric.assigned_by(), vectors, &self.trained.centroids),
        }
    }

    /// Finds lists of vectors of bits, whose bits are taken apart: some vectors at a time, as they take eight times the
    /// memory then.
    fn labels_of_bits(&self, place: &Place, vectors: VectorSlice<'_>) -> Result<Vec<u32>> {
        let (settings, trained) = (self.settings, self.trained);
        let mut labels = host_memory::with_room(vectors.len())?;
        for some in vectors.chunks((APART_BYTES / trained.dim).max(1)) {
            let apart = bits_apart::<u8>(some.bytes())?;
            let some = VectorSlice::of(&apart, trained.dim);
            labels.extend(self.labels(place.coder(settings, trained, some)?, some)?);
        }
        Ok(labels)
    }

    /// Finds lists and codes of transformed rows.
    fn code_rows(&self, rows: Rows<'_>, count: usize) -> Result<Coded<'static>> {
        let &Settings { dim, encoding, metric, .. } = self.settings;
        let Trained { ref centroids, ref codec, .. } = *self.trained;
        let code_bytes = encoding.scheme().code_bytes(dim, T::TYPE);
        let parts = divided(&self.coders.places, count, |part: Range<usize>, place| {
            let (first_row, count, rows) = (part.start, part.len(), rows.part(part, dim));
            let like = match rows {
                Rows::Given(rows) => rows,
                Rows::Generated { .. } => centroids,
            };
            let coder = place.coder(self.settings, self.trained, VectorSlice::of(like, dim))?;
            if let Some(DeviceCoder::Codes(coder)) = coder.as_deref() {
                let mut labels = host_memory::zeroed(count)?;
                let mut codes = host_memory::zeroed(host_memory::count::<u8>(&[count, code_bytes])?)?;
                coder.code(rows, &mut labels, &mut codes).map_err(|error| error.after_rows(first_row))?;
                // Generated rows never come to the host.
                let clamped = match rows {
                    Rows::Given(rows) => codec.clamped(rows, Residuals { labels: &labels, centroids }),
                    Rows::Generated { .. } => Clamped::default(),
                };
                return Ok((labels, (codes, clamped)));
            }
            let rows = match rows {
                Rows::Given(rows) => Cow::Borrowed(rows),
                Rows::Generated { generator, first } => {
                    let rows = generator.rows(first, count);
                    let turned = match codec.transform(VectorSlice::of(&rows, dim), metric, Device::Cpu)? {
                        Cow::Owned(turned) => Some(turned),
                        Cow::Borrowed(_) => None,
                    };
                    Cow::Owned(turned.unwrap_or(rows))
                }
            };
            let labels = self.labels(coder, VectorSlice::of(&rows, dim))?;
            let residuals = Residuals { labels: &labels, centroids };
            let codes = codec.encode(&rows, residuals).map_err(|error| error.after_rows(first_row))?;
            let clamped = codec.clamped(&rows, residuals);
            Ok((labels, (codes, clamped)))
        })?;
        let (labels, coded): (_, Vec<_>) = parts.into_iter().unzip();
        let (codes, clamped): (_, Vec<Clamped>) = coded.into_iter().unzip();
        let clamped: Clamped = clamped.into_iter().sum();
        events::clamped(
            || self.settings.encoding.to_string(),
            clamped.vectors,
            clamped.components,
            (count * dim) as u64,
        );
        Ok(Coded { labels: joined(labels), codes: Cow::Owned(joined(codes)), clamped })
    }
}

impl Coder<'_, f32> {
    /// Finds lists and codes of `count` rows of `generator`, from row `first` on.
    pub(crate) fn code_generated(&self, generator: &Generator, first: u64, count: usize) -> Result<Coded<'static>> {
        let codec = &self.trained.codec;
        // Rows need not come to the host.
        if !codec.in_place() && codec.codes_generated() && !self.settings.metric.divides_by_norms() {
            return self.code_rows(Rows::Generated { generator, first }, count);
        }
        Ok(self.code(&generator.rows(first, count))?.into_owned())
    }
}
