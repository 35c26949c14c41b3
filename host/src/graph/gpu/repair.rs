//! The edges of a graph whose rows have moved, on a device: the same as on the CPU (`graph::build`).
//!
//! ```text
//! for each batch of nodes:  repair ──► candidates ──prune──► edges ──► host
//! ```

use warpann_kernels::graph::prune::Prune;
use warpann_kernels::graph::repair::RepairCandidates;

use super::build::DeviceBuild;
use crate::Result;
use crate::device::runtime::Stream;
use crate::device::scratch::Layout;
use crate::threads::apart;

/// Candidates of a batch, at most.
const BATCH_CANDIDATES: usize = 1 << 24;
/// The same on the emulator, so that small tests have several batches.
const BATCH_EMULATED: usize = 1 << 12;

impl DeviceBuild<'_> {
    /// Whether the device has the shared memory to repair edges.
    pub(in super::super) fn can_repair(&self) -> bool {
        let (Ok(degree), Ok(stride)) = (u32::try_from(self.degree()), u32::try_from(self.stride())) else {
            return false;
        };
        let most = RepairCandidates::width(degree);
        let shared = self.runtime().limits().shared_bytes;
        stride <= 1 << 16 && Prune::shared_bytes(stride, most, degree) <= shared
    }

    /// Fills `edges`, `degree` places for each node. `old` are the edges of the rows before, `moved` has the node to
    /// which each of these rows moved, and `before` the row of each node; `NO_NODE` stands for none.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub(in super::super) fn repair(
        &self,
        (old, moved, before): (&[u32], &[u32], &[u32]),
        edges: &mut [u32],
    ) -> Result<()> {
        // `apart` keeps a pool thread from starting another search while it has a lane.
        apart(|| self.lanes().with(self.runtime(), |lane| self.repair_on(&lane.stream, (old, moved, before), edges)))
    }

    fn repair_on(
        &self,
        stream: &Stream,
        (old, moved, before): (&[u32], &[u32], &[u32]),
        edges: &mut [u32],
    ) -> Result<()> {
        let (runtime, degree) = (self.runtime(), self.degree());
        let width = RepairCandidates::width(degree as u32) as usize;
        let most = if runtime.limits().emulated { BATCH_EMULATED } else { BATCH_CANDIDATES };
        let batch = (most / width).clamp(1, before.len().max(1));
        let mut layout = Layout::default();
        let (old_edges, numbers, rows) =
            (layout.array(old.len()), layout.array(moved.len()), layout.array(before.len()));
        let (candidates, kept, chosen) =
            (layout.array(batch * width), layout.array(batch), layout.array::<u32>(batch * degree));
        let memory = runtime.allocate(layout.bytes())?;
        let at = runtime.scratch(&memory);
        // SAFETY: the layout has room for all arrays; edges lead to old rows, and these moved to nodes, which are rows.
        unsafe {
            for (array, values) in [(old_edges, old), (numbers, moved), (rows, before)] {
                runtime.copy_to_device(stream, at.at(array), values)?;
            }
            for (number, edges) in edges.chunks_mut(batch * degree).enumerate() {
                let (first, count) = ((number * batch) as u32, (edges.len() / degree) as u32);
                let repair = RepairCandidates {
                    first,
                    count,
                    before: at.at(rows).into(),
                    moved: at.at(numbers).into(),
                    edges: at.at(old_edges).into(),
                    degree: degree as u32,
                    candidates: at.at(candidates),
                    kept: at.at(kept),
                };
                runtime.launch(stream, &RepairCandidates::KERNEL, repair.config(), repair)?;
                // Of a node that has lost no neighbour, all edges stay.
                let prune = Prune {
                    first,
                    count,
                    held: Some(at.at(kept).into()),
                    candidates: at.at(candidates).into(),
                    most: width as u32,
                    edges: at.at(chosen),
                    ..self.pruning()
                };
                runtime.launch(stream, self.prune_kernel(), prune.config(), prune)?;
                runtime.copy_to_host(stream, edges, at.at(chosen))?;
            }
        }
        Ok(())
    }
}
