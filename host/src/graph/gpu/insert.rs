//! The edges of nodes that are inserted, and those back, chosen on a device: the same as on the CPU
//! (`graph::build` has the algorithm).
//!
//! ```text
//! choose   rows of the batch ──gather──► queries
//!          queries ──walk────────────────────────────────► beam          ┐
//!          queries ──walk among the rows of the batch────► nearest ones  ├─append──► candidates ──prune──► edges ──► host, image
//!          queries ──walk that ends at the start nodes───► nearest ones  ┘
//!          held edges ──begin──────────────────────────────────────────────────────►
//! host     the edges back of each node
//! join     edges ──begin──► ◄──append── edges back;  candidates ──prune──► edges ──► host, image
//! ```
//! Where walks go by codes, walks and prunings are launched twice: by codes, and by vectors for the nodes that codes
//! cannot stand for, as in searches. A node that neither launch wants costs a block that ends at once.
//!
//! The host keeps the graph as well: it finds the edges back of a batch, parents, and places for nodes that have no
//! parent. So a batch brings its edges and those of the nodes that got edges back to the host, 4 · degree bytes each,
//! and the image gets the parents that the host has found.

use std::iter;
use std::mem::replace;
use std::sync::Arc;

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::graph::insert::{AppendOthers, BeginCandidates};
use warpann_kernels::graph::prune::Prune;
use warpann_kernels::graph::walk::Walk;

use super::super::codes::Distances;
use super::super::distance::WalkDistance;
use super::super::edges_back::{BATCH, Back, Chosen, MOST_BACK};
use super::super::entrance::{Entrance, TRIED};
use super::super::links::{Links, start_count};
use super::image::{EntryImage, Image, RowImage, Spares, code_stride, compared_codes, groups_of, upload_listed_codes};
use super::{per_query, slots_of};
use crate::device::lanes::Lane;
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::device::spare::VersionMemory;
use crate::flat::ResidentRows;
use crate::flat::gpu::copies::{gather_rows, scatter_rows};
use crate::threads::apart;
use crate::{Bitset, Error, Result, host_memory};

/// Largest number of edges of the nodes that are joined with edges back at a time.
const JOINED: usize = 1 << 20;
/// The same on the emulator, so that small tests join in pieces.
const JOINED_EMULATED: usize = 1 << 10;

/// A device that inserts nodes into a graph, whose image it changes.
pub(in super::super) struct DeviceInsert<'a> {
    resident: ResidentRows<'a>,
    distances: Distances<'a>,
    degree: usize,
    image: Image,
    memory: VersionMemory,
    arrays: Arrays,
    /// Whether there is a bit for each row that may be a candidate.
    filtered: bool,
    /// Largest number of nodes that are joined at a time.
    joined: usize,
}

/// The arrays of an insertion in device memory.
struct Arrays {
    nodes: Reserved<u32>,
    doubtful: Reserved<u32>,
    /// The rows of a batch, as walks compare them, and as vectors, if walks go by codes.
    queries: [Reserved<u8>; 2],
    found: Reserved<u32>,
    begins: Reserved<u32>,
    others: Reserved<u32>,
    pivots: Reserved<u32>,
    held_counts: Reserved<u32>,
    candidates: Reserved<u32>,
    edges: Reserved<u32>,
    accepted: Reserved<u32>,
    /// The rows that got other vectors before, and their codes.
    listed: Reserved<u32>,
    listed_codes: Reserved<u8>,
}

/// Rows that are compared: codes or vectors.
#[derive(Clone, Copy)]
struct ComparedRows<'a> {
    distance: WalkDistance<'a>,
    rows: PtrMut<u8>,
    /// Distance from one row to the next in components.
    stride: usize,
    row_bytes: usize,
}

/// The nodes that a walk goes among.
#[derive(Clone, Copy)]
enum Among {
    /// Those of the graph.
    Graph,
    /// The start nodes that a walk in the graph compares first.
    Starts,
    /// The rows of the batch.
    Batch,
}

