//! Tests of inverted files: a table of cases, a naive reference, a runner, and scenarios of several operations.
//!
//! | module | content |
//! |---|---|
//! | [`cases`] | the table of cases |
//! | [mod@reference] | the vectors that a search reads, and their stored values, computed from the definition |
//! | [`runner`] | builds the index of a case and compares every kind of search with the reference |
//! | [`scenarios`] | removal, merging, threads, budgets, errors |

pub mod cases;
pub mod reference;
pub mod runner;
pub mod scenarios;
