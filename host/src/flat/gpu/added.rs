//! Rows that the caller has in device memory, added to resident rows.

use cuda_std::{Ptr, PtrMut};

use super::rows::{BaseRows, FlatDevice};
use crate::device::queue::OnStream;
use crate::device::runtime::Stream;
use crate::device::scratch::Layout;
use crate::search::download::download;
use crate::search::staging::{StagedRows, stage_rows};
use crate::vectors::VectorSlice;
use crate::{Error, Input, Result};

impl FlatDevice {
    /// Appends `count` contiguous rows at `from`, in the order of `stream`, and waits for the stream. Returns
    /// `Ok(false)` if the rows do not fit the device; nothing has then changed.
    ///
    /// # Errors
    /// [`Error::NotFinite`] and the errors of the device; nothing has then changed.
    ///
    /// # Safety
    /// `from` has the rows, aligned to a component, when the stream arrives there.
    pub unsafe fn add_from_device(&mut self, stream: &Stream, from: Ptr<u8>, count: usize) -> Result<bool> {
        if count == 0 {
            return Ok(true);
        }
        if !self.make_room(count)? {
            return Ok(false);
        }
        let BaseRows::Device(resident) = &self.rows else { return Ok(false) };
        let (runtime, shape) = (&self.runtime, self.shape);
        let to = self.set(resident).rows().skip(self.count * shape.row_bytes());
        let mut refused = [u32::MAX];
        self.lanes.with(runtime, |lane| {
            let mut layout = Layout::default();
            let word = layout.array::<u32>(1);
            let word: PtrMut<u32> = lane.scratch(runtime, layout.bytes())?.at(word);
            let on = OnStream { runtime, stream };
            // SAFETY: there is room for the rows and one word, and the caller promises the rows. The copy of the word
            // waits for the stream.
            unsafe {
                runtime.fill(stream, word, 0xff)?;
                stage_rows(on, shape, from, count as u32, to, StagedRows { refused: None, first_refused: Some(word) })?;
                runtime.copy_to_host(stream, &mut refused, word)
            }
        })?;
        if refused[0] != u32::MAX {
            let row = refused[0] as usize;
            let row_bytes = shape.dim * shape.element.size();
            // SAFETY: the row is one of the caller's.
            let bytes = unsafe { download(runtime, stream, from, row * row_bytes..(row + 1) * row_bytes)? };
            let vector = VectorSlice::of_bytes(shape.element, shape.dim, &bytemuck::cast_slice(&bytes)[..row_bytes]);
            vector.check_finite(Input::Base).map_err(|error| error.after_rows(row))?;
            // The caller has changed the row meanwhile.
            return Err(Error::NotFinite { input: Input::Base, row, column: 0, value: f32::NAN });
        }
        self.changed(std::iter::once(self.count..self.count + count));
        self.count += count;
        Ok(true)
    }
}
