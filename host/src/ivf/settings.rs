//! The settings of an index.

use super::encoding::Encoding;
use crate::validate::check_dim;
use crate::{ElementType, Error, Metric, Placement, Result};

/// The settings of an index, except the element type.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Settings {
    pub(crate) dim: usize,
    pub(crate) lists: usize,
    pub(crate) metric: Metric,
    pub(crate) encoding: Encoding,
    /// The devices as the caller gave them; in a built index, without [`Device::Auto`](crate::Device::Auto).
    #[cfg_attr(feature = "serde", serde(rename = "device"))]
    pub(crate) placement: Placement,
    #[cfg_attr(feature = "serde", serde(rename = "memory_budget"))]
    pub(crate) budget: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) iterations: usize,
    pub(crate) points_per_centroid: usize,
    pub(crate) simd: bool,
    /// The number of vectors with which the index trains itself; 0 for one that follows from the number of lists;
    /// `None` if the caller trains it.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub(crate) train_at: Option<usize>,
}

impl Settings {
    pub(super) fn check(&self, element: ElementType) -> Result<()> {
        check_dim(self.metric.components(self.dim))?;
        if self.lists == 0 {
            return Err(Error::Zero { what: "lists" });
        }
        self.metric.check_element(element)?;
        self.encoding.check_metric(self.metric)?;
        self.encoding.scheme().check(self.dim, element)
    }
}
