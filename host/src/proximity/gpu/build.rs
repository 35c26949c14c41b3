//! The edges of a new graph, chosen on a device ([`warpann_kernels::proximity::prune`]), and the parents of its nodes
//! ([`warpann_kernels::proximity::reach`]): the same as on the CPU.

use std::ops::Range;

use warpann_kernels::proximity::prune::{Count, Fill, Join, Prune};
use warpann_kernels::proximity::reach::{Claim, OPEN, Settle};

use super::super::distance::WalkDistance;
use super::super::links::NO_NODE;
use super::{code_stride, compared_codes, upload_codes};
use crate::device::lanes::Lane;
use crate::device::scratch::Layout;
use crate::flat::ResidentRows;
use crate::graph::Graph;
use crate::threads::apart;
use crate::{Result, host_memory};

/// Bytes of the candidates of one launch.
const TILE_BYTES: usize = 64 << 20;

/// A device that chooses edges.
pub(in super::super) struct DeviceBuild<'a> {
    pub(in super::super) resident: ResidentRows<'a>,
    pub(in super::super) distance: WalkDistance<'a>,
    pub(in super::super) degree: usize,
}

impl DeviceBuild<'_> {
    /// Whether the device has the shared memory, and the numbers of all edges are u32.
    pub(in super::super) fn fits(&self, candidates: &Graph) -> bool {
        let shared = self.resident.runtime.limits().shared_bytes;
        let Some(stride) = u32::try_from(self.stride()).ok().filter(|&stride| stride <= 1 << 16) else { return false };
        let most = self.most(candidates).max(self.joined()) as u32;
        candidates.len().saturating_mul(self.degree) <= 1 << 31
            && Prune::shared_bytes(stride, most, self.degree as u32) <= shared
    }

    /// Number of candidates of a node.
    fn most(&self, candidates: &Graph) -> usize {
        candidates.neighbours().len() / candidates.len().max(1)
    }

    /// Number of places of a node whose first edges are joined with those back.
    fn joined(&self) -> usize {
        2 * self.degree
    }

    fn stride(&self) -> usize {
        compared_codes(&self.resident, &self.distance)
            .map_or(self.resident.shape.stride(), |codes| code_stride(codes.dim()))
    }

    /// Fills `edges`, `degree` for each node. Returns the parents of the nodes to which edges lead from `starts`.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub(in super::super) fn edges(&self, candidates: &Graph, starts: &[u32], edges: &mut [u32]) -> Result<Vec<u32>> {
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| self.resident.lanes.with(self.resident.runtime, |lane| self.edges_on(lane, candidates, starts, edges)))
    }

    fn edges_on(&self, lane: &Lane, candidates: &Graph, starts: &[u32], edges: &mut [u32]) -> Result<Vec<u32>> {
        let runtime = self.resident.runtime;
        let (stream, nodes, most) = (&lane.stream, candidates.len(), self.most(candidates));
        let (joined, degree) = (self.joined(), self.degree);
        // Candidates, and later the joined edges.
        let places = most.max(joined);
        let tile = (TILE_BYTES / (4 * places)).clamp(1, nodes);
        let codes = compared_codes(&self.resident, &self.distance);
        let mut layout = Layout::default();
        let code_place = layout.array::<u8>(codes.map_or(0, |codes| codes.len() * code_stride(codes.dim())));
        let candidate_place = layout.array::<u32>(tile * places);
        let chosen = layout.array::<u32>(edges.len());
        let ends = layout.array::<u32>(nodes);
        let lists = layout.array::<u32>(edges.len());
        let (levels, parents) = (layout.array::<u32>(nodes), layout.array::<u32>(nodes));
        let reached = layout.array::<u32>(1);
        let memory = runtime.allocate(layout.bytes())?;
        let at = runtime.scratch(&memory);
        let mut counts: Vec<u32> = host_memory::zeroed(nodes)?;
        // SAFETY: the layout has room for all arrays. Neighbours are rows, and `Count` leaves the lengths of the lists that `Fill` fills.
        unsafe {
            if let Some(codes) = codes {
                upload_codes(runtime, stream, at.at(code_place), codes)?;
            }
            let launch = |some: Range<usize>, most: usize, in_order: bool| Prune {
                rows: if codes.is_some() { at.at(code_place).into() } else { self.resident.rows.into() },
                stride: self.stride() as u32,
                metric: self.distance.metric().of_kernel(),
                first: some.start as u32,
                count: some.len() as u32,
                candidates: at.at(candidate_place).into(),
                most: most as u32,
                edges: at.at(chosen.part(some.start * degree, some.len() * degree)),
                degree: degree as u32,
                in_order: in_order.into(),
            };
            let kernel = Prune::kernel(self.distance.rows().element().key());
            for first in (0..nodes).step_by(tile) {
                let some = first..nodes.min(first + tile);
                let rows = &candidates.neighbours()[some.start * most..some.end * most];
                runtime.copy_to_device(stream, at.at(candidate_place), rows)?;
                let launch = launch(some, most, false);
                runtime.launch(stream, kernel, launch.config(), launch)?;
            }
            let places = edges.len() as u32;
            runtime.copy_to_device(stream, at.at(ends), &counts)?;
            let count = Count { edges: at.at(chosen).into(), places, counts: at.at(ends) };
            runtime.launch(stream, &Count::KERNEL, count.config(), count)?;
            runtime.copy_to_host(stream, &mut counts, at.at(ends))?;
            counts.iter_mut().fold(0, |first, count| first + std::mem::replace(count, first));
            runtime.copy_to_device(stream, at.at(ends), &counts)?;
            let fill = Fill { edges: at.at(chosen).into(), places, ends: at.at(ends), lists: at.at(lists) };
            runtime.launch(stream, &Fill::KERNEL, fill.config(), fill)?;
            for first in (0..nodes).step_by(tile) {
                let some = first..nodes.min(first + tile);
                let join = Join {
                    edges: at.at(chosen).into(),
                    first: first as u32,
                    count: some.len() as u32,
                    degree: degree as u32,
                    ends: at.at(ends).into(),
                    lists: at.at(lists).into(),
                    joined: at.at(candidate_place),
                };
                runtime.launch(stream, &Join::KERNEL, join.config(), join)?;
                let launch = launch(some, joined, true);
                runtime.launch(stream, kernel, launch.config(), launch)?;
            }
            runtime.copy_to_host(stream, edges, at.at(chosen))?;

            // The memory of the counts is for levels, and then for parents.
            counts.fill(OPEN);
            starts.iter().for_each(|&start| counts[start as usize] = 0);
            runtime.copy_to_device(stream, at.at(levels), &counts)?;
            counts.fill(NO_NODE);
            starts.iter().for_each(|&start| counts[start as usize] = start);
            runtime.copy_to_device(stream, at.at(parents), &counts)?;
            let (mut level, mut some) = (0, [1u32]);
            while some != [0] {
                let claim = Claim {
                    edges: at.at(chosen).into(),
                    count: nodes as u32,
                    degree: degree as u32,
                    levels: at.at(levels).into(),
                    level,
                    parents: at.at(parents),
                };
                runtime.launch(stream, &Claim::KERNEL, claim.config(), claim)?;
                level += 1;
                runtime.fill(stream, at.at(reached), 0)?;
                let settle = Settle {
                    parents: at.at(parents).into(),
                    count: nodes as u32,
                    levels: at.at(levels),
                    level,
                    reached: at.at(reached),
                };
                runtime.launch(stream, &Settle::KERNEL, settle.config(), settle)?;
                runtime.copy_to_host(stream, &mut some, at.at(reached))?;
            }
            runtime.copy_to_host(stream, &mut counts, at.at(parents))?;
            Ok(counts)
        }
    }
}
