//! warpann's device code. Each module is one algorithm and opens with its explanation; all are ordinary Rust over
//! [`cuda_std`], so the same source runs on the GPU (as PTX) and on the emulator.
//!
//! Each folder is a concept. The folder of the same name in `warpann` has its launches. From the bottom up:
//!
//! | folder | concept |
//! |---|---|
//! | [`select`] | k-selection |
//! | [`sort`] | radix sort of arrays |
//! | [`product`] | products of vectors, and the distance that every back end returns |
//! | [`flat`] | exact search |
//! | [`kmeans`] | nearest centroids, sums over clusters |
//! | [`pq`] | product quantization |
//! | [`ivf`] | inverted files |
//! | [`graph`] | walks in a graph |
//! | [`shifted`] | shifted sort |
//! | [`generate`] | clustered vectors, made from their numbers |
//! | [`read_ceiling`] | one read of memory, as a bound for measurements |
//!
//! Queue lengths, tile sizes and launch shapes are constants of this crate, which the host uses.
//! In a *row-major matrix with stride*, row r starts at element r · stride.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx, asm_experimental_arch))]

pub mod flat;
pub mod generate;
pub mod graph;
pub mod ivf;
pub mod kmeans;
pub mod pq;
pub mod product;
pub mod read_ceiling;
pub mod select;
pub mod shifted;
pub mod sort;

/// The row number that means "no neighbour".
pub const NO_ROW: u32 = u32::MAX;
