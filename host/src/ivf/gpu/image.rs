//! The image of an inverted file in device memory, made from the master copy on the host.
//!
//! Lists are stored one after the other. Each starts at a multiple of `pairs::PAD` rows, so that the scores of a list
//! start at a sector. The padding rows between lists repeat the last vector of the list before. Any vector of the index
//! is suitable: the values of these rows are +∞, but the bounds include their norms. Padding rows of a whole tile
//! follow the last list, because scans copy whole tiles.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::ivf::list_scan::{self, TILE_ROWS};
use warpann_kernels::ivf::pairs;

use super::storage::{Growth, Storage};
use super::stored::Image;
use super::stored_plan::{Held, ImageShape, Measured, Source, StoredParts, StoredPlan, prepared};
use super::turn::TurnPlan;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::ivf::lists::CodeRows;
use crate::ivf::view::View;
use crate::product::centre::Centre;
use crate::product::gpu::{Unprepared, VectorShape, greatest_of, prepare_rows, upload_rows};
use crate::{ElementType, Error, Metric, Result, events, host_memory};

/// An image and its memory.
pub(super) struct Resident {
    /// The version of the index that the image shows.
    pub version: u64,
    pub image: Image,
    /// Number of bytes in device memory.
    pub bytes: u64,
    /// Element i is the sum of the i + 1 longest padded lists: the largest number of rows that i + 1 probes score.
    pub longest: Vec<u64>,
    /// Number of vectors of the longest list.
    pub longest_list: u32,
    pub(super) storage: Storage,
    /// The place in each list of the whole index of the first vector that is here.
    pub(super) firsts: Vec<u32>,
    pub(super) parts: ImageParts,
    /// The bits of the greatest component, from which the scale follows.
    pub(super) greatest: u32,
    memory: Memory,
}

/// The parts of an image that change with the vectors.
#[derive(Clone, Copy)]
pub(super) struct ImageParts {
    pub stored: StoredParts,
    pub values: PtrMut<f32>,
    pub ranks: PtrMut<u32>,
    pub starts: PtrMut<u32>,
    pub lengths: PtrMut<u32>,
    /// As [`Measured::greatest`], [`Measured::bounds`] and [`Measured::code_bounds`].
    pub greatest: PtrMut<u32>,
    pub bounds: PtrMut<u32>,
    pub code_bounds: PtrMut<u32>,
}

/// The places of the parts of an image.
struct ImagePlan<'a> {
    dim: usize,
    metric: Metric,
    in_place: bool,
    stored: Box<dyn StoredPlan + 'a>,
    values: Reserved<f32>,
    ranks: Reserved<u32>,
    starts: Reserved<u32>,
    lengths: Reserved<u32>,
    centroids: Reserved<f32>,
    f16_centroids: Reserved<u16>,
    centroid_values: Reserved<f32>,
    /// The rotation, if there is one and the device has memory for it.
    turn: Option<TurnPlan>,
    centre: Reserved<f32>,
    /// Greatest component of the vectors, and then (cosine only) of the centroids.
    greatest: Reserved<u32>,
    /// Bits of the greatest norm and residual of the vectors, and then of the centroids; then of the greatest factor of
    /// a vector, and of the greatest norm of its code.
    bounds: Reserved<u32>,
    bytes: usize,
}

