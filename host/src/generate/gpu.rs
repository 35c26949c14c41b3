//! Generated vectors on a device: making them, and exact search in any number of them, block by block.

use std::ops::Range;

use cuda_std::PtrMut;
use warpann_kernels::generate::GenerateRows;

use super::generator::Generator;
use crate::device::lanes::Lanes;
use crate::device::runtime::{Runtime, Stream};
use crate::device::scratch::Layout;
use crate::device::tiling::{Budget, Tiling};
use crate::flat::gpu::block::{Block, Tuning};
use crate::product::centre::Centre;
use crate::product::gpu::{SetLayout, VectorSet, VectorShape, prepare_set};
use crate::shards::merge;
use crate::vectors::VectorSlice;
use crate::{ElementType, Metric, Neighbors, Result};

/// Largest number of rows of a block of exact search.
const BLOCK_ROWS: usize = 1 << 22;
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

/// Finds for each query (checked, at least one) the k nearest of the rows `rows` (at least one) of `generator`. `found`
/// has empty slots for these queries and this k.
pub(crate) fn nearest(
    runtime: &Runtime,
    generator: &Generator,
    rows: Range<u64>,
    queries: VectorSlice<'_>,
    k: usize,
    found: &mut Neighbors,
) -> Result<()> {
    let shape = VectorShape::new(ElementType::F32, Metric::L2, generator.dim());
    let budget = runtime.budget(None)?;
    let plan = |rows: usize| {
        let mut layout = Layout::default();
        Ok((SetLayout::reserve(&mut layout, shape, rows), layout))
    };
    let count = (rows.end - rows.start) as usize;
    let blocks = Tiling::new(Budget::new(runtime, budget / BLOCK_SHARE), (count, BLOCK_ROWS), 1, plan)?;
    let (set_layout, layout) = &blocks.plan;
    let mut centre = Centre::default();
    let sample = (rows.end - rows.start).min(CENTRE_ROWS) as usize;
    centre.add(VectorSlice::of(&generator.rows(rows.start, sample), shape.dim));
    let centre = centre.components(shape.stride());
    let memory = runtime.allocate(layout.bytes())?;
    let scratch = runtime.scratch(&memory);
    let mut more = found.clone();
    Lanes::new().with(runtime, |lane| {
        for part in blocks.tiles() {
            let (first, count) = (rows.start + part.start as u64, part.len() as u32);
            let base = VectorSet::new(scratch, *set_layout, count);
            // SAFETY: the layout reserved every part for the rows of a block; the search of the block before is over,
            // for its results are on the host.
            unsafe {
                enqueue_rows(runtime, &lane.stream, generator, first, count, shape.stride(), base.components())?;
                runtime.copy_to_device(&lane.stream, base.centre(), &centre)?;
                prepare_set(runtime, &lane.stream, shape, base, true)?;
            }
            let block =
                Block { shape, base, centred: true, first_id: first, tuning: Tuning::of(runtime.limits()), mask: None };
            let of_queries = Budget::new(runtime, budget - layout.bytes() as u64);
            let each = block.tiling(of_queries, (queries.len(), usize::MAX), k, 1)?.rows;
            let outs = more.ids.chunks_mut(each * k).zip(more.distances.chunks_mut(each * k));
            for (queries, (ids, distances)) in queries.chunks(each).zip(outs) {
                block.search(runtime, lane, queries, k, ids, distances)?;
            }
            merge(shape.metric, k, &mut found.ids, &mut found.distances, &[(&more.ids, &more.distances)]);
        }
        Ok(())
    })
}
