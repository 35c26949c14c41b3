//! Exact search: a filter in half precision, and the candidates that it keeps.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`filter`] | half-precision matrix product on tensor cores that keeps what may be among the best k | paper 5.1 |
//! | [`candidates`] | thresholds and compaction of candidate lists between filter passes | |

pub mod candidates;
pub mod filter;