impl<'a> ImagePlan<'a> {
    fn new(view: &View<'a>, storage: &Storage, budget: u64, limits: &Limits) -> ImagePlan<'a> {
        let (dim, lists, rows) = (view.dim, view.list_count(), storage.rows as usize);
        let stride = dim.next_multiple_of(4);
        let f16_stride = dim.next_multiple_of(list_scan::CHUNK as usize);
        let padded_lists = lists.next_multiple_of(TILE_ROWS as usize);
        let mut layout = Layout::default();
        let shape = ImageShape {
            dim,
            lists,
            metric: view.metric,
            centroids: view.centroids,
            rows: storage.rows,
            longest_list: storage.longest(),
            budget,
        };
        let stored = view.codec.plan(&mut layout, &shape);
        let plan = ImagePlan {
            dim,
            metric: view.metric,
            in_place: view.codec.in_place(),
            stored,
            values: layout.array(rows),
            ranks: layout.array(rows),
            starts: layout.array(lists),
            lengths: layout.array(lists),
            centroids: layout.array(lists * stride),
            f16_centroids: layout.array(padded_lists * f16_stride),
            centroid_values: layout.array(padded_lists),
            turn: view.codec.turn().and_then(|turn| TurnPlan::new(&mut layout, turn, dim, limits)),
            centre: layout.array(stride),
            greatest: layout.array(2),
            bounds: layout.array(6),
            bytes: 0,
        };
        ImagePlan { bytes: layout.bytes(), ..plan }
    }

    /// The words for the greatest components of the vectors and of the centroids.
    fn greatest(&self) -> (Reserved<u32>, Reserved<u32>) {
        let (of_vectors, of_centroids) = self.greatest.split_at(1);
        // Cosine scales vectors by their norms, so the centroids need a separate scale.
        (of_vectors, if self.metric.divides_by_norms() && self.in_place { of_centroids } else { of_vectors })
    }

    /// Whether a centre is subtracted from queries and vectors.
    fn is_centred(&self) -> bool {
        self.metric.ignores_translation() && !self.stored.fixed_scale()
    }

    /// The image in `memory`.
    fn image(&self, memory: Scratch) -> Image {
        let (greatest, centroid_greatest) = self.greatest();
        Image {
            dim: self.dim as u32,
            metric: self.metric,
            lists: self.lengths.len() as u32,
            rows: self.ranks.len() as u32,
            f16_stride: self.dim.next_multiple_of(list_scan::CHUNK as usize) as u32,
            stored: self.stored.stored(memory),
            values: memory.at(self.values).into(),
            ranks: memory.at(self.ranks).into(),
            starts: memory.at(self.starts).into(),
            lengths: memory.at(self.lengths).into(),
            centroids: memory.at(self.centroids).into(),
            f16_centroids: memory.at(self.f16_centroids).into(),
            centroid_values: memory.at(self.centroid_values).into(),
            turn: self.turn.map(|turn| turn.on_device(memory)),
            centre: self.is_centred().then(|| memory.at(self.centre).into()),
            greatest: memory.at(greatest).into(),
            centroid_greatest: memory.at(centroid_greatest).into(),
            // Kernels raise the bits of non-negative floats; searches read them as floats.
            bounds: memory.at(self.bounds.cast::<f32>()).into(),
        }
    }

    /// The parts of the image in `memory` that change with the vectors.
    fn parts(&self, memory: Scratch) -> ImageParts {
        ImageParts {
            stored: self.stored.parts(memory),
            values: memory.at(self.values),
            ranks: memory.at(self.ranks),
            starts: memory.at(self.starts),
            lengths: memory.at(self.lengths),
            greatest: memory.at(self.greatest().0),
            bounds: memory.at(self.bounds.part(0, 2)),
            code_bounds: memory.at(self.bounds.part(4, 2)),
        }
    }

    /// Copies the index to the device.
    ///
    /// # Safety
    /// `memory` has the plan's bytes, and the plan was made for this index and storage.
    unsafe fn copy_to_device(
        &self,
        on: OnStream<'_>,
        memory: Scratch,
        view: &View<'_>,
        storage: &Storage,
        held: Option<Held>,
    ) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let shape = VectorShape::new(ElementType::F32, view.metric, self.dim);
        // SAFETY: every part was reserved with the size that is written; the stream runs the copies in order.
        unsafe {
            runtime.copy_to_device(stream, memory.at(self.starts), &storage.starts)?;
            runtime.copy_to_device(stream, memory.at(self.lengths), &storage.lengths)?;
            upload_rows(runtime, stream, shape, memory.at(self.centroids).as_bytes(), view.centroids)?;
            if let (Some(to), Some(turn)) = (self.turn, view.codec.turn()) {
                upload_rows(runtime, stream, shape, memory.at(to.rows).as_bytes(), turn.rows())?;
            }
            if self.is_centred() {
                let centre = middle(view, held, self.centre.len());
                runtime.copy_to_device(stream, memory.at(self.centre), &centre)?;
            }
            let greatest = [self.stored.least_greatest().to_bits(), 0];
            runtime.copy_to_device(stream, memory.at(self.greatest), &greatest)?;
            runtime.fill(stream, memory.at(self.bounds), 0)?;
            storage.copy_to_device(on, memory.at(self.ranks).as_bytes(), 4, |list, places, to| {
                let filled = storage.filled(list, &places);
                let (own, padding) = to.split_at_mut(4 * filled.len());
                view.ranks_into(list, filled, bytemuck::cast_slice_mut(own));
                padding.fill(0xff);
            })?;
            let ranks = memory.at(self.ranks).into();
            let codes = &|list| any_row(view, list);
            self.stored.copy_to_device(&Source { on, codes, storage, held, ranks }, memory)
        }
    }

