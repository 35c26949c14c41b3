//! Generated vectors on a device: making them, and exact search in any number of them, block by block.

use std::ops::Range;

use cuda_std::PtrMut;
use warpann_kernels::generate::GenerateRows;

use super::Generator;
use crate::device::lanes::Lanes;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::flat::gpu::Centre;
use crate::flat::gpu::exact::{Block, Tuning};
use crate::product::gpu::{Set, SetLayout, Shape, prepare_set};
use crate::shards::merge;
use crate::vectors::VectorSlice;
use crate::{ElementType, Error, Metric, Neighbors, Result};

/// Largest number of rows of a block of exact search.
const BLOCK_ROWS: u64 = 1 << 22;
/// A block may take this fraction of the memory: one divided by this number.
const BLOCK_SHARE: u64 = 2;
/// Number of rows from which the centre is estimated.
const CENTRE_ROWS: u64 = 4096;

/// Makes `count` rows from row `first` on. Consecutive rows are `stride` components apart.
///
/// # Safety
/// `to` has room for the rows and is aligned to 16 bytes; `stride` is a multiple of 4.
pub(crate) unsafe fn enqueue_rows(
    runtime: &Runtime,
    stream: &Stream,
    generator: &Generator,
    first: u64,
    count: u32,
    stride: usize,
    to: PtrMut<f32>,
) -> Result<()> {
    let (seed, clusters) = generator.law();
    let (dim, stride) = (generator.dim() as u32, stride as u32);
    let launch = GenerateRows { seed, clusters, first, count, dim, stride, out: to };
    // SAFETY: as the caller promises.
    unsafe { runtime.launch(stream, &GenerateRows::KERNEL, launch.config(), launch) }
}

/// Finds for each query (checked, at least one) the k nearest of the rows `rows` (at least one) of `generator`. `found` has empty slots for
/// these queries and this k.
pub(crate) fn nearest(
    runtime: &Runtime,
    generator: &Generator,
    rows: Range<u64>,
    queries: VectorSlice<'_>,
    k: usize,
    found: &mut Neighbors,
) -> Result<()> {
    let shape = Shape { element: ElementType::F32, metric: Metric::L2, dim: generator.dim() };
    let budget = runtime.budget(None)?;
    let of = |rows: u64| {
        let mut layout = Layout::default();
        let set = SetLayout::reserve(&mut layout, shape, rows as usize);
        (layout.bytes() as u64, set)
    };
    let mut each = (rows.end - rows.start).min(BLOCK_ROWS);
    while each > 1 && of(each).0 > budget / BLOCK_SHARE {
        each = each.div_ceil(2);
    }
    let (bytes, layout) = of(each);
    if bytes > budget / BLOCK_SHARE {
        let (device, available) = (runtime.describe(), budget / BLOCK_SHARE);
        return Err(Error::OutOfDeviceMemory { device, asked: bytes, available });
    }
    let mut centre = Centre::default();
    let sample = (rows.end - rows.start).min(CENTRE_ROWS) as usize;
    centre.add(VectorSlice::of(&generator.rows(rows.start, sample), shape.dim));
    let centre = centre.components(shape.stride());
    let memory = runtime.allocate(bytes as usize)?;
    let scratch = runtime.scratch(&memory);
    let mut more = found.clone();
    Lanes::new().with(runtime, |lane| {
        let mut first = rows.start;
        while first < rows.end {
            let count = (rows.end - first).min(each) as u32;
            let base = Set::new(scratch, layout, count);
            // SAFETY: the layout reserved every part for `each` rows. The search of the previous block has finished, because its results
            // are on the host.
            unsafe {
                enqueue_rows(runtime, &lane.stream, generator, first, count, shape.stride(), base.components())?;
                runtime.copy_to_device(&lane.stream, base.centre(), &centre)?;
                prepare_set(runtime, &lane.stream, shape, base, true)?;
            }
            let block = Block { shape, base, centred: true, first_id: first, tuning: Tuning::of(&runtime.limits()) };
            let tile = block.tile_queries(runtime, queries.len(), k, budget - bytes)?;
            let outs = more.ids.chunks_mut(tile * k).zip(more.distances.chunks_mut(tile * k));
            for (queries, (ids, distances)) in queries.chunks(tile).zip(outs) {
                block.search(runtime, lane, queries, k, ids, distances)?;
            }
            merge(shape.metric, k, &mut found.ids, &mut found.distances, &[(&more.ids, &more.distances)]);
            first += u64::from(count);
        }
        Ok(())
    })
}