impl<'a> DeviceInsert<'a> {
    /// Brings the graph to the device that has the rows. `before` is the image of the graph before `changed`, which
    /// ascend, got their vectors, if there is one and all other rows have their codes and edges still. Up to `batch`
    /// nodes are inserted at a time. `None` if the device has no memory.
    ///
    /// # Errors
    /// Errors of the device's driver.
    pub(in super::super) fn new(
        resident: ResidentRows<'a>,
        distances: Distances<'a>,
        links: &Links,
        (before, changed): (Option<Arc<Image>>, &[u32]),
        (batch, accepted): (usize, Option<&Bitset>),
    ) -> Result<Option<Self>> {
        if !fits(&resident, &distances, links.degree()) {
            return Ok(None);
        }
        // `apart` keeps a pool thread from starting another search while it has a lane.
        let made = apart(|| {
            resident.lanes.with(resident.runtime, |lane| {
                Self::on_lane(&resident, distances, links, (before, changed), (batch, accepted), lane)
            })
        });
        match made {
            Err(Error::OutOfDeviceMemory { .. }) => Ok(None),
            made => {
                let (image, memory, arrays) = made?;
                let (degree, filtered) = (links.degree(), accepted.is_some());
                let joined = most_joined(resident.runtime, degree);
                Ok(Some(DeviceInsert { resident, distances, degree, image, memory, arrays, filtered, joined }))
            }
        }
    }

    fn on_lane(
        resident: &ResidentRows<'_>,
        distances: Distances<'_>,
        links: &Links,
        (before, changed): (Option<Arc<Image>>, &[u32]),
        (batch, accepted): (usize, Option<&Bitset>),
        lane: &mut Lane,
    ) -> Result<(Image, VersionMemory, Arrays)> {
        let (runtime, stream, degree) = (resident.runtime, &lane.background, links.degree());
        let codes = compared_codes(resident, &distances.fast);
        let row_bytes = codes.map_or(resident.shape.row_bytes(), |codes| code_stride(codes.dim()));
        let of_vectors = if distances.codes.is_some() { batch * resident.shape.row_bytes() } else { 0 };
        let bits: &[u32] = accepted.map_or(&[], |accepted| bytemuck::cast_slice(accepted.words()));
        let joined = most_joined(runtime, degree).min(batch * degree);
        let starts = start_count(links.len()).max(links.starts().len());
        // Start nodes of which the nearest pivots are looked for at a time.
        let placed = batch.max(starts.min(BATCH));
        let most = placed.max(joined);
        let listed = if codes.is_some() && before.is_some() { changed.len() } else { 0 };
        let mut layout = Layout::default();
        let arrays = Arrays {
            nodes: layout.array(most),
            doubtful: layout.array(most),
            queries: [placed * row_bytes, of_vectors].map(|bytes| layout.array(bytes)),
            found: layout.array((batch * Among::Graph.width(degree)).max(placed * TRIED)),
            begins: layout.array(most + 1),
            others: layout.array(batch * degree),
            pivots: layout.array(Entrance::pivot_count(starts)),
            held_counts: layout.array(most),
            candidates: layout.array((batch * most_chosen(degree)).max(joined * most_to_join(degree))),
            edges: layout.array(most * degree),
            accepted: layout.array(bits.len()),
            listed: layout.array(listed),
            listed_codes: layout.array(listed * row_bytes),
        };
        let spares = Spares::after(before.as_deref(), resident.budget);
        // The size of one insertion then serves the next.
        let memory = spares.work.allocate(runtime, layout.bytes().next_power_of_two(), resident.budget)?;
        let (on, scratch) = (OnStream { runtime, stream }, runtime.scratch(&memory));
        let shifts = distances.codes.map_or(&[][..], |codes| &codes.coder.shifts);
        let entry = EntryImage::uploaded(on, &spares, None, (links, shifts), (&[], &[]))?;
        // SAFETY: the layout has room for the bits.
        unsafe { runtime.copy_to_device(stream, scratch.at(arrays.accepted), bits)? };
        let (rows, _before) = match before {
            None => (RowImage::uploaded(on, &spares, links, codes)?, None),
            Some(before) => RowImage::grown(on, &spares, before, links.len(), degree)?,
        };
        if let Some(codes) = codes.filter(|_| listed > 0) {
            let to = runtime.scratch(&rows.memory).at(rows.codes);
            let (list, staging) = (scratch.at(arrays.listed), scratch.at(arrays.listed_codes));
            // SAFETY: there is room for the list and the codes of the listed rows, which are rows and differ.
            unsafe {
                runtime.copy_to_device(stream, list, changed)?;
                let row = |at: usize| changed[at] as usize;
                upload_listed_codes(runtime, stream, staging, codes, listed, row)?;
                scatter_rows(on, staging.into(), list.into(), to, row_bytes)?;
            }
        }
        // The image of before lives until here.
        runtime.synchronize(stream)?;
        Ok((Image { rows, entry, spares }, memory, arrays))
    }

