//! warpann's tests of whole searches: one table of cases, one runner, every back end.
//!
//! | module | content |
//! |---|---|
//! | [`adversarial`] | rows made to defeat k-selection on GPUs |
//! | [`anywhere`] | every parallel call, made from pools, parallel iterators and many threads |
//! | [`cases`] | the table: named cases of exact search and of k-selection |
//! | [`data`] | deterministic vectors of every kind the table names |
//! | [`ivf`] | inverted files: cases, reference, runner, scenarios |
//! | [`kmeans`] | clustering: against the definition, by its properties, and with the same bits as the CPU |
//! | [`property`] | random cases of every public operation, against the same references |
//! | [`recorder`] | records the events of the feature `tracing` |
//! | [`runner`] | runs one case on one device and compares it with the reference |
//! | [`sanitize`] | streams and threads side by side, small enough for compute-sanitizer |
//! | [`scenarios`] | tests of several searches: threads, memory budgets, real data |
//! | [`shifted`] | shifted sort: exact if it examines all points, otherwise the CPU's bits |
//! | [`sort`] | sorting pairs against the standard library's stable sort |
//! | `on_device` | k-selection on the caller's streams, on GPUs only (feature `cuda`) |
//! | [`suite`] | makes a list of tests of all that, for one device |
//!
//! Random cases of exact search and k-selection, their vectors and keys and the naive references are in [`test_cases`],
//! which `warpann verify` uses too.
//!
//! A back end adds itself in `tests/NAME.rs` with one call of [`suite::run`]. Tests that need a GPU show as ignored if
//! there is none; with `WARPANN_REQUIRE_GPU=1` in the environment a missing GPU makes them fail.

pub mod adversarial;
pub mod anywhere;
pub mod cases;
#[cfg(feature = "cuda")]
pub mod cudarc_data;
pub mod data;
#[cfg(feature = "cuda")]
pub mod device_data;
pub mod ivf;
pub mod kmeans;
#[cfg(feature = "cuda")]
pub mod on_device;
pub mod property;
pub mod recorder;
pub mod runner;
pub mod sanitize;
pub mod scenarios;
pub mod shifted;
pub mod sort;
pub mod suite;
pub mod walks;

pub use test_cases::reference;

/// The library example of README.md, as a doctest.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The library examples of docs/INDEXES.md, as doctests. One needs the GPU back end to compile.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/INDEXES.md")]
pub struct Indexes;

/// The examples of docs/GUIDE.md, as doctests. One needs the feature `cudarc` to compile.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/GUIDE.md")]
pub struct Guide;
