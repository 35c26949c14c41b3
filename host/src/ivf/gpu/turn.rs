//! The rotation of queries on a device, which an image holds.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::pq::mix::Mix;

use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::scratch::{Layout, Reserved, Scratch};
use crate::pq::gpu::rotate::rotate;
use crate::pq::turn::Turn;
use crate::product::gpu::VectorShape;

/// The place of a rotation in an image.
#[derive(Clone, Copy)]
pub(super) struct TurnPlan {
    /// The rows of a matrix, or the signs of each round; padded as vectors are.
    pub rows: Reserved<f32>,
    is_matrix: bool,
    dim: u32,
}

impl TurnPlan {
    /// Plans a rotation of vectors of `dim` components; `None` if the device has no shared memory for one of them
    /// ([`Mix`]), so that the host rotates.
    pub fn new(layout: &mut Layout, turn: Turn<'_>, dim: usize, limits: &Limits) -> Option<TurnPlan> {
        let is_matrix = matches!(turn, Turn::Matrix(_));
        let fits = dim <= Mix::longest(limits.shared_bytes) as usize;
        let rows = (turn.rows().len() / dim).saturating_mul(dim.next_multiple_of(4));
        (is_matrix || fits).then(|| TurnPlan { rows: layout.array(rows), is_matrix, dim: dim as u32 })
    }

    /// The rotation in the memory of the image.
    pub fn on_device(self, memory: Scratch) -> TurnOnDevice {
        TurnOnDevice { rows: memory.at(self.rows).into(), is_matrix: self.is_matrix, dim: self.dim }
    }
}

/// A rotation in the memory of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnOnDevice {
    rows: Ptr<f32>,
    is_matrix: bool,
    dim: u32,
}

impl TurnOnDevice {
    /// Enqueues the rotation of vectors, which are f32 of the shape `shape`. `to_stride` is the distance from one
    /// rotated vector to the next, at least as many components, which ends with zeros.
    ///
    /// # Safety
    /// The arrays are as long as their numbers say, and written before in the stream. The image is alive.
    pub unsafe fn enqueue(
        self,
        on: OnStream<'_>,
        shape: VectorShape,
        (vectors, count): (Ptr<f32>, u32),
        (to, to_stride): (PtrMut<f32>, u32),
    ) -> Result<()> {
        let TurnOnDevice { rows, is_matrix, dim } = self;
        if is_matrix {
            // SAFETY: as the caller promises; the image has a row for each component.
            return unsafe { rotate(on, shape, (vectors, count), (rows, dim), (to, to_stride)) };
        }
        let launch = Mix { vectors, count, stride: shape.stride() as u32, dim, signs: rows, to, to_stride };
        // SAFETY: as the caller promises; the image has the signs of all rounds.
        unsafe { on.runtime.launch(on.stream, &Mix::KERNEL, launch.config(), launch) }
    }
}