    fn runtime(&self) -> &'a Runtime {
        self.resident.runtime
    }

    /// Calls `work` with a lane, and the arrays in device memory.
    fn with_lane<V>(&self, work: impl FnOnce(OnStream<'_>, Scratch) -> Result<V>) -> Result<V> {
        let (runtime, at) = (self.runtime(), self.runtime().scratch(&self.memory));
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| {
            self.resident.lanes.with(runtime, |lane| {
                let done = work(OnStream { runtime, stream: &lane.background }, at);
                // The next step may have another lane.
                runtime.synchronize(&lane.background).and(done)
            })
        })
    }

    /// The edges of the image.
    fn edges(&self) -> PtrMut<u32> {
        self.runtime().scratch(&self.image.rows.memory).at(self.image.rows.edges)
    }

    /// The parents of the image.
    fn parents(&self) -> PtrMut<u32> {
        self.runtime().scratch(&self.image.rows.memory).at(self.image.rows.parents)
    }

    /// The rows that walks compare first, and the vectors, if those are codes.
    fn compared(&self) -> (ComparedRows<'a>, Option<ComparedRows<'a>>) {
        let (resident, distances) = (&self.resident, &self.distances);
        let of_vectors = |distance| ComparedRows {
            distance,
            rows: resident.rows.take(self.image.rows.len * resident.shape.row_bytes()),
            stride: resident.shape.stride(),
            row_bytes: resident.shape.row_bytes(),
        };
        let Some(codes) = compared_codes(resident, &distances.fast) else {
            return (of_vectors(distances.fast), None);
        };
        let stride = code_stride(codes.dim());
        let rows = self
            .runtime()
            .scratch(&self.image.rows.memory)
            .at(self.image.rows.codes)
            .take(self.image.rows.len * stride);
        let by_codes = ComparedRows { distance: distances.fast, rows, stride, row_bytes: stride };
        (by_codes, distances.codes.map(|_| of_vectors(distances.exact)))
    }

    /// The rows of each launch of walks and prunings.
    fn turns(&self) -> impl Iterator<Item = ComparedRows<'a>> {
        let (first, vectors) = self.compared();
        iter::once(first).chain(vectors)
    }

    /// The edges of a batch of nodes, and the nodes whose edges vectors have decided. `outside` are those of these
    /// nodes that codes cannot stand for.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`], errors of the device's driver.
    pub(in super::super) fn choose(&self, batch: &[u32], outside: &[bool]) -> Result<Chosen> {
        let (degree, count) = (self.degree, batch.len());
        let mut words: Vec<u32> = outside.iter().map(|&outside| outside.into()).collect();
        let mut edges: Vec<u32> = host_memory::zeroed(count * degree)?;
        self.with_lane(|on, at| {
            let OnStream { runtime, stream } = on;
            let arrays = &self.arrays;
            let nodes = at.at(arrays.nodes.part(0, count));
            let to = at.at(arrays.edges.part(0, edges.len()));
            // SAFETY: the arrays have room for a batch. Edges and start nodes are rows.
            unsafe {
                runtime.copy_to_device(stream, nodes, batch)?;
                runtime.copy_to_device(stream, at.at(arrays.doubtful), &words)?;
                for (compared, queries) in self.turns().zip(arrays.queries) {
                    gather_rows(on, compared.rows.into(), nodes.into(), at.at(queries), compared.row_bytes)?;
                }
                let width = most_chosen(degree);
                self.begin(on, at, (count, width), false)?;
                for among in [Among::Graph, Among::Batch, Among::Starts] {
                    self.walk(on, at, among, count)?;
                    let lists = at.at(arrays.found.part(0, count * among.width(degree)));
                    self.append(on, at, (count, width), lists.into(), None)?;
                }
                self.prune(on, at, (count, width), 0)?;
                scatter_rows(on, to.as_bytes().into(), nodes.into(), self.edges().as_bytes(), 4 * degree)?;
                runtime.copy_to_host(stream, &mut words, at.at(arrays.doubtful))?;
                runtime.copy_to_host(stream, &mut edges, to)
            }
        })?;
        Ok(Chosen { edges, by_vectors: words.iter().map(|&word| word != 0).collect() })
    }

    /// Fills `edges`, `degree` places for each of the nodes that got edges back. The image has them on return.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub(in super::super) fn join(&self, back: &Back, edges: &mut [u32]) -> Result<()> {
        let degree = self.degree;
        let words: Vec<u32> = back.by_vectors.iter().map(|&by_vectors| by_vectors.into()).collect();
        self.with_lane(|on, at| {
            let pieces = back.nodes.chunks(self.joined).zip(edges.chunks_mut(self.joined * degree)).enumerate();
            for (piece, (nodes, edges)) in pieces {
                self.join_piece(on, at, (piece * self.joined, nodes), (back, &words), edges)?;
            }
            Ok(())
        })
    }

    /// Joins the edges of the nodes from number `first` on.
    fn join_piece(
        &self,
        on: OnStream<'_>,
        at: Scratch,
        (first, nodes): (usize, &[u32]),
        (back, words): (&Back, &[u32]),
        edges: &mut [u32],
    ) -> Result<()> {
        let (degree, count, arrays) = (self.degree, nodes.len(), &self.arrays);
        let OnStream { runtime, stream } = on;
        let begins = &back.begins[first..=first + count];
        let (begin, end) = (begins[0], begins[count]);
        let begins: Vec<u32> = begins.iter().map(|at| at - begin).collect();
        let to = at.at(arrays.edges.part(0, edges.len()));
        let list = at.at(arrays.nodes.part(0, count));
        // SAFETY: the arrays have room for a piece; the stream works in order, and copies to the device have taken
        // their source on return.
        unsafe {
            runtime.copy_to_device(stream, list, nodes)?;
            runtime.copy_to_device(stream, at.at(arrays.doubtful), &words[first..first + count])?;
            runtime.copy_to_device(stream, at.at(arrays.begins), &begins)?;
            runtime.copy_to_device(stream, at.at(arrays.others), &back.others[begin as usize..end as usize])?;
            let width = most_to_join(degree);
            self.begin(on, at, (count, width), true)?;
            let begins = at.at(arrays.begins.part(0, count + 1));
            self.append(on, at, (count, width), at.at(arrays.others).into(), Some(begins.into()))?;
            self.prune(on, at, (count, width), degree)?;
            scatter_rows(on, to.as_bytes().into(), list.into(), self.edges().as_bytes(), 4 * degree)?;
            runtime.copy_to_host(stream, edges, to)
        }
    }

    /// Brings the edges of some nodes to the image, and the parents of others; the nodes of a list differ.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub(in super::super) fn set(&self, links: &Links, edges_of: &[u32], parents_of: &[u32]) -> Result<()> {
        let edges = |node| links.places_of(node);
        self.set_words(edges_of, self.degree, edges, self.edges())?;
        self.set_words(parents_of, 1, |node| links.parent_of(node), self.parents())
    }

    /// Brings `width` words of each of these nodes to their place in an array.
    fn set_words<'w>(
        &self,
        nodes: &[u32],
        width: usize,
        words: impl Fn(u32) -> &'w [u32],
        to: PtrMut<u32>,
    ) -> Result<()> {
        // As many at a time as a batch may have nodes with edges back.
        for nodes in nodes.chunks(self.arrays.nodes.len()) {
            let words: Vec<u32> = nodes.iter().flat_map(|&node| words(node)).copied().collect();
            self.with_lane(|on, at| {
                let list = at.at(self.arrays.nodes.part(0, nodes.len()));
                let from = at.at(self.arrays.edges.part(0, words.len()));
                // SAFETY: the arrays have room for the words of these nodes, which are rows.
                unsafe {
                    on.runtime.copy_to_device(on.stream, list, nodes)?;
                    on.runtime.copy_to_device(on.stream, from, &words)?;
                    scatter_rows(on, from.as_bytes().into(), list.into(), to.as_bytes(), 4 * width)
                }
            })?;
        }
        Ok(())
    }

    /// Brings other start nodes to the image, of which some are `new`.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], errors of the device's driver.
    pub(in super::super) fn enter(&mut self, links: &Links, new: &[u32]) -> Result<()> {
        self.upload_entry(links, (&[], &[]))?;
        self.set(links, &[], new)
    }

    /// The image of the graph.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub(in super::super) fn finish(mut self, links: &Links) -> Result<Image> {
        let (groups, members) = groups_of(links);
        self.upload_entry(links, (&groups, &members))?;
        Ok(self.image)
    }

    /// Uploads the start nodes and the groups of equal rows. All work on those before is done.
    fn upload_entry(&mut self, links: &Links, groups: (&[u32], &[u32])) -> Result<()> {
        let shifts = self.distances.codes.map_or(&[][..], |codes| &codes.coder.shifts);
        let none = VersionMemory::none(self.runtime());
        let before = replace(&mut self.image.entry.memory, none);
        let spares = &self.image.spares;
        let entry = self.with_lane(|on, _| EntryImage::uploaded(on, spares, Some(before), (links, shifts), groups))?;
        self.image.entry = entry;
        Ok(())
    }

    /// For each of these nodes, which are rows, the nearest pivots by the distance of walks, nearest first: `width`
    /// places each.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub(in super::super) fn nearest_pivots(&self, nodes: &[u32], pivots: &[u32], width: usize) -> Result<Vec<u32>> {
        let arrays = &self.arrays;
        let mut nearest: Vec<u32> = host_memory::zeroed(nodes.len() * width)?;
        let (compared, _) = self.compared();
        let rooms = [arrays.found.len() / width, arrays.queries[0].len() / compared.row_bytes, arrays.nodes.len()];
        let batch = rooms.into_iter().fold(usize::MAX, usize::min);
        self.with_lane(|on, at| {
            let OnStream { runtime, stream } = on;
            let list = at.at(arrays.pivots.part(0, pivots.len()));
            // SAFETY: the arrays have room for the pivots and a batch, which are rows.
            unsafe {
                runtime.copy_to_device(stream, list, pivots)?;
                for (nodes, nearest) in nodes.chunks(batch).zip(nearest.chunks_mut(batch * width)) {
                    let numbers = at.at(arrays.nodes.part(0, nodes.len()));
                    runtime.copy_to_device(stream, numbers, nodes)?;
                    let queries = at.at(arrays.queries[0]);
                    gather_rows(on, compared.rows.into(), numbers.into(), queries, compared.row_bytes)?;
                    let no_pivots = Ptr::from(list.take(0));
                    let walk = self.walk_among(at, compared, (list.into(), no_pivots), (nodes.len(), width));
                    self.launch_walk(on, compared, Walk { queries: queries.into(), starts_only: 1, ..walk })?;
                    runtime.copy_to_host(stream, nearest, at.at(arrays.found.part(0, nearest.len())))?;
                }
            }
            Ok(())
        })?;
        Ok(nearest)
    }

    /// Enqueues walks for the nodes of a batch: by codes, and by vectors where these cannot stand for them. `found` has
    /// the nearest nodes of each on return.
    ///
    /// # Safety
    /// Nodes, words and queries of the batch are in place.
    unsafe fn walk(&self, on: OnStream<'_>, at: Scratch, among: Among, count: usize) -> Result<()> {
        let arrays = &self.arrays;
        let entry_at = self.runtime().scratch(&self.image.entry.memory);
        let [starts, pivots] =
            [self.image.entry.starts, self.image.entry.pivots].map(|array| Ptr::from(entry_at.at(array)));
        let (starts, pivots) = match among {
            Among::Graph | Among::Starts => (starts, pivots),
            Among::Batch => (at.at(arrays.nodes.part(0, count)).into(), pivots.take(0)),
        };
        let codes = self.distances.codes;
        for (turn, compared) in self.turns().enumerate() {
            let walk = Walk {
                queries: at.at(arrays.queries[turn]).into(),
                doubtful: codes.map(|_| at.at(arrays.doubtful)),
                by_codes: (codes.is_some() && turn == 0).into(),
                greatest_square: codes.map_or(0, |codes| codes.of_rows().greatest_square),
                told: self.degree as u32 / 4,
                starts_only: (!matches!(among, Among::Graph)).into(),
                ..self.walk_among(at, compared, (starts, pivots), (count, among.width(self.degree)))
            };
            // SAFETY: as the caller promises.
            unsafe { self.launch_walk(on, compared, walk)? };
        }
        Ok(())
    }

    /// A walk by vectors for `count` queries, which keeps `width` nodes.
    fn walk_among(
        &self,
        at: Scratch,
        compared: ComparedRows<'_>,
        (starts, pivots): (Ptr<u32>, Ptr<u32>),
        (count, width): (usize, usize),
    ) -> Walk {
        let (arrays, degree) = (&self.arrays, self.degree as u32);
        let entry_at = self.runtime().scratch(&self.image.entry.memory);
        Walk {
            query_count: count as u32,
            queries: at.at(arrays.queries[0]).into(),
            rows: compared.rows.into(),
            stride: compared.stride as u32,
            metric: compared.distance.metric().of_kernel(),
            edges: self.edges().into(),
            degree,
            starts,
            start_count: starts.len() as u32,
            pivots,
            pivot_count: pivots.len() as u32,
            ends: entry_at.at(self.image.entry.ends).into(),
            wanted: u32::try_from(Entrance::wanted(width)).unwrap_or(u32::MAX),
            width: width as u32,
            slots: slots_of(self.runtime(), width as u32, degree),
            filter: None,
            selected: width as u32,
            places: at.at(arrays.found),
            doubtful: None,
            by_codes: 0,
            k: width as u32,
            least: width as u32,
            greatest_square: 0,
            told: 0,
            starts_only: 0,
        }
    }

    /// # Safety
    /// The arrays of the walk are as its fields say.
    unsafe fn launch_walk(&self, on: OnStream<'_>, compared: ComparedRows<'_>, walk: Walk) -> Result<()> {
        let key = compared.distance.row_key();
        let threads = per_query(on.runtime, walk.width, walk.query_count as usize);
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, Walk::kernel((key, threads)), walk.config(key, threads), walk) }
    }

    /// Enqueues the first candidates of the first `count` nodes.
    ///
    /// # Safety
    /// The nodes are in place.
    unsafe fn begin(&self, on: OnStream<'_>, at: Scratch, (count, width): (usize, usize), others: bool) -> Result<()> {
        let arrays = &self.arrays;
        let begin = BeginCandidates {
            nodes: at.at(arrays.nodes).into(),
            count: count as u32,
            edges: self.edges().into(),
            degree: self.degree as u32,
            parents: self.parents().into(),
            others: others.into(),
            candidates: at.at(arrays.candidates),
            width: width as u32,
            held_counts: at.at(arrays.held_counts),
        };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &BeginCandidates::KERNEL, begin.config(), begin) }
    }

    /// Enqueues the candidates that lists have. `begins` says where they begin; without it each has the same number of
    /// places, and the nodes must be accepted.
    ///
    /// # Safety
    /// The nodes, their first candidates and the lists are in place.
    unsafe fn append(
        &self,
        on: OnStream<'_>,
        at: Scratch,
        (count, width): (usize, usize),
        lists: Ptr<u32>,
        begins: Option<Ptr<u32>>,
    ) -> Result<()> {
        let arrays = &self.arrays;
        let append = AppendOthers {
            nodes: at.at(arrays.nodes).into(),
            count: count as u32,
            lists,
            begins,
            most: (lists.len() / count) as u32,
            accepted: (self.filtered && begins.is_none()).then(|| at.at(arrays.accepted).into()),
            candidates: at.at(arrays.candidates),
            width: width as u32,
        };
        // SAFETY: as the caller promises.
        unsafe { on.runtime.launch(on.stream, &AppendOthers::KERNEL, append.config(), append) }
    }

    /// Enqueues the choice of the edges of the first `count` nodes among their candidates. Up to `whole` candidates all
    /// become edges.
    ///
    /// # Safety
    /// Nodes, words and candidates are in place.
    unsafe fn prune(&self, on: OnStream<'_>, at: Scratch, (count, width): (usize, usize), whole: usize) -> Result<()> {
        let arrays = &self.arrays;
        for (turn, compared) in self.turns().enumerate() {
            let prune = Prune {
                rows: compared.rows.into(),
                stride: compared.stride as u32,
                metric: compared.distance.metric().of_kernel(),
                nodes: Some(at.at(arrays.nodes).into()),
                first: 0,
                count: count as u32,
                doubtful: self.distances.codes.map(|_| at.at(arrays.doubtful).into()),
                by_codes: (turn == 0).into(),
                held: Some(at.at(arrays.held_counts).into()),
                whole: whole as u32,
                candidates: at.at(arrays.candidates).into(),
                most: width as u32,
                edges: at.at(arrays.edges),
                degree: self.degree as u32,
                in_order: 0,
            };
            let kernel = Prune::kernel(compared.distance.row_key());
            // SAFETY: as the caller promises; nodes and candidates are rows.
            unsafe { on.runtime.launch(on.stream, kernel, prune.config(), prune)? };
        }
        Ok(())
    }
}

