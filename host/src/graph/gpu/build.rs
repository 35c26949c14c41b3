//! The edges of a new graph, chosen on a device ([`warpann_kernels::graph::prune`]), and the parents of its nodes
//! ([`warpann_kernels::graph::reach`]): the same as on the CPU.
//!
//! ```text
//! for each batch of rows:  search ──append──► candidates ──prune──► edges          or the candidates come from the host
//! all rows:                count, fill: the edges back
//! for each batch of rows:  join ──prune──► edges ──► host, while the next batch is pruned
//! level after level:       claim, settle: parents
//! ```

use std::ops::Range;

use cuda_std::Ptr;
use cuda_std::launch::Kernel;
use warpann_kernels::graph::candidates::AppendCandidates;
use warpann_kernels::graph::prune::{Count, Fill, Join, Prune};
use warpann_kernels::graph::reach::{Claim, OPEN, Settle};

use super::super::candidates::{BATCH, PlannedLevel, Sizes};
use super::super::distance::WalkDistance;
use super::image::{code_stride, compared_codes, upload_codes};
use crate::device::lanes::{Lane, Lanes};
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::flat::ResidentRows;
use crate::knn_graph::{Graph, NO_NODE};
use crate::threads::apart;
use crate::{Error, Result, Stage, Watch, host_memory};

/// A device that chooses edges among the rows of a flat index.
pub(in super::super) struct DeviceBuild<'a> {
    resident: ResidentRows<'a>,
    distance: WalkDistance<'a>,
    degree: usize,
    /// The rows that are compared: those of the index, or codes.
    compared: Ptr<u8>,
    /// The memory of the codes, if there are any.
    _codes: Memory,
}

/// The source of the candidates of nodes.
#[derive(Clone, Copy)]
pub(in super::super) enum Source<'a> {
    /// The host has found them.
    Found(&'a Graph),
    /// Searches on the device find them, batch after batch.
    Searched(&'a [PlannedLevel]),
}

impl Source<'_> {
    /// Largest number of candidates of a node.
    fn most(self) -> usize {
        match self {
            Source::Found(graph) => graph.k(),
            Source::Searched(levels) => levels.iter().map(|level| level.of.most).sum(),
        }
    }
}

/// The arrays of a build in device memory.
struct Arrays {
    /// Candidates of the nodes of a batch, and later their joined edges.
    candidates: Reserved<u32>,
    found: Reserved<u64>,
    distances: Reserved<f32>,
    edges: Reserved<u32>,
    ends: Reserved<u32>,
    lists: Reserved<u32>,
    levels: Reserved<u32>,
    parents: Reserved<u32>,
    reached: Reserved<u32>,
}

/// A build with its memory on the stream of a lane.
struct Running<'a> {
    build: &'a DeviceBuild<'a>,
    runtime: &'a Runtime,
    stream: &'a Stream,
    at: Scratch,
    arrays: Arrays,
    /// Number of nodes, and of those of a batch.
    nodes: usize,
    batch: usize,
}

