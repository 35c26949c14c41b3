//! warpann: GPU similarity search with kernels in pure Rust.
//!
//! [`FlatIndex`] is exact k-nearest-neighbour search over vectors of f32, f16, bf16, u8 or i8, under squared L2, inner
//! product or cosine ([`Metric`]), on a GPU, on the CPU, or on the emulator that checks the GPU's kernels ([`Device`]), or on several
//! of them ([`Placement`]).
//! Results have the same bits on every device: the k best by (canonical distance, lower id), see [`metric`].
//!
//! ```
//! use warpann::{Device, FlatIndex, Metric};
//!
//! // 1000 vectors of dimension 16 on a curve; row-major, one after the other.
//! let base: Vec<f32> = (0..1000).flat_map(|i| (0..16).map(move |j| (i as f32 * 0.01 + j as f32).sin())).collect();
//!
//! let mut index = FlatIndex::builder(16).metric(Metric::L2).device(Device::Auto).build()?;
//! index.add(&base)?;
//!
//! // The 500th vector is its own nearest neighbour; the next are its neighbours on the curve.
//! let found = index.search(&base[500 * 16..501 * 16], 3)?;
//! assert_eq!(found.ids[0], 500);
//! assert_eq!(found.distances[0], 0.0);
//! println!("{:?} on {}", found.found(0).collect::<Vec<_>>(), index.device());
//! # Ok::<(), warpann::Error>(())
//! ```
//!
//! # Calls from anywhere
//! Indexes are `Send + Sync`, and many threads may call methods with `&self` at once. Every method may be called from any thread: a thread
//! of a rayon pool of any size, the inside of a parallel iterator, an async runtime's thread for blocking work (calls block until they are
//! done), or a thread that uses other indexes. The calling thread does not change a bit of a result, and calls never deadlock. The work of
//! the CPU runs in the caller's rayon pool: the installed pool, or the global one. The host's work for a device, which is copies and (on
//! the emulator) kernels, runs on threads of this library; their number is the largest number that worked at the same time.
//! [`allow_threads`] turns them off.
//!
//! As with any use of rayon, a pool thread that waits for parallel work may run another task of its pool. So a task should not hold a lock
//! during a call if other tasks of the pool take that lock.
//!
//! Bad input gives an [`Error`] with the values that caused it; no function panics on it. [`io`] reads and writes the usual vector files.

#[cfg(all(feature = "cuda", not(target_os = "linux")))]
compile_error!(
    "the feature `cuda` of warpann supports Linux only; without it the library has the CPU path and the emulator"
);

pub mod device;
pub mod distributed;
pub mod element;
pub mod error;
mod events;
pub mod flat;
pub mod generate;
pub mod graph;
mod host_memory;
pub mod io;
pub mod ivf;
pub mod kmeans;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod magnitude_tests;
#[cfg(feature = "ndarray")]
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
pub mod matrices;
#[cfg(feature = "cuda")]
pub mod measure;
#[cfg(feature = "mesh")]
#[cfg_attr(docsrs, doc(cfg(feature = "mesh")))]
pub mod mesh;
pub mod metric;
mod names;
pub mod neighbors;
mod parallel;
pub mod placement;
pub mod pq;
mod product;
mod random;
pub mod select;
mod serialised;
mod shards;
#[cfg(feature = "shifted")]
#[cfg_attr(docsrs, doc(cfg(feature = "shifted")))]
pub mod shifted;
mod simd;
pub mod sort;
mod threads;
mod validate;
mod vectors;

/// The driver interface whose streams and addresses [`select::device`] takes, in the version that this library uses.
#[cfg(feature = "cuda")]
pub use cust;
pub use element::{Element, ElementType};
pub use error::{Error, FileDefect, Input, NoDeviceReason, Result};
pub use flat::{FlatIndex, FlatIndexBuilder};
pub use ivf::{IvfIndex, IvfIndexBuilder};
pub use metric::Metric;
pub use names::UnknownName;
pub use neighbors::{NONE, Neighbors};
pub use placement::{Device, Placement};
#[cfg(feature = "shifted")]
pub use shifted::{ShiftedIndex, ShiftedIndexBuilder};
pub use threads::allow_threads;
