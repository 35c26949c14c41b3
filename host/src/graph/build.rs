//! Making a graph, and changing one.
//!
//! ```text
//! build:   candidates of each row                                    candidates.rs
//!          edges = prune(candidates)                                   prune.rs
//!          of each row, the first half of its edges; then edges back along those that lead to it, the best first; then the other half
//!          edges = prune(these), the others in this order
//!          connect                                                     links.rs
//! insert:  for each batch of new rows, whose walks all go in the graph as it is before the batch:
//!              candidates = the beam of a walk, the nearest start nodes, and the nearest rows of the batch
//!              edges = prune(candidates)
//!              of each node that has got edges: its edges, and the best of those back; pruned if there are too many          edges_back.rs
//!              parents for the new rows; under inner product, a node gives up children first that others can hold           links.rs
//! removal: nothing, until the rows move: then the edges to removed rows are replaced by a pruning of what the removed rows led to,
//!          by the device that has the rows, if there is one                                                          gpu/repair.rs
//! ```
//! If one device has the rows, the host works on other things meanwhile:
//!
//! ```text
//! host     train searches   codes                       copy rows, entrance             copy edges
//! device   get rows         lists, images, plans        search, prune; batch by batch   join, prune; batch by batch   parents
//! ms       29               30, and 5 for the codes     174                             22                            2
//! ```
//! These times and 5 ms for freeing memory are those of 1,000,000 × 128 f32 vectors on an NVIDIA H200 (2026-11-26):
//! 0.27 to 0.28 s in all. One batch of 65,536 rows takes 5.9 ms for the nearest rows, 4 for those of every sixteenth,
//! 1.3 for every 128th and 1.9 for pruning. Before the searches went among the rows where they lie, and the farther
//! ones to fewer lists, it was 0.46 s there and 0.52 s on an H100 (7051cff); 0.9 to 1.1 s when the candidates went
//! through host memory (ceecead), and 6.1 s when the host chose the edges (1212491).
//!
//! Since then equal rows are looked for, codes are checked, and an index makes its lanes ahead: 306 ms where 1fab39d
//! takes 294 in the same run, 320 and 333 for 300,000 × 768, 53 and 51 for 200,000 × 128 bytes (medians of three to
//! five, H200, 13975ce). Searches for 10 of a beam of 24 take 1.651 ms and took 1.643; a single one 82.0 and 81.4 µs.
//!
//! The second pruning is what edges that came one by one always got: with it, a beam of 24 finds .991 instead of .985
//! in 200,000 clustered vectors, and one of 48 .998 instead of .993; in the SIFT descriptors .954 instead of .955.
//! Filling the places that are left with the nearest candidates instead of the first lost .005 there at a beam of 24.
//!
//! A device that has the rows inserts them as well (`gpu/insert.rs`): it walks, chooses edges and joins them with those
//! back, and the graph has the same bits. The host groups the edges back by their nodes, and finds parents. The edges
//! back of a node are limited so that every step has a size that the degree gives: a long vector can be among the edges
//! of every row of a batch.
//!
//! Each step does its rows in parallel, reads the graph as it was before the step, and writes at the end. So the graph
//! depends on the rows, their order and the settings alone.

use super::candidates::Candidates;
use super::codes::Distances;
use super::distance::WalkDistance;
use super::edges_back::{BATCH, Back, Chosen};
use super::entrance::{Entrance, TRIED};
use super::gpu::{DeviceBuild, DeviceInsert, Source};
use super::links::{Links, starts_of};
use super::prune::{Others, Pruner};
use super::twins::Twins;
use super::walk::{Walker, node_of};
use crate::knn_graph::{Graph, NO_NODE};
use crate::parallel::{Loop, ParallelSlice};
use crate::threads::meanwhile;
use crate::{Bitset, Element, Error, Result, Stage, Watch, host_memory};

/// Number of rows whose edges are chosen between two calls of a watch.
const WATCHED_ROWS: usize = 1 << 15;

/// The candidates of each node.
pub(super) enum Given<'a, T: Element> {
    /// Those of the caller.
    Graph(&'a Graph),
    /// Those that searches find.
    Searched(&'a Candidates<T>, &'a [T]),
}

