//! Inverted files: a table of cases, a naive reference, a runner, and what is more than one search.
//!
//! | module | what |
//! |---|---|
//! | [`cases`] | the table |
//! | [mod@reference] | which vectors a search looks at, and what is stored of them, from the definition |
//! | [`runner`] | builds an index as the case says and compares every kind of search with the reference |
//! | [`scenarios`] | removal, merging, threads, budgets, errors |

pub mod cases;
pub mod reference;
pub mod runner;
pub mod scenarios;