    /// Makes scales, f16 operands, values and bounds.
    ///
    /// # Safety
    /// As [`Self::copy_to_device`], whose work precedes this in the stream; `image` is in `memory`.
    unsafe fn prepare(&self, on: OnStream<'_>, memory: Scratch, image: &Image) -> Result<()> {
        let OnStream { runtime, stream } = on;
        let (greatest, centroid_greatest) = self.greatest();
        let (greatest, centroid_greatest) = (memory.at(greatest), memory.at(centroid_greatest));
        let bounds = memory.at(self.bounds);
        let (bounds, centroid_bounds, code_bounds) = (bounds.take(2), bounds.skip(2).take(2), bounds.skip(4));
        let values = memory.at(self.values);
        let centroids = Unprepared {
            element: ElementType::F32,
            rows: image.centroids.as_bytes(),
            count: image.lists,
            padded: image.lists.next_multiple_of(TILE_ROWS),
            stride: image.stride(),
            centre: image.centre,
            metric: image.probe_metric(),
            tiles: None,
            greatest: centroid_greatest,
        };
        // SAFETY: the plan reserved every part with the size that the kernels require; the stream runs the launches in
        // order.
        unsafe {
            if !self.stored.fixed_scale() {
                greatest_of(runtime, stream, centroids)?;
            }
            let all = Measured {
                image,
                codes: image.stored.rows,
                row_count: image.rows,
                row_lists: Ptr::empty(),
                greatest,
                operands: PtrMut::empty(),
                values,
                bounds,
                code_bounds,
            };
            self.stored.prepare(on, memory, all)?;
            let (f16_centroids, values) = (memory.at(self.f16_centroids), memory.at(self.centroid_values));
            prepare_rows(runtime, stream, centroids, prepared(image, f16_centroids, values, centroid_bounds))
        }
    }
}

impl Resident {
    /// Copies the index to the device and prepares it for scans, within `budget` bytes; without room for growth if that
    /// exceeds the budget. The index has vectors, and the caller has made their directory if the ids need one, because
    /// this function must not use the thread pool.
    pub fn new(runtime: &Runtime, stream: &Stream, view: &View<'_>, budget: u64, growth: Growth) -> Result<Resident> {
        let on = OnStream { runtime, stream };
        match Resident::with_growth(on, view, None, budget, growth) {
            Err(Error::OutOfDeviceMemory { .. } | Error::TooMany { what: "rows", .. }) if growth != Growth::None => {
                Resident::with_growth(on, view, None, budget, Growth::None)
            }
            made => made,
        }
    }

    /// As [`new`](Self::new), of vectors that the device has.
    pub fn of_held(on: OnStream<'_>, view: &View<'_>, held: Held, budget: u64) -> Result<Resident> {
        Resident::with_growth(on, view, Some(held), budget, Growth::None)
    }