impl<T: Element> Given<'_, T> {
    fn most(&self) -> usize {
        match self {
            Given::Graph(graph) => graph.k(),
            Given::Searched(candidates, _) => candidates.most(),
        }
    }
}

/// The graph of all rows, with edges to some of the candidates of each, which `device` chooses if it can. O(rows ·
/// degree² · dim) at most, and the time of the searches. `twins` are the rows that are not nodes, and have no
/// candidates.
pub(super) fn build<T: Element>(
    distance: &WalkDistance<'_>,
    candidates: &Given<'_, T>,
    degree: usize,
    device: Option<DeviceBuild<'_>>,
    twins: Twins,
    watch: &Watch<'_>,
) -> Result<Links> {
    let nodes = distance.rows().len();
    let device = device.filter(|device| nodes > 0 && device.fits(nodes, candidates.most()));
    let mut edges: Vec<u32> = host_memory::zeroed(host_memory::count::<u32>(&[nodes, degree])?)?;
    let starts = starts_of(nodes, &twins);
    let (entrance, parents) = meanwhile(
        || Entrance::new(&starts, distance),
        || all_edges(distance, candidates, degree, device, (&starts, &mut edges), watch),
    );
    Links::connected(edges, degree, parents?, (starts, entrance), twins, distance)
}

/// Fills `edges`, `degree` places for each node. Returns the parents of the nodes that can be reached from `starts`, if
/// a device has found them.
fn all_edges<T: Element>(
    distance: &WalkDistance<'_>,
    candidates: &Given<'_, T>,
    degree: usize,
    device: Option<DeviceBuild<'_>>,
    (starts, edges): (&[u32], &mut [u32]),
    watch: &Watch<'_>,
) -> Result<Option<Vec<u32>>> {
    let found;
    let graph = match candidates {
        Given::Graph(graph) => graph,
        Given::Searched(candidates, rows) => {
            if let (Some(device), Some(levels)) = (&device, candidates.planned()) {
                match device.edges(Source::Searched(levels), starts, edges, watch) {
                    Err(Error::OutOfDeviceMemory { .. }) => {}
                    parents => return parents.map(Some),
                }
            }
            found = candidates.graph(rows, distance.rows().dim(), watch)?;
            &found
        }
    };
    match device.map(|device| device.edges(Source::Found(graph), starts, edges, watch)) {
        Some(Err(Error::OutOfDeviceMemory { .. })) | None => {
            choose_edges(distance, graph, degree, edges, watch).map(|()| None)
        }
        Some(parents) => parents.map(Some),
    }
}

/// Fills `edges`, `degree` places for each node.
fn choose_edges(
    distance: &WalkDistance<'_>,
    candidates: &Graph,
    degree: usize,
    edges: &mut [u32],
    watch: &Watch<'_>,
) -> Result<()> {
    let count = candidates.len();
    let mut pruned: Vec<u32> = host_memory::filled(NO_NODE, host_memory::count::<u32>(&[count, degree])?)?;
    let mut first = 0;
    for part in pruned.chunks_mut(if watch.is_some() { WATCHED_ROWS * degree } else { (count * degree).max(1) }) {
        watch.report(Stage::Linking, first, count)?;
        part.par_chunks_exact_mut(degree).enumerate().for_each_init(Pruner::default, |pruner, (at, places)| {
            let node = first + at;
            let row = candidates.row(node);
            let some = &row[..row.iter().position(|&other| other == NO_NODE).unwrap_or(row.len())];
            let chosen = pruner.choose(distance, node as u32, (&[], some), degree, Others::Nearest);
            places[..chosen.len()].copy_from_slice(chosen);
        });
        first += part.len() / degree;
    }
    watch.report(Stage::Linking, count, count)?;
    // The edges back, those along the best edges first.
    let mut back: Vec<u32> = host_memory::filled(NO_NODE, pruned.len())?;
    let mut lengths: Vec<u32> = host_memory::zeroed(count)?;
    for place in 0..degree {
        for node in 0..count {
            let other = pruned[node * degree + place];
            if other != NO_NODE {
                let length = &mut lengths[other as usize];
                if (*length as usize) < degree {
                    back[other as usize * degree + *length as usize] = node as u32;
                    *length += 1;
                }
            }
        }
    }
    let join = |(pruner, joined): &mut (Pruner, Vec<u32>), (node, edges): (usize, &mut [u32])| {
        let places = node * degree..(node + 1) * degree;
        let (near, far) = pruned[places.clone()].split_at(degree / 2);
        joined.clear();
        for &other in near.iter().chain(&back[places]).chain(far) {
            if other != NO_NODE && !joined.contains(&other) {
                joined.push(other);
            }
        }
        let chosen = pruner.choose(distance, node as u32, (&[], joined), degree, Others::First);
        edges.fill(NO_NODE);
        edges[..chosen.len()].copy_from_slice(chosen);
    };
    edges.par_chunks_exact_mut(degree).enumerate().for_each_init(Default::default, join);
    Ok(())
}

