//! Inverted files: probes, pairs, scans, re-ranking.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`queries`] | half-precision operands of queries, and their error bounds | paper 5.2 |
//! | [`byte_queries`] | the same for vectors of bytes, which are their own operands | |
//! | [`code_queries`] | queries as bytes for codes of bytes or bits, and the terms of pairs | |
//! | [`widen`] | queries as they are compared with centroids and codes | |
//! | [`encode_bits`] | codes of a few bits of residuals, and their rests | RaBitQ |
//! | [`pairs`] | pairs of query and list, grouped by list | paper 5.3 |
//! | [`list_scan`] | list-major scan on tensor cores | paper 5.2, 5.3 |
//! | [`strip_scan`] | the same for few queries of a list, with operands in registers | |
//! | `encoding` | the operands of stored vectors, with one file for each encoding | |
//! | [`table_scan`] | scan of product-quantized lists by tables in shared memory | paper 5.2, 5.3 |
//! | [`rerank`] | exact distances of candidates, and the proof that no others are needed | |
//! | [`rescan`] | exact results of the queries that lack this proof, without the host | |
//! | [`code_bounds`] | the error of the half-precision operands of codes | |
//! | [`range`] | number of candidates that may lie within a radius | |

pub mod byte_queries;
pub mod code_bounds;
pub mod code_queries;
pub mod encode_bits;
pub mod encoding;
pub mod list_scan;
pub mod pairs;
pub mod queries;
pub mod range;
pub mod rerank;
pub mod rescan;
pub mod strip_scan;
pub mod table_scan;
pub mod widen;
