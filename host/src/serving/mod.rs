//! Single requests become batches: [`Batcher`].
//!
//! # Why
//! A search of one query leaves most of a GPU idle, and its launches cost as much as those of a search of many.
//! Programs that serve have single requests, each with options of its own, that arrive when they please.
//!
//! # Algorithm
//! ```text
//! submit ──► queue: groups of requests that one search can answer, each in the order of arrival
//! worker: take the oldest request and those of its group behind it, at most as many as the limit
//!         refuse those whose deadline has passed, skip those that nobody waits for
//!         search in the version of the index that is current now
//!         cut each row to its own k and radius, and give it to its waiter
//! ```
//!
//! Nothing waits for a batch to fill. A worker that is free takes what has come since; while all are busy the queue
//! grows, and with it the next batch. So a single request starts at once, and under load batches become as large as
//! they must be. A caller that waits anyway ([`Batcher::search`]) searches on its own thread while a worker's place is
//! free and the queue is empty: then the request costs no change of threads.
//!
//! The limit is the only number that is found by trial. A request waits for at most one batch and then takes part in
//! one, if the queue is no longer than a batch. So a batch that takes half of the target ([`BatcherBuilder::target`])
//! keeps it. The limit doubles after a batch of its size that took less than a quarter of the target, and halves after
//! one that took more than half.
//!
//! # Results
//! Each result has the bits of [`Index::search_with`](crate::Index::search_with) in one version of the index, because
//! results of a search do not depend on its other queries. Requests with different `k` share a search where the first
//! of more results are the results ([`prefixes`](crate::index::private::Searching::prefixes)).
//!
//! Requests with different filters share one where the kind of the index says that this costs less
//! ([`shares_filters`](crate::index::private::Searching::shares_filters)): the search has a filter for each query
//! ([`Filter::Each`](crate::Filter::Each)).
//!
//! # Failures
//! If a search of several requests fails or panics, those of each filter are searched by themselves, and if that fails
//! as well, each alone. So every request gets its own error, and the others their results.
//!
//! | file | content |
//! |---|---|
//! | `request` | a request and its filter |
//! | `answer` | the place where a request waits for its result |
//! | `queue` | the groups of requests that wait |
//! | `waiting_room` | the way of requests to workers, and who wakes whom |
//! | `batcher` | workers, limits, statistics |

mod answer;
mod batcher;
mod queue;
mod request;
#[cfg(test)]
mod tests;
mod waiting_room;

pub use self::answer::Answer;
pub use self::batcher::{Batcher, BatcherBuilder, BatcherStatistics};
pub use self::request::{Request, SharedFilter};
