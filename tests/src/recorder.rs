//! A subscriber that records the library's events.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event: its level and its fields as text. The field `message` is the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// How important the library says that the event is.
    pub level: Level,
    /// The values of the fields.
    pub fields: BTreeMap<&'static str, String>,
}

impl Recorded {
    /// The value of a field; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl Visit for Recorded {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

static EVENTS: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());

/// Whether the subscriber panics at each event, and how often it did.
static PANICS: AtomicBool = AtomicBool::new(false);
static PANICKED: AtomicUsize = AtomicUsize::new(0);

struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "warpann"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if PANICS.load(Ordering::Relaxed) {
            PANICKED.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new("a panic of the subscriber"));
        }
        let mut recorded = Recorded { level: *event.metadata().level(), fields: BTreeMap::new() };
        event.record(&mut recorded);
        EVENTS.lock().unwrap().push(recorded);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Records all events of the library from now on, on all threads. A process can do this once.
///
/// # Panics
/// If the process has a subscriber.
pub fn install() {
    tracing::subscriber::set_global_default(Recorder).expect("the first subscriber of this process");
}

/// Calls `work`. Returns its result and the events of the process meanwhile.
///
/// # Panics
/// If another thread panicked in this module.
pub fn events_of<V>(work: impl FnOnce() -> V) -> (V, Vec<Recorded>) {
    EVENTS.lock().unwrap().clear();
    let value = work();
    (value, std::mem::take(&mut *EVENTS.lock().unwrap()))
}

/// Calls `work` while the subscriber panics at each event. Returns its result and the number of these panics.
pub fn with_panics<V>(work: impl FnOnce() -> V) -> (V, usize) {
    PANICKED.store(0, Ordering::Relaxed);
    PANICS.store(true, Ordering::Relaxed);
    let value = work();
    PANICS.store(false, Ordering::Relaxed);
    (value, PANICKED.load(Ordering::Relaxed))
}
