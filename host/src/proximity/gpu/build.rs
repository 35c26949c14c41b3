//! The edges of a new graph, chosen on a device ([`warpann_kernels::proximity::prune`]): the same edges as on the CPU.

use std::ops::Range;

use warpann_kernels::proximity::prune::{Count, Fill, Join, Prune};

use super::super::distance::WalkDistance;
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
        let most = self.most(candidates) as u32;
        candidates.len().saturating_mul(self.degree) <= 1 << 31
            && Prune::shared_bytes(stride, most, self.degree as u32) <= shared
    }

    /// Number of candidates of a node.
    fn most(&self, candidates: &Graph) -> usize {
        candidates.neighbours().len() / candidates.len().max(1)
    }

    fn stride(&self) -> usize {
        compared_codes(&self.resident, &self.distance)
            .map_or(self.resident.shape.stride(), |codes| code_stride(codes.dim()))
    }

    /// Fills `edges`, `degree` for each node.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub(in super::super) fn edges(&self, candidates: &Graph, edges: &mut [u32]) -> Result<()> {
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| self.resident.lanes.with(self.resident.runtime, |lane| self.edges_on(lane, candidates, edges)))
    }

    fn edges_on(&self, lane: &Lane, candidates: &Graph, edges: &mut [u32]) -> Result<()> {
        let runtime = self.resident.runtime;
        let (stream, nodes, most) = (&lane.stream, candidates.len(), self.most(candidates));
        let tile = (TILE_BYTES / (4 * most)).clamp(1, nodes);
        let codes = compared_codes(&self.resident, &self.distance);
        let mut layout = Layout::default();
        let code_place = layout.array::<u8>(codes.map_or(0, |codes| codes.len() * code_stride(codes.dim())));
        let candidate_place = layout.array::<u32>(tile * most);
        let chosen = layout.array::<u32>(edges.len());
        let ends = layout.array::<u32>(nodes);
        let lists = layout.array::<u32>(edges.len());
        let joined = layout.array::<u32>(edges.len());
        let memory = runtime.allocate(layout.bytes())?;
        let at = runtime.scratch(&memory);
        let mut counts: Vec<u32> = host_memory::zeroed(nodes)?;
        // SAFETY: the layout has room for all arrays. Neighbours are rows, and `Count` leaves the lengths of the lists that `Fill` fills.
        unsafe {
            if let Some(codes) = codes {
                upload_codes(runtime, stream, at.at(code_place), codes)?;
            }
            let launch = |some: Range<usize>| Prune {
                rows: if codes.is_some() { at.at(code_place).into() } else { self.resident.rows.into() },
                stride: self.stride() as u32,
                metric: self.distance.metric().of_kernel(),
                first: some.start as u32,
                count: some.len() as u32,
                candidates: at.at(candidate_place).into(),
                most: most as u32,
                edges: at.at(chosen.part(some.start * self.degree, some.len() * self.degree)),
                degree: self.degree as u32,
            };
            let kernel = Prune::kernel(self.distance.rows().element().key());
            for first in (0..nodes).step_by(tile) {
                let some = first..nodes.min(first + tile);
                let rows = &candidates.neighbours()[some.start * most..some.end * most];
                runtime.copy_to_device(stream, at.at(candidate_place), rows)?;
                let launch = launch(some);
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
            let join = Join {
                edges: at.at(chosen).into(),
                count: nodes as u32,
                degree: self.degree as u32,
                ends: at.at(ends).into(),
                lists: at.at(lists).into(),
                joined: at.at(joined),
            };
            runtime.launch(stream, &Join::KERNEL, join.config(), join)?;
            runtime.copy_to_host(stream, edges, at.at(joined))
        }
    }
}