/// Gives edges to new rows, which ascend, and edges to them to others. A row may be a node whose vector was replaced.
/// `accepted` are the nodes of which a row at least holds a vector; `None` if all do. For each row a walk, and
/// O(degree² · dim). Vectors decide where codes cannot: for rows that are outside, and for those whose beam codes
/// cannot order. `device` does the work if there is one, unless it runs out of memory: then there is none any more.
/// Returns the nodes whose edges or parents have changed, some of them several times.
pub(super) fn insert(
    links: &mut Links,
    distances: &Distances<'_>,
    rows: &[u32],
    accepted: Option<&Bitset>,
    device: &mut Option<DeviceInsert<'_>>,
    watch: &Watch<'_>,
) -> Result<Vec<u32>> {
    links.count_inserted(rows.len());
    let (mut rest, mut changed, mut memory) = (rows, rows.to_vec(), (Back::default(), Vec::new()));
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(rest.len().min(BATCH));
        watch.report(Stage::Linking, rows.len() - rest.len(), rows.len())?;
        changed.extend(insert_batch(links, distances, batch, accepted, device.as_ref(), &mut memory)?);
        changed.extend_from_slice(&memory.0.nodes);
        let nodes = links.len() - links.twins().len() - later.len();
        let new_starts = links.grow_starts(batch[batch.len() - 1] + 1, nodes).to_vec();
        if !new_starts.is_empty() {
            list_starts(links, &distances.fast, &new_starts, device)?;
            changed.extend(new_starts);
        }
        rest = later;
    }
    Ok(changed)
}

/// Makes the lists of the start nodes, of which some are `new`. `device` finds the nearest pivots if there is one.
pub(super) fn list_starts(
    links: &mut Links,
    distance: &WalkDistance<'_>,
    new: &[u32],
    device: &mut Option<DeviceInsert<'_>>,
) -> Result<()> {
    let Some(on_device) = device else {
        links.list_starts(distance);
        return Ok(());
    };
    links.enter_by(Entrance::found(links.starts(), |pivots| on_device.nearest_pivots(links.starts(), pivots, TRIED))?);
    match on_device.enter(links, new) {
        Err(Error::OutOfDeviceMemory { .. }) => *device = None,
        entered => entered?,
    }
    Ok(())
}

/// Returns the nodes that have other parents. `back` has the nodes that got edges back on return, and `joined` is
/// memory for their edges, which the next batch uses again.
fn insert_batch(
    links: &mut Links,
    distances: &Distances<'_>,
    batch: &[u32],
    accepted: Option<&Bitset>,
    device: Option<&DeviceInsert<'_>>,
    (back, joined): &mut (Back, Vec<u32>),
) -> Result<Vec<u32>> {
    let degree = links.degree();
    let outside = outside(distances, batch);
    let chosen = match device {
        Some(device) => device.choose(batch, &outside)?,
        None => choose(links, distances, batch, &outside, accepted),
    };
    links.set_all(batch, &chosen.edges);
    back.follow(batch, &chosen, degree);
    // A long vector whose edges are all held would have none to a longer one. Under the other metrics it would not, and
    // held edges to far classes are ways that walks need: without them graphs of ten classes that came one by one found
    // .74 instead of .9 (CPU, 2026-11-26).
    let mut moved = Vec::new();
    if distances.exact.metric().favors_length() {
        back.nodes.iter().for_each(|&node| links.release(node, &mut moved));
        if let Some(device) = device {
            moved.sort_unstable();
            moved.dedup();
            device.set(links, &[], &moved)?;
        }
    }
    let places = back.nodes.len() * degree;
    if joined.len() < places {
        host_memory::reserve(joined, places - joined.len())?;
        joined.resize(places, NO_NODE);
    }
    let joined = &mut joined[..places];
    match device {
        Some(device) => device.join(back, joined)?,
        None => join(links, distances, back, joined),
    };
    links.set_all(&back.nodes, joined);
    links.reach_batch(batch, back, joined);
    let parents = links.adopt(&distances.fast, batch);
    if let Some(device) = device {
        device.set(links, &parents, batch)?;
    }
    moved.extend(parents);
    Ok(moved)
}

