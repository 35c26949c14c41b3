//! Exact search: a filter in half precision, the candidates that it keeps, and searches among some rows.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`filter`] | half-precision matrix product on tensor cores that keeps what may be among the best k | paper 5.1 |
//! | [`candidates`] | thresholds and compaction of candidate lists between filter passes | |
//! | [`gather_rows`] | copies listed rows to another set, and back | |
//! | [`mask_values`] | leaves rows out of the filter | |

pub mod candidates;
pub mod filter;
pub mod gather_rows;
pub mod mask_values;