impl<'a> DeviceBuild<'a> {
    /// Brings what is compared to the device that has the rows. `None` if it has no memory.
    ///
    /// # Errors
    /// Errors of the device's driver.
    pub(in super::super) fn new(
        resident: ResidentRows<'a>,
        distance: WalkDistance<'a>,
        degree: usize,
    ) -> Result<Option<Self>> {
        let runtime = resident.runtime;
        let Some(codes) = compared_codes(&resident, &distance) else {
            let compared = resident.rows.into();
            return Ok(Some(DeviceBuild { resident, distance, degree, compared, _codes: runtime.no_memory() }));
        };
        let mut layout = Layout::default();
        let room = layout.array(codes.len() * code_stride(codes.dim()));
        let memory = match runtime.allocate(layout.bytes()) {
            Err(Error::OutOfDeviceMemory { .. }) => return Ok(None),
            memory => memory?,
        };
        let to = runtime.scratch(&memory).at(room);
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            resident.lanes.with(runtime, |lane| {
                // SAFETY: the memory has room for the codes, and no other work uses it yet.
                unsafe { upload_codes(runtime, &lane.background, to, codes)? };
                runtime.synchronize(&lane.background)
            })
        })?;
        Ok(Some(DeviceBuild { resident, distance, degree, compared: to.into(), _codes: memory }))
    }

    /// Whether the device has the shared memory for `most` candidates of a node, and the numbers of all edges of
    /// `nodes` nodes are u32.
    pub(in super::super) fn fits(&self, nodes: usize, most: usize) -> bool {
        let shared = self.resident.runtime.limits().shared_bytes;
        let Some(stride) = u32::try_from(self.stride()).ok().filter(|&stride| stride <= 1 << 16) else { return false };
        let Some(most) = u32::try_from(most.max(self.joined())).ok().filter(|&most| most <= 1 << 16) else {
            return false;
        };
        nodes.saturating_mul(self.degree) <= 1 << 31 && Prune::shared_bytes(stride, most, self.degree as u32) <= shared
    }

    /// Number of places of a node whose edges are joined with those back.
    fn joined(&self) -> usize {
        2 * self.degree
    }

    /// The device whose memory has the rows, and on which edges are chosen.
    pub(super) fn runtime(&self) -> &'a Runtime {
        self.resident.runtime
    }

    /// The lanes of the flat index.
    pub(super) fn lanes(&self) -> &'a Lanes {
        self.resident.lanes
    }

    /// Number of places of a node.
    pub(super) fn degree(&self) -> usize {
        self.degree
    }

    /// A pruning of no nodes.
    pub(super) fn pruning(&self) -> Prune {
        Prune {
            rows: self.compared,
            stride: self.stride() as u32,
            metric: self.distance.metric().of_kernel(),
            degree: self.degree as u32,
            ..Prune::default()
        }
    }

    /// The kernel of prunings.
    pub(super) fn prune_kernel(&self) -> &'static Kernel<Prune> {
        Prune::kernel(self.distance.row_key())
    }

    /// Distance from one compared row to the next in components.
    pub(super) fn stride(&self) -> usize {
        compared_codes(&self.resident, &self.distance)
            .map_or(self.resident.shape.stride(), |codes| code_stride(codes.dim()))
    }

    /// Fills `edges`, `degree` for each node. Returns the parents of the nodes to which edges lead from `starts`.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), [`Error::Cancelled`](crate::Error::Cancelled),
    /// errors of the device's driver.
    pub(in super::super) fn edges(
        &self,
        source: Source<'_>,
        starts: &[u32],
        edges: &mut [u32],
        watch: &Watch<'_>,
    ) -> Result<Vec<u32>> {
        // `apart` keeps a pool thread from starting another search while it has a lane.
        let ResidentRows { runtime, lanes, .. } = self.resident;
        apart(|| lanes.with_some(runtime, 2, |lanes| self.edges_on(lanes, source, starts, edges, watch)))
    }

    /// As [`edges`](Self::edges). The second lane copies edges to the host.
    fn edges_on(
        &self,
        lanes: &mut [Lane],
        source: Source<'_>,
        starts: &[u32],
        edges: &mut [u32],
        watch: &Watch<'_>,
    ) -> Result<Vec<u32>> {
        let (runtime, nodes) = (self.resident.runtime, edges.len() / self.degree);
        let batch = BATCH.min(nodes);
        let mut layout = Layout::default();
        let found = match source {
            Source::Found(_) => 0,
            Source::Searched(levels) => batch * (1 + levels.iter().map(|level| level.of.most).max().unwrap_or(0)),
        };
        let arrays = Arrays {
            candidates: layout.array(batch * source.most().max(self.joined())),
            found: layout.array(found),
            distances: layout.array(found),
            edges: layout.array(edges.len()),
            ends: layout.array(nodes),
            lists: layout.array(edges.len()),
            levels: layout.array(nodes),
            parents: layout.array(nodes),
            reached: layout.array(1),
        };
        let memory = runtime.allocate(layout.bytes())?;
        let at = runtime.scratch(&memory);
        let (stream, copying) = (&lanes[0].stream, &lanes[1].stream);
        let running = Running { build: self, runtime, stream, at, arrays, nodes, batch };
        // SAFETY: the layout has room for all arrays, and each step reads what the steps before it wrote.
        unsafe {
            running.choose(source, watch)?;
            running.join(copying, edges)?;
            running.reach(starts)
        }
    }
}