/// Whether codes cannot stand for each row of a batch. If there are no codes, vectors decide anyway.
fn outside(distances: &Distances<'_>, batch: &[u32]) -> Vec<bool> {
    let vectors = distances.exact.rows();
    let is_outside = |scratch: &mut Vec<f32>, &row: &u32| {
        distances.codes.is_some_and(|codes| codes.coder.is_row_outside(vectors, row as usize, scratch))
    };
    let mut outside = Vec::new();
    batch.par_iter().map_init(Vec::new, is_outside, &mut outside);
    outside
}

/// The edges of the nodes of a batch.
fn choose(
    links: &Links,
    distances: &Distances<'_>,
    batch: &[u32],
    outside: &[bool],
    accepted: Option<&Bitset>,
) -> Chosen {
    let degree = links.degree();
    let choose = |(walker, pruner): &mut (Walker, Pruner), (&node, &outside): (&u32, &bool)| -> (Vec<u32>, bool) {
        let mut by_vectors = outside;
        let (mut candidates, distance) = loop {
            let distance = if by_vectors { &distances.exact } else { &distances.fast };
            distance.query(distance.rows(), node as usize, &mut walker.query);
            walker.walk(distance, links, 2 * degree);
            let (beam, query) = (walker.beam(), &walker.query);
            let tie = distances.cannot_order(beam, 2 * degree, query) || distances.cannot_tell(beam, degree / 4, query);
            if by_vectors || !tie {
                break (walker.beam().iter().map(|&place| node_of(place)).collect::<Vec<u32>>(), distance);
            }
            by_vectors = true;
        };
        candidates.extend(walker.nearest_of(distance, batch, degree + 1));
        candidates.extend(walker.nearest_starts(distance, links, degree));
        candidates.retain(|&other| other != node && accepted.is_none_or(|accepted| accepted.get(other as usize)));
        candidates.sort_unstable();
        candidates.dedup();
        let held: Vec<u32> = links.children(node).collect();
        (pruner.choose(distance, node, (&held, &candidates), degree, Others::Nearest).to_vec(), by_vectors)
    };
    let mut found: Vec<(Vec<u32>, bool)> = Vec::new();
    batch.par_iter().zip(outside.par_iter()).map_init(Default::default, choose, &mut found);
    let mut chosen = Chosen { edges: Vec::new(), by_vectors: Vec::new() };
    for (edges, by_vectors) in found {
        chosen.edges.extend_from_slice(&edges);
        chosen.edges.extend(std::iter::repeat_n(NO_NODE, degree - edges.len()));
        chosen.by_vectors.push(by_vectors);
    }
    chosen
}

/// Fills `joined`, `degree` places for each of the nodes that got edges back.
fn join(links: &Links, distances: &Distances<'_>, back: &Back, joined: &mut [u32]) {
    let degree = links.degree();
    let join = |(pruner, edges): &mut (Pruner, Vec<u32>), (at, places): (usize, &mut [u32])| {
        let node = back.nodes[at];
        let held: Vec<u32> = links.children(node).collect();
        edges.clone_from(&held);
        for &other in links.of(node).iter().chain(back.of_node(at)) {
            if !edges.contains(&other) {
                edges.push(other);
            }
        }
        let distance = if back.by_vectors[at] { &distances.exact } else { &distances.fast };
        let edges = if edges.len() > degree {
            pruner.choose(distance, node, (&held, edges), degree, Others::Nearest)
        } else {
            edges
        };
        let (some, none) = places.split_at_mut(edges.len());
        some.copy_from_slice(edges);
        none.fill(NO_NODE);
    };
    joined.par_chunks_exact_mut(degree).enumerate().for_each_init(Default::default, join);
}

