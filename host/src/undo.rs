//! Changes that are made whole or not at all, whatever happens between their steps.
//!
//! Code of the caller runs between two steps of some changes. It can cancel the change, and it can panic. A rollback
//! that is written for errors does not run while a panic unwinds. So rollbacks go through [`undone_unless_ok`], which
//! undoes in both cases.
//!
//! # Where code of the caller runs
//!
//! | code | when it runs | after its panic |
//! |---|---|---|
//! | callback of a [`Watch`](crate::Watch), addition to a flat index | when the back end has some of the rows, and no id names them | the back end drops these rows (`flat::changes`) |
//! | the same, ids that come back or lie between others | as above; in a second index, which nobody sees yet | as above; the second index is dropped |
//! | the same, addition to a graph index | when the rows are there and the edges are not | the index becomes the snapshot from before (`graph::change`) |
//! | the same, addition to inverted files | while vectors are coded; the lists change in one step afterwards | nothing has changed |
//! | the same, training, and the callback of `KMeans::train_watched` | on values that nobody sees yet, perhaps on a pool thread or with a lane | they are dropped; the next call makes a new lane |
//! | the same, saving; the closure of `io::write_file_with` | while a temporary file is written | the file is removed, the old one stays |
//! | the same, k-NN graph | when a batch is in the files and in the journal | the next run resumes after this batch |
//! | iterator and batches of `IvfIndex::add_batches` | before the batch is coded, while the batch before is appended on another thread | the index has the batches before |
//! | `knn_graph::KnnIndex` | in searches by a shared reference, while the batch before is written on another thread | as for the watch of a k-NN graph |
//! | functions of filters (`filter`, `SearchOptions::filter_by`) | before the search takes a lane or a lock | nothing has changed |
//! | closure of `IndexWriter::change` | on a snapshot that is not published, without a lock | the snapshot is dropped |
//! | `distributed::Ranks` | between the collective steps of a call, without a lock | the rank is lost, as one whose process ended |
//! | subscribers of the crate tracing | between two steps, also under locks | it is caught (`events`) |
//! | readers and writers of the caller (`io`), serde, conversions (`Into<Placement>`, `AsRef<Path>`) | before a change begins, or without one | nothing has changed |
//!
//! Locks of the library ignore poison: the value under a lock is right whenever code of the caller may run.

use crate::Result;

/// Calls `work` on `state`. Unless it succeeds, calls `undo` on `state`: after an error, and while a panic of `work`
/// unwinds.
///
/// `undo` must not panic, because a second panic ends the program. So it needs no memory and no device.
pub(crate) fn undone_unless_ok<S: ?Sized, V>(
    state: &mut S,
    undo: impl FnOnce(&mut S),
    work: impl FnOnce(&mut S) -> Result<V>,
) -> Result<V> {
    let mut guard = Guard { state, undo: Some(undo) };
    let value = work(guard.state)?;
    guard.undo = None;
    Ok(value)
}

/// Calls `undo` when it is dropped, if that is still there.
struct Guard<'a, S: ?Sized, U: FnOnce(&mut S)> {
    state: &'a mut S,
    undo: Option<U>,
}

impl<S: ?Sized, U: FnOnce(&mut S)> Drop for Guard<'_, S, U> {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo(self.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;
    use crate::Error;

    #[test]
    fn only_success_is_kept() {
        let mut values = vec![1];
        let push = |values: &mut Vec<i32>, then: &dyn Fn() -> Result<()>| {
            let before = values.len();
            undone_unless_ok(
                values,
                |values| values.truncate(before),
                |values| {
                    values.push(2);
                    then()?;
                    values.push(3);
                    Ok(values.len())
                },
            )
        };
        assert!(matches!(push(&mut values, &|| Err(Error::Cancelled)), Err(Error::Cancelled)));
        assert_eq!(values, [1]);
        let panic = catch_unwind(AssertUnwindSafe(|| push(&mut values, &|| resume_unwind(Box::new(7)))));
        assert_eq!((panic.unwrap_err().downcast_ref(), values.as_slice()), (Some(&7), [1].as_slice()));
        assert_eq!((push(&mut values, &|| Ok(())).unwrap(), values.as_slice()), (3, [1, 2, 3].as_slice()));
    }
}
