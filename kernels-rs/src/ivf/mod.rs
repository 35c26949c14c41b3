//! Inverted files: probes, pairs, scans, re-ranking.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`queries`] | queries made ready: half-precision operands and the bounds of their errors | paper 5.2 |
//! | [`pairs`] | pairs of query and list, grouped by list | paper 5.3 |
//! | [`list_scan`] | list-major scan on tensor cores | paper 5.2, 5.3 |
//! | `encoding` | the operands of stored vectors, a file for each encoding | |
//! | [`table_scan`] | scan of product-quantized lists by tables in shared memory | paper 5.2, 5.3 |
//! | [`rerank`] | exact distances of candidates, and the proof that they suffice | |
//! | [`code_bounds`] | the error of the half-precision operands of codes | |
//! | [`range`] | how many candidates may lie within a radius | |

pub mod code_bounds;
pub mod encoding;
pub mod list_scan;
pub mod pairs;
pub mod queries;
pub mod range;
pub mod rerank;
pub mod table_scan;