/// The graph after its rows have moved: `moved` has the new number of each old row, or [`NO_NODE`] if its vector is
/// gone. `rows` is the new number of rows; those that no old row moved to have no edges. No node has a parent yet. On
/// return `moved` has numbers of nodes. `device` does the work if it can.
pub(super) fn moved(
    old: &Links,
    distance: &WalkDistance<'_>,
    moved: &mut [u32],
    rows: usize,
    device: Option<DeviceBuild<'_>>,
) -> Result<Links> {
    let degree = old.degree();
    let twins = old.twins().moved(moved);
    let moved = &*moved;
    let mut before: Vec<u32> = host_memory::filled(NO_NODE, rows)?;
    for (row, &node) in moved.iter().enumerate() {
        if node != NO_NODE {
            before[node as usize] = row as u32;
        }
    }
    let mut links = Links::new(rows, degree, twins)?;
    links.count_inserted(old.inserted());
    if let Some(device) = device.filter(|device| rows > 0 && device.can_repair()) {
        match device.repair((old.edges(), moved, &before), links.edges_mut()) {
            // Nothing is written yet.
            Err(Error::OutOfDeviceMemory { .. }) => {}
            repaired => return repaired.map(|()| links),
        }
    }
    let nodes = links.edges_mut().par_chunks_exact_mut(degree).zip(before.par_iter()).enumerate();
    nodes.for_each_init(Default::default, |(pruner, edges): &mut (Pruner, Vec<u32>), (node, (places, &row))| {
        if row == NO_NODE {
            return;
        }
        edges.clear();
        let add = |other: u32, edges: &mut Vec<u32>| {
            let other = moved[other as usize];
            if other != NO_NODE && other as usize != node && !edges.contains(&other) {
                edges.push(other);
            }
        };
        let mut lost = false;
        for &other in old.of(row) {
            add(other, edges);
            if moved[other as usize] == NO_NODE {
                lost = true;
                old.of(other).iter().for_each(|&far| add(far, edges));
            }
        }
        let edges =
            if lost { pruner.choose(distance, node as u32, (&[], edges), degree, Others::Nearest) } else { edges };
        places[..edges.len()].copy_from_slice(edges);
    });
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;
    use crate::vectors::VectorSlice;

    /// A node with a new vector has an edge to a new row, to which nothing else leads. The row gets no second one from
    /// the same node.
    #[test]
    fn edges_of_replaced_nodes_lead_to_new_rows() {
        const DEGREE: usize = 3;
        let (replaced, new) = (12, 13);
        // Three hubs around the new row, three far rows behind each hub, which hold all of its edges, the replaced row,
        // and the new one.
        let hubs = [[0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]];
        let far = hubs.iter().flat_map(|&[x, y]| [0.0, 0.1, 0.2].map(|aside| [4.0 * x - aside, 4.0 * y]));
        let rows: Vec<[f32; 2]> = hubs.into_iter().chain(far).chain([[3.0, 0.0], [0.0, 0.0]]).collect();
        let mut edges = vec![NO_NODE; rows.len() * DEGREE];
        for hub in 0..3 {
            for at in 0..DEGREE {
                let behind = 3 + hub * DEGREE + at;
                (edges[hub * DEGREE + at], edges[behind * DEGREE]) = (behind as u32, hub as u32);
            }
        }
        edges[replaced as usize * DEGREE] = 0;
        let exact = WalkDistance::new(Metric::L2, VectorSlice::of(rows.as_flattened(), 2));
        let mut links = Links::of_edges(edges, DEGREE, vec![0, 1, 2, replaced]).unwrap().unwrap();
        links.list_starts(&exact);
        let distances = Distances { fast: exact, exact, codes: None };
        insert(&mut links, &distances, &[replaced, new], None, &mut None, &Watch::none()).unwrap();
        assert_eq!(links.of(new), [0, 1, 2]);
        assert!(links.of(replaced).contains(&new) && links.is_reached(new));
        for node in 0..rows.len() as u32 {
            let edges = links.of(node);
            assert!((1..edges.len()).all(|at| !edges[..at].contains(&edges[at])), "{node}: {edges:?}");
        }
    }
}
