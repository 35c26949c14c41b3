//! Events of the crate tracing (feature `tracing`). Without the feature every function here is empty.
//!
//! The documentation of [`device`](crate::device) lists the events. Some of them are sent while a lock is held.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "the functions are empty"))]

#[cfg(feature = "tracing")]
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "tracing")]
use std::time::Instant;

use crate::{Device, Error};

/// Calls a subscriber. The subscriber is code of the program and may panic, and events are sent between two steps of
/// changes and while locks are held. So such a panic ends here, after the panic hook has reported it.
#[cfg(feature = "tracing")]
fn caught<V>(call: impl FnOnce() -> V) -> Option<V> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// The begin of a piece of work whose time an event reports.
pub(crate) struct Started {
    /// None if no subscriber wants the event.
    #[cfg(feature = "tracing")]
    at: Option<Instant>,
}

impl Started {
    /// Reads the clock if a subscriber may want the time.
    #[inline(always)]
    pub fn now() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            at: caught(|| tracing::enabled!(target: "warpann", tracing::Level::DEBUG))
                .unwrap_or(false)
                .then(Instant::now),
        }
    }

    /// Milliseconds since the begin.
    #[cfg(feature = "tracing")]
    fn milliseconds(&self) -> f64 {
        self.at.map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3)
    }
}

/// [`Device::Auto`] became `device`; `reason` is the reason why there is no GPU.
#[inline(always)]
pub(crate) fn device_chosen(device: Device, reason: Option<&Error>) {
    #[cfg(feature = "tracing")]
    caught(|| match reason {
        None => tracing::info!(target: "warpann", %device, "device chosen"),
        Some(Error::NoDevice { reason: off @ crate::NoDeviceReason::FeatureOff }) => {
            static ONCE: std::sync::Once = std::sync::Once::new();
            // A panic must not leave the `Once` poisoned.
            ONCE.call_once(|| {
                caught(|| tracing::warn!(target: "warpann", %device, reason = %off, "fallback to the CPU"));
            });
        }
        Some(reason) => tracing::info!(target: "warpann", %device, %reason, "fallback to the CPU"),
    });
}

/// The base of a flat index does not fit the device, so searches stream it from host memory.
#[inline(always)]
pub(crate) fn base_streamed(device: impl FnOnce() -> String, budget: u64) {
    #[cfg(feature = "tracing")]
    caught(
        || tracing::info!(target: "warpann", device = device(), budget, "base exceeds the memory budget and is streamed"),
    );
}

/// A device of several failed; `left` others hold its shard.
#[inline(always)]
pub(crate) fn device_failed(device: Device, shard: usize, left: usize, reason: &Error) {
    #[cfg(feature = "tracing")]
    caught(|| tracing::warn!(target: "warpann", %device, shard, left, %reason, "device failed and is not used again"));
}

/// A search of `operation` takes `path`.
#[inline(always)]
pub(crate) fn path(operation: &'static str, device: impl FnOnce() -> String, path: &'static str, queries: usize) {
    #[cfg(feature = "tracing")]
    caught(|| tracing::debug!(target: "warpann", operation, device = device(), path, queries, "path chosen"));
}

/// A k-selection of a device takes `path`.
#[inline(always)]
pub(crate) fn selection(path: &'static str, rows: u32, k: u32) {
    #[cfg(feature = "tracing")]
    caught(|| tracing::trace!(target: "warpann", operation = "selection", path, rows, k, "path chosen"));
}

/// Data was copied to a device.
#[inline(always)]
pub(crate) fn uploaded(content: &'static str, device: impl FnOnce() -> String, bytes: u64, started: &Started) {
    #[cfg(feature = "tracing")]
    caught(|| {
        tracing::debug!(
            target: "warpann", content, device = device(), bytes, milliseconds = started.milliseconds(), "upload"
        );
    });
}

/// Vectors were added of which `clamped` of all `components` are beyond the reach of the codes. Many are a warning:
/// results get worse.
#[inline(always)]
pub(crate) fn clamped(encoding: impl FnOnce() -> String, vectors: u64, clamped: u64, components: u64) {
    #[cfg(feature = "tracing")]
    if clamped > components / 1000 {
        let encoding = encoding();
        caught(
            || tracing::warn!(target: "warpann", encoding, vectors, clamped, components, "vectors beyond the training"),
        );
    } else if clamped > 0 {
        let encoding = encoding();
        caught(
            || tracing::debug!(target: "warpann", encoding, vectors, clamped, components, "vectors beyond the training"),
        );
    }
}

/// An inverted file was trained with the vectors that it has.
#[inline(always)]
pub(crate) fn lists_trained(device: impl FnOnce() -> String, vectors: usize, lists: usize) {
    #[cfg(feature = "tracing")]
    caught(|| tracing::info!(target: "warpann", device = device(), vectors, lists, "lists trained"));
}

/// Whether a subscriber may want warnings, which are worth a measurement then.
#[inline(always)]
pub(crate) fn warnings_are_wanted() -> bool {
    #[cfg(feature = "tracing")]
    return caught(|| tracing::enabled!(target: "warpann", tracing::Level::WARN)).unwrap_or(false);
    #[cfg(not(feature = "tracing"))]
    false
}

/// The lists of an inverted file no longer suit its vectors.
#[inline(always)]
pub(crate) fn lists_are_old(
    device: impl FnOnce() -> String,
    vectors: usize,
    lists: usize,
    imbalance: f64,
    drift: Option<f64>,
) {
    #[cfg(feature = "tracing")]
    caught(|| {
        tracing::warn!(
            target: "warpann", device = device(), vectors, lists, imbalance, drift, "lists should be trained again"
        );
    });
}

/// A graph index changed, and the graph of its vectors could not be made for `reason`.
#[inline(always)]
pub(crate) fn graph_missing(device: impl FnOnce() -> String, vectors: usize, reason: &Error) {
    #[cfg(feature = "tracing")]
    caught(|| {
        tracing::warn!(
            target: "warpann", device = device(), vectors, %reason, "no graph could be made, so searches are exact"
        );
    });
}

/// The driver loaded a module of kernels, which it may have compiled; `bytes` are those of its PTX.
#[cfg(feature = "cuda")]
#[inline(always)]
pub(crate) fn module_loaded(device: usize, module: &'static str, form: &'static str, bytes: usize, started: &Started) {
    #[cfg(feature = "tracing")]
    caught(|| {
        tracing::debug!(
            target: "warpann", device, module, form, bytes, milliseconds = started.milliseconds(), "kernel module loaded"
        );
    });
}
