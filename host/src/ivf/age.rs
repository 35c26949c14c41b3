//! How long ago the lists of an inverted file were compared with its vectors, for an event that tells once when they no
//! longer suit each other.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Whether the lists of an index are known not to suit its vectors.
#[derive(Default, Clone)]
pub(super) struct Age {
    /// Number of vectors that have changed since this was measured.
    pub(super) changed: usize,
    /// Whether an event has told. Snapshots share it until the next training.
    pub(super) is_told: Arc<AtomicBool>,
}
