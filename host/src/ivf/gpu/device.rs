//! A device with the image of an index: the first search makes the image, and the first search after a change brings it
//! up to date.

use std::sync::Arc;

use super::changes::Update;
use super::image::Resident;
use super::storage::Growth;
use super::stored_plan::Held;
use crate::device::lanes::{Lane, Lanes};
use crate::device::queue::OnStream;
use crate::device::runtime::Runtime;
use crate::device::spare::Spare;
use crate::device::tiling::{Budget, resident_share};
use crate::ivf::view::View;
use crate::threads::Exclusive;
use crate::{Device, Result};

/// The searches of inverted files on one device.
pub(crate) struct IvfDevice {
    pub(super) runtime: Runtime,
    pub(super) device: Device,
    pub(super) budget: u64,
    pub(super) resident: Exclusive<Option<Arc<Resident>>>,
    pub(super) lanes: Arc<Lanes>,
    /// The image of a former version. Snapshots share it.
    pub(super) spare: Arc<Spare<Resident>>,
}

/// Leaves the image to the versions of the index that remain, unless another one shows it.
impl Drop for IvfDevice {
    fn drop(&mut self) {
        let image = self.resident.with(Option::take).and_then(Arc::into_inner);
        if let Some(image) = image {
            let bytes = image.bytes;
            self.spare.keep(image, bytes, self.budget);
        }
    }
}

impl IvfDevice {
    /// Opens the back end; `budget` defaults to nine tenths of the device's free memory.
    pub fn new(runtime: Runtime, device: Device, budget: Option<u64>) -> Result<Self> {
        let budget = runtime.budget(budget)?;
        let resident = Exclusive::new(None);
        Ok(IvfDevice { runtime, device, budget, resident, lanes: Arc::new(Lanes::of_index()), spare: Arc::default() })
    }

    /// The device that has the images of the index.
    #[cfg(feature = "cuda")]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Another back end of the device, with the same image until one of the two brings it up to date, and with the same
    /// lanes.
    pub(super) fn shared(&self) -> IvfDevice {
        let resident = Exclusive::new(self.resident.with(|resident| resident.clone()));
        let (runtime, lanes, spare) = (self.runtime.clone(), Arc::clone(&self.lanes), Arc::clone(&self.spare));
        IvfDevice { runtime, resident, lanes, spare, ..*self }
    }

    /// The image of the index's current version. The first search makes it, within the budget, and the first search
    /// after a change brings it up to date; searches that come at the same time wait.
    pub(super) fn resident(&self, view: &View<'_>) -> Result<Arc<Resident>> {
        // Making the directory uses a thread pool, so the directory is made before the lock is taken.
        view.sparse_directory();
        self.resident.with(|resident| {
            if let Some(image) = resident.as_ref().filter(|image| image.version == view.version()) {
                return Ok(image.clone());
            }
            let budget = resident_share(self.budget);
            let mut growth = Growth::None;
            // Searches borrow the index, so none of them reads a stale image any more. A snapshot of the index may have
            // it.
            if let Some(stale) = resident.take() {
                growth = stale.storage.growth;
                let own = Arc::try_unwrap(stale).map(Some).or_else(|shared| {
                    let spare = match self.spare.take(shared.bytes) {
                        Some(spare) if spare.is_near(view, &shared) => return Ok(Some(spare)),
                        spare => spare,
                    };
                    let copy = |lane: &mut Lane| {
                        shared.copied(
                            OnStream { runtime: &self.runtime, stream: &lane.background },
                            view,
                            budget,
                            spare,
                        )
                    };
                    let copied = self.lanes.with(&self.runtime, copy);
                    if copied.is_err() {
                        *resident = Some(shared);
                    }
                    copied
                });
                if let Some(mut image) = own? {
                    let room = self.scratch(&image);
                    match self.lanes.with(&self.runtime, |lane| image.update(room, lane, view))? {
                        Update::Done => return Ok(resident.insert(Arc::new(image)).clone()),
                        Update::Outgrown => growth = Growth::Eighth,
                        Update::Impossible => {}
                    }
                    // The stale image is dropped before the next one is made, because the device may not have room for
                    // two.
                }
            }
            let made = |lane: &mut Lane| Resident::new(&self.runtime, &lane.background, view, budget, growth);
            let made = self.lanes.with(&self.runtime, made)?;
            Ok(resident.insert(Arc::new(made)).clone())
        })
    }

    /// Makes the image of an index whose vectors this device has already. The searches of its version find it.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory), errors of the device's driver.
    pub fn hold(&self, view: &View<'_>, held: Held) -> Result<()> {
        self.resident.with(|resident| {
            let budget = resident_share(self.budget);
            let made = self.lanes.with(&self.runtime, |lane| {
                Resident::of_held(OnStream { runtime: &self.runtime, stream: &lane.stream }, view, held, budget)
            });
            *resident = Some(Arc::new(made?));
            Ok(())
        })
    }

    /// Bytes of the image of a former version.
    #[cfg(test)]
    pub fn spare_bytes(&self) -> u64 {
        self.spare.bytes()
    }

    /// The budget that the image and the spare memory leave for scratch.
    pub(super) fn scratch(&self, resident: &Resident) -> Budget<'_> {
        Budget::new(&self.runtime, self.budget.saturating_sub(resident.bytes + self.spare.bytes()))
    }
}