    fn with_growth(
        on: OnStream<'_>,
        view: &View<'_>,
        held: Option<Held>,
        budget: u64,
        growth: Growth,
    ) -> Result<Resident> {
        let OnStream { runtime, stream } = on;
        let places = || (0..view.list_count()).map(|list| view.places(list));
        let storage = Storage::new(places().map(|places| places.len() as u32).collect(), growth)?;
        let firsts = places().map(|places| places.start as u32).collect();
        let plan = ImagePlan::new(view, &storage, budget, runtime.limits());
        let bytes = plan.bytes as u64;
        if bytes > budget {
            return Err(Error::OutOfDeviceMemory { device: runtime.describe(), asked: bytes, available: budget });
        }
        let started = events::Started::now();
        let memory = runtime.allocate(plan.bytes)?;
        let scratch = runtime.scratch(&memory);
        let (image, parts) = (plan.image(scratch), plan.parts(scratch));
        let mut greatest = [0];
        // SAFETY: the memory was allocated for the plan, and the plan was made for the index.
        unsafe {
            plan.copy_to_device(on, scratch, view, &storage, held)?;
            plan.prepare(on, scratch, &image)?;
            runtime.copy_to_host(stream, &mut greatest, parts.greatest)?;
        }
        runtime.synchronize(stream)?;
        events::uploaded("image of an inverted file", || runtime.describe(), bytes, &started);
        let mut made = Resident {
            version: view.version(),
            image,
            bytes,
            longest: Vec::new(),
            longest_list: 0,
            storage,
            firsts,
            parts,
            greatest: greatest[0],
            memory,
        };
        made.note_lengths();
        Ok(made)
    }

    /// A copy within the memory of the device, of use once [`update`](Self::update) has brought it to the version of
    /// `view`; `None` if that cannot be done.
    pub fn copied(
        &self,
        OnStream { runtime, stream }: OnStream<'_>,
        view: &View<'_>,
        budget: u64,
        spare: Option<Resident>,
    ) -> Result<Option<Resident>> {
        if view.changed_since(self.version).is_none() {
            return Ok(None);
        }
        // The places in an image follow from the training, the number of rows and the budget, which are the same.
        let plan = ImagePlan::new(view, &self.storage, budget, runtime.limits());
        if plan.bytes as u64 != self.bytes {
            return Ok(None);
        }
        let (storage, firsts) = (self.storage.copied()?, host_memory::copied(&self.firsts)?);
        let memory = spare.map_or_else(|| runtime.allocate(plan.bytes), |spare| Ok(spare.memory))?;
        let (to, from) = (runtime.scratch(&memory), runtime.scratch(&self.memory));
        let all = Layout::default().array::<u8>(plan.bytes);
        // SAFETY: both memories have the plan's bytes, and differ. Nothing changes an image that others have.
        unsafe { runtime.copy(stream, to.at(all), from.at(all))? };
        runtime.synchronize(stream)?;
        Ok(Some(Resident {
            version: self.version,
            image: plan.image(to),
            bytes: self.bytes,
            longest: Vec::new(),
            longest_list: 0,
            storage,
            firsts,
            parts: plan.parts(to),
            greatest: self.greatest,
            memory,
        }))
    }

    /// Computes what follows from the lengths of the lists.
    pub(super) fn note_lengths(&mut self) {
        let padded = self.storage.lengths.iter().map(|&length| u64::from(pairs::padded(length)));
        self.longest.clear();
        self.longest.extend(padded);
        self.longest.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        for length in &mut self.longest {
            sum += *length;
            *length = sum;
        }
        self.longest_list = self.storage.longest();
        if let Some(tables) = &mut self.image.stored.tables {
            tables.shape.longest_list = self.longest_list;
        }
    }
}

/// The rows of a list, or of the next list that is not empty, so that every padding row is a vector of the index.
fn any_row<'a>(view: &View<'a>, list: usize) -> CodeRows<'a> {
    let lists = view.list_count();
    (0..lists).map(|on| view.codes((list + on) % lists)).find(|codes| !codes.is_empty()).unwrap_or_default()
}

/// The mean of the centroids, weighted by the lengths of their lists, with zeros up to `stride`. If the vectors are
/// whole numbers, the mean is rounded to whole numbers, so that f16 holds the differences exactly.
fn middle(view: &View<'_>, held: Option<Held>, stride: usize) -> Vec<f32> {
    let mut centre = Centre::default();
    for (list, centroid) in view.centroids.chunks_exact(view.dim).enumerate() {
        centre.add_row(centroid, view.length(list) as f64);
    }
    let sample =
        || (0..view.list_count()).take(16).all(|list| view.codes(list).runs().all(|codes| view.codec.whole(codes)));
    let whole =
        matches!(view.element, ElementType::U8 | ElementType::I8) || held.map_or_else(sample, |held| held.whole);
    centre.rounded(whole, stride)
}