impl Running<'_> {
    fn batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (nodes, batch) = (self.nodes, self.batch);
        (0..nodes).step_by(batch).map(move |first| first..nodes.min(first + batch))
    }

    /// Chooses the edges of some nodes among `most` candidates each.
    ///
    /// # Safety
    /// The candidates of these nodes are on the device.
    unsafe fn prune(&self, some: Range<usize>, most: usize, in_order: bool) -> Result<()> {
        let degree = self.build.degree;
        let prune = Prune {
            first: some.start as u32,
            count: some.len() as u32,
            candidates: self.at.at(self.arrays.candidates).into(),
            most: most as u32,
            edges: self.at.at(self.arrays.edges.part(some.start * degree, some.len() * degree)),
            in_order: in_order.into(),
            ..self.build.pruning()
        };
        // SAFETY: as the caller promises; candidates are rows.
        unsafe { self.runtime.launch(self.stream, self.build.prune_kernel(), prune.config(), prune) }
    }

    /// Chooses the edges of all nodes among their candidates.
    ///
    /// # Safety
    /// The scratch has all arrays.
    unsafe fn choose(&self, source: Source<'_>, watch: &Watch<'_>) -> Result<()> {
        let most = source.most();
        for some in self.batches() {
            watch.report(Stage::Linking, some.start, self.nodes)?;
            // SAFETY: as the caller promises; there is room for the candidates of a batch.
            unsafe {
                match source {
                    Source::Found(graph) => {
                        let rows = &graph.neighbors()[some.start * most..some.end * most];
                        self.runtime.copy_to_device(self.stream, self.at.at(self.arrays.candidates), rows)?;
                    }
                    Source::Searched(levels) => self.search(levels, some.clone())?,
                }
                self.prune(some, most, false)?;
            }
            if watch.is_some() {
                self.runtime.synchronize(self.stream)?;
            }
        }
        watch.report(Stage::Linking, self.nodes, self.nodes)
    }

    /// Searches for the candidates of some nodes.
    ///
    /// # Safety
    /// As [`choose`](Self::choose).
    unsafe fn search(&self, levels: &[PlannedLevel], some: Range<usize>) -> Result<()> {
        let (resident, width) = (&self.build.resident, Source::Searched(levels).most());
        let row_bytes = resident.shape.row_bytes();
        let queries = resident.rows.skip(some.start * row_bytes).take(some.len() * row_bytes);
        let candidates = self.at.at(self.arrays.candidates);
        // SAFETY: as the caller promises; there is room for what each search finds for a batch, and rows have no bytes
        // between them.
        unsafe {
            self.runtime.fill(self.stream, candidates.take(some.len() * width), u8::MAX)?;
            for PlannedLevel { search, of: Sizes { share, most, .. } } in levels {
                let slots = some.len() * (most + 1);
                let found = self.at.at(self.arrays.found).take(slots);
                let distances = self.at.at(self.arrays.distances).take(slots);
                search.enqueue(self.stream, queries.into(), some.len(), (found, distances), None)?;
                let append = AppendCandidates {
                    found: found.into(),
                    most: *most as u32,
                    share: *share as u32,
                    first: some.start as u32,
                    count: some.len() as u32,
                    candidates,
                    width: width as u32,
                };
                self.runtime.launch(self.stream, &AppendCandidates::KERNEL, append.config(), append)?;
            }
        }
        Ok(())
    }

    /// Joins the edges of all nodes with those back, prunes them, and copies them to the host by another stream: those
    /// of a batch while the next is pruned.
    ///
    /// # Safety
    /// As [`choose`](Self::choose); the edges were chosen.
    unsafe fn join(&self, copying: &Stream, edges: &mut [u32]) -> Result<()> {
        let (runtime, stream, at, arrays) = (self.runtime, self.stream, self.at, &self.arrays);
        let (degree, joined) = (self.build.degree, self.build.joined());
        let places = (self.nodes * degree) as u32;
        let mut counts: Vec<u32> = host_memory::zeroed(self.nodes)?;
        let copy = |rest: &mut &mut [u32], some: Range<usize>| {
            let (to, others) = std::mem::take(rest).split_at_mut(some.len() * degree);
            *rest = others;
            // SAFETY: the edges of these nodes are on the device when the stream has waited, and no later work changes
            // them.
            unsafe { runtime.copy_to_host(copying, to, at.at(arrays.edges.part(some.start * degree, to.len()))) }
        };
        // SAFETY: neighbours are rows, and `Count` leaves the lengths of the lists that `Fill` fills.
        unsafe {
            runtime.fill(stream, at.at(arrays.ends), 0)?;
            let count = Count { edges: at.at(arrays.edges).into(), places, counts: at.at(arrays.ends) };
            runtime.launch(stream, &Count::KERNEL, count.config(), count)?;
            runtime.copy_to_host(stream, &mut counts, at.at(arrays.ends))?;
            counts.iter_mut().fold(0, |first, count| first + std::mem::replace(count, first));
            runtime.copy_to_device(stream, at.at(arrays.ends), &counts)?;
            let fill = Fill {
                edges: at.at(arrays.edges).into(),
                places,
                ends: at.at(arrays.ends),
                lists: at.at(arrays.lists),
            };
            runtime.launch(stream, &Fill::KERNEL, fill.config(), fill)?;
            let mut rest = edges;
            let mut pruned = 0..0;
            for some in self.batches() {
                let join = Join {
                    edges: at.at(arrays.edges).into(),
                    first: some.start as u32,
                    count: some.len() as u32,
                    degree: degree as u32,
                    ends: at.at(arrays.ends).into(),
                    lists: at.at(arrays.lists).into(),
                    joined: at.at(arrays.candidates),
                };
                runtime.launch(stream, &Join::KERNEL, join.config(), join)?;
                self.prune(some.clone(), joined, true)?;
                copy(&mut rest, pruned)?;
                runtime.wait_for(copying, stream)?;
                pruned = some;
            }
            copy(&mut rest, pruned)
        }
    }

    /// The parents of the nodes that can be reached from `starts`, which are their own.
    ///
    /// # Safety
    /// As [`choose`](Self::choose); the edges are those of the graph.
    unsafe fn reach(&self, starts: &[u32]) -> Result<Vec<u32>> {
        let (runtime, stream, at, arrays) = (self.runtime, self.stream, self.at, &self.arrays);
        let count = self.nodes as u32;
        let mut parents: Vec<u32> = host_memory::filled(OPEN, self.nodes)?;
        // SAFETY: there is a level and a parent for each node, and edges lead to nodes.
        unsafe {
            starts.iter().for_each(|&start| parents[start as usize] = 0);
            runtime.copy_to_device(stream, at.at(arrays.levels), &parents)?;
            parents.fill(NO_NODE);
            starts.iter().for_each(|&start| parents[start as usize] = start);
            runtime.copy_to_device(stream, at.at(arrays.parents), &parents)?;
            let (mut level, mut reached) = (0, [1u32]);
            while reached != [0] {
                let claim = Claim {
                    edges: at.at(arrays.edges).into(),
                    count,
                    degree: self.build.degree as u32,
                    levels: at.at(arrays.levels).into(),
                    level,
                    parents: at.at(arrays.parents),
                };
                runtime.launch(stream, &Claim::KERNEL, claim.config(), claim)?;
                level += 1;
                runtime.fill(stream, at.at(arrays.reached), 0)?;
                let settle = Settle {
                    parents: at.at(arrays.parents).into(),
                    count,
                    levels: at.at(arrays.levels),
                    level,
                    reached: at.at(arrays.reached),
                };
                runtime.launch(stream, &Settle::KERNEL, settle.config(), settle)?;
                runtime.copy_to_host(stream, &mut reached, at.at(arrays.reached))?;
            }
            runtime.copy_to_host(stream, &mut parents, at.at(arrays.parents))?;
        }
        Ok(parents)
    }
}