impl Among {
    /// Number of nodes that a walk keeps.
    fn width(self, degree: usize) -> usize {
        match self {
            Among::Graph => 2 * degree,
            Among::Starts => degree,
            // A row finds itself.
            Among::Batch => degree + 1,
        }
    }
}

/// Largest number of candidates of a node that is inserted: its held edges, and those of the walks.
fn most_chosen(degree: usize) -> usize {
    degree + [Among::Graph, Among::Starts, Among::Batch].map(|among| among.width(degree)).iter().sum::<usize>()
}

/// Largest number of candidates of a node that gets edges back.
fn most_to_join(degree: usize) -> usize {
    (1 + MOST_BACK) * degree
}

/// Largest number of nodes that are joined at a time.
fn most_joined(runtime: &Runtime, degree: usize) -> usize {
    (if runtime.limits().emulated { JOINED_EMULATED } else { JOINED }) / degree
}

/// Whether the device has the shared memory for these walks and prunings.
fn fits(resident: &ResidentRows<'_>, distances: &Distances<'_>, degree: usize) -> bool {
    let limits = resident.runtime.limits();
    let of_codes = compared_codes(resident, &distances.fast).map(|codes| code_stride(codes.dim()));
    let own = resident.shape.stride();
    let stride = of_codes.unwrap_or(own);
    let stride_of_vectors = if distances.codes.is_some() { own } else { stride };
    let kinds = [(distances.fast, stride), (distances.exact, stride_of_vectors)];
    kinds.into_iter().all(|(distance, stride)| {
        let Some(stride) = u32::try_from(stride).ok().filter(|&stride| stride <= 1 << 16) else { return false };
        let (degree, width, key) = (degree as u32, Among::Graph.width(degree) as u32, distance.row_key());
        let slots = slots_of(resident.runtime, width, degree);
        let of_walk = Walk::shared_bytes(key, stride, width, degree, u32::MAX, slots);
        let most = most_chosen(degree as usize).max(most_to_join(degree as usize)) as u32;
        let of_choice = Prune::shared_bytes(stride, most, degree);
        of_walk.max(of_choice) <= limits.shared_bytes
    })
}
