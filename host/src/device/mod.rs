//! Devices: memory, streams, copies and launches for all algorithms. No file here depends on an algorithm.
//!
//! | file | content |
//! |---|---|
//! | `open` | the only functions that open devices |
//! | `runtime` | a GPU or the emulator: memory, streams, copies, launches |
//! | `backend` | the trait that both implement, and the trait of a receiver of launches |
//! | `cuda` | the CUDA driver as a device (feature `cuda`) |
//! | `dependent` | launches that start before the work ahead has ended (feature `cuda`) |
//! | `driver` | declarations of the driver's functions (feature `cuda`) |
//! | `emulated` | the checking emulator of `cuda_std` as a device |
//! | `ptx` | the kernel modules of this build (feature `cuda`) |
//! | `queue` | the receiver of launches: a stream, or a check of the launches |
//! | `limits` | limits that determine the shapes of launches, and the check of one |
//! | `scratch` | layouts of scratch memory |
//! | `lanes` | streams with scratch memory, kept for the next search |
//! | `tiling` | tiles of rows that fit a budget of device memory |
//! | [`info`] | CPU, devices and kernel modules, for reports |
//!
//! # Events
//! With the feature `tracing` the library sends events of the crate tracing with the target `warpann`. Without the
//! feature there is no code for them.
//!
//! | level | message | fields |
//! |---|---|---|
//! | INFO | `device chosen` | `device`: the GPU that [`Device::Auto`](crate::Device::Auto) became |
//! | INFO | `fallback to the CPU` | `device`, `reason` why [`Device::Auto`](crate::Device::Auto) found no GPU |
//! | WARN | `fallback to the CPU` | the same if the feature `cuda` is off, once in a process |
//! | WARN | `device failed and is not used again` | `device`, `shard`, `left`: number of other devices that hold the shard, `reason` |
//! | WARN | `vectors beyond the training` | `encoding`, `vectors`: number of added vectors with clamped components, `clamped`: number of these components ([`clamped_components`](crate::ivf::IvfStatistics::clamped_components)), `components`: number of all that were added together; DEBUG if at most one in 1,000 is clamped |
//! | WARN | `lists should be trained again` | `device`, `vectors`, `lists`, `imbalance`, `drift` of an [`IvfIndex`](crate::IvfIndex) whose imbalance is above 4 or whose drift is above 1.5 after a change; once until the next training. The index is measured when as many vectors have changed as an eighth of those that it has, if there are as many as lists |
//! | WARN | `no graph could be made, so searches are exact` | `device`, `vectors`: number of vectors of a [`GraphIndex`](crate::GraphIndex) that changed, `reason`; the next change makes a graph |
//! | INFO | `lists trained` | `device`, `vectors`, `lists` of an [`IvfIndex`](crate::IvfIndex) that was trained with the vectors that it has |
//! | INFO | `base exceeds the memory budget and is streamed` | `device`, `budget` in bytes |
//! | DEBUG | `path chosen` | `operation`, `device`, `path`: the way of a search, `queries` |
//! | DEBUG | `upload` | `content`, `device`, `bytes`, `milliseconds`, which include the preparation for searches where it follows at once |
//! | DEBUG | `kernel module loaded` | `device`, `module`, `form`: `ptx` or `machine code`, `bytes` of PTX, `milliseconds`, which include the driver's compilation |
//! | TRACE | `path chosen` | `operation`: `selection`, `path`: the method of k-selection, `rows`, `k` |
//!
//! A subscriber must not call this library, because some events are sent while a lock is held. If a subscriber panics,
//! the panic hook reports it, and the call of the library goes on.

pub(crate) mod backend;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
mod dependent;
#[cfg(feature = "cuda")]
mod driver;
mod emulated;
#[cfg(test)]
pub(crate) use emulated::bytes_sent;
pub mod info;
pub(crate) mod lanes;
pub(crate) mod limits;
pub(crate) mod open;
#[cfg(feature = "cuda")]
mod ptx;
pub(crate) mod queue;
pub(crate) mod runtime;
pub(crate) mod scratch;
pub(crate) mod spare;
pub(crate) mod tiling;
