//! Exact search: a filter in half precision, the candidates that it keeps, and searches among some rows.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`filter`] | half-precision matrix product on tensor cores that keeps what may be among the best k | paper 5.1 |
//! | [`byte_filter`] | the same for vectors of bytes, by exact products of the stored rows | |
//! | [`pass`] | the tiles that a filter visits, and its output | |
//! | [`sample_rows`] | a sample of the base, and thresholds that are estimates | |
//! | [`candidates`] | thresholds and compaction of candidate lists between filter passes | |
//! | [`gather_rows`] | copies listed rows to another set, and back | |
//! | [`list_rows`] | lists of the rows that each query of a batch may find | |
//! | [`mask_values`] | leaves rows out of the filter | |
//! | [`mask_distances`] | leaves rows out of a selection | |
//! | [`rescan`] | the best rows for queries without a proof, without the host | |
//! | [`count_within`] | range search with a fixed number of places for each query | |
//! | [`stage_rows`] | takes vectors from the caller's device memory | |
//! | [`name_results`] | results for the caller's device memory | |

pub mod byte_filter;
pub mod candidates;
pub mod count_within;
mod epilogue;
pub mod filter;
pub mod gather_rows;
pub mod list_rows;
pub mod mask_distances;
pub mod mask_values;
pub mod name_results;
pub mod pass;
pub mod rescan;
pub mod sample_rows;
pub mod stage_rows;
