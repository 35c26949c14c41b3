#![doc = include_str!("../README.md")]
//! # Modules
//!
//! | module or type | what it does |
//! |---|---|
//! | [`FlatIndex`] | exact search |
//! | [`IvfIndex`], [`ivf`] | search in inverted files: vectors as they are, halves, bytes or product codes; filters, refinement, changes, files |
//! | [`GraphIndex`], [`graph`] | search by walks in a graph of near neighbours |
//! | [`Index`], [`IndexWriter`] | what all indexes have in common; searches of an index while it changes |
//! | [`Batcher`] | single requests of many threads and tasks, answered by searches of many at once |
//! | [`knn_graph`] | k-NN graphs, their components and paths |
//! | `shifted` | near neighbours in up to twelve dimensions (feature `shifted`) |
//! | [`select`], [`sort`] | k-selection, also on a CUDA stream of the caller; stable sort of keys with payloads |
//! | [`kmeans`], [`pq`] | clustering; product quantization |
//! | [`Device`], [`Placement`], [`device`] | where an index is: a GPU, several, the CPU, the emulator; properties of devices |
//! | [`metric`], [`Metric`] | metrics, and the definition of every distance |
//! | [`io`], `mesh` | files of vectors and ids; triangle meshes (feature `mesh`) |
//! | `matrices` | vectors and results as matrices of ndarray (feature `ndarray`) |
//! | [`distributed`] | search by several machines |
//! | [`generate`] | clustered vectors for measurements |
//! | [`Error`] | all errors, with the values that caused them |
//!
//! # Which index
//! - [`FlatIndex`]: every neighbour must be right, or there are at most some hundred thousand vectors.
//! - [`IvfIndex`] with [`Encoding::Flat`](ivf::Encoding::Flat): more vectors, or less time; some neighbours may be
//!   missed.
//! - [`Encoding::F16`](ivf::Encoding::F16), [`Encoding::Scalar8`](ivf::Encoding::Scalar8): a third or a sixth of the
//!   GPU memory, nearly the same recall.
//! - [`Encoding::Pq`](ivf::Encoding::Pq): the smallest codes. A [`Refiner`](ivf::Refiner) with the original vectors
//!   restores most of the recall.
//! - [`GraphIndex`]: few queries at a time, or recall above about .95, on the CPU.
//! - `ShiftedIndex`: points or boxes with at most twelve components.
//!
//! The page `docs/CHOOSING.md` of the repository compares them by memory, recall, time and the cost of a change.
//!
//! # Calls from anywhere
//! Indexes are `Send + Sync`, and many threads may call methods with `&self` at once. Every method may be called from
//! any thread: a thread of a rayon pool of any size, the inside of a parallel iterator, an async runtime's thread for
//! blocking work (calls block until they are done), or a thread that uses other indexes. The calling thread does not
//! change a bit of a result, and calls never deadlock. The work of the CPU runs in the caller's rayon pool: the
//! installed pool, or the global one. The host's work for a device, which is copies and (on the emulator) kernels, runs
//! on threads of this library; their number is the largest number that worked at the same time. [`allow_threads`] turns
//! them off.
//!
//! As with any use of rayon, a pool thread that waits for parallel work may run another task of its pool. So a task
//! should not hold a lock during a call if other tasks of the pool take that lock.
//!
//! Bad input gives an [`Error`] with the values that caused it; no function panics on it. [`io`] reads and writes the
//! usual vector files.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(feature = "cuda", not(target_os = "linux")))]
compile_error!(
    "the feature `cuda` of warpann supports Linux only; without it the library has the CPU path and the emulator"
);

mod any_index;
mod bitset;
pub mod device;
pub mod distributed;
pub mod element;
pub mod error;
mod events;
mod filter;
#[cfg(test)]
mod filter_tests;
pub mod flat;
pub mod generate;
pub mod graph;
mod host_memory;
mod ids;
mod index;
#[cfg(all(feature = "cuda", feature = "internals"))]
#[doc(hidden)]
pub mod internals;
pub mod io;
pub mod ivf;
pub mod kmeans;
pub mod knn_graph;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod magnitude_tests;
#[cfg(feature = "ndarray")]
pub mod matrices;
#[cfg(feature = "mesh")]
pub mod mesh;
pub mod metric;
mod names;
pub mod neighbors;
#[cfg(test)]
mod panic_tests;
mod parallel;
pub mod placement;
pub mod pq;
mod product;
mod random;
mod search;
mod search_options;
mod search_statistics;
pub mod select;
mod serialised;
mod serving;
mod shards;
mod shared;
#[cfg(feature = "shifted")]
pub mod shifted;
mod simd;
pub mod sort;
mod threads;
mod undo;
mod validate;
mod vectors;
mod versions;
pub mod views;
mod watch;
#[cfg(test)]
mod watch_tests;

pub use any_index::{Any, AnyIndex, IndexInfo, KindInfo, Recipe};
pub use bitset::Bitset;
/// The crate whose buffers and streams [`views::cudarc`] takes, in the version that this library uses.
#[cfg(feature = "cudarc")]
pub use cudarc;
/// The driver interface whose streams and addresses [`select::device`] takes, in the version that this library uses.
#[cfg(feature = "cuda")]
pub use cust;
pub use element::{Element, ElementType};
pub use error::{Error, FileDefect, Input, MemoryDefect, NoDeviceReason, Refusal, Result};
pub use filter::Filter;
pub use flat::{FlatIndex, FlatIndexBuilder, FlatStatistics};
pub use graph::{GraphIndex, GraphIndexBuilder};
pub use index::{Index, IndexKind, Kind, recall};
pub use ivf::{IvfIndex, IvfIndexBuilder};
pub use metric::Metric;
pub use names::UnknownName;
pub use neighbors::{NONE, Neighbors, RangeNeighbors};
pub use placement::{Device, Placement};
/// The memory of searches from device memory to device memory: see [`Index::device_workspace`].
#[cfg(feature = "cuda")]
pub use search::workspace::DeviceWorkspace;
pub use search_options::{Proof, Scan, SearchOptions};
pub use search_statistics::SearchStatistics;
pub use serving::{Answer, Batcher, BatcherBuilder, BatcherStatistics, Request, SharedFilter};
#[cfg(feature = "shifted")]
pub use shifted::{ShiftedIndex, ShiftedIndexBuilder};
pub use threads::allow_threads;
pub use versions::{IndexReader, IndexWriter, Snapshot};
pub use watch::{Progress, Stage, Watch};
