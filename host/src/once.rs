//! What is compiled once for every element type: here, and not again in every program and test that names the type.
//!
//! A generic function is compiled where its types become known, which for `IvfIndex<f32>` is the program that uses it: with it came all
//! of the CPU's, the emulator's and the GPU's code. So the public types call what is large through [`Once`], whose methods, being those of
//! an impl for one type, are compiled with this crate. For `cargo test --workspace --no-run` that took the compilers of this project's crates
//! from 3,225 s to 1,785, added up, two at a time on two cores that had other work as well (2026-11-22).

#![expect(private_interfaces, reason = "the trait is out of reach, and what it speaks of may be as well")]

use half::{bf16, f16};

use crate::flat::{FlatBackend, FlatIndexBuilder, open_flat};
use crate::ivf::{IvfBackend, Settings, open_ivf};
use crate::kmeans::worker::Assign;
use crate::kmeans::{Clustering, KMeans, Progress, assign_on};
use crate::{Placement, Result};

/// Large functions of an element type. Public only so that it can stand above [`crate::Element`].
pub trait Once: Sized {
    /// [`open_flat`].
    fn open_flat(builder: &FlatIndexBuilder<Self>) -> Result<Box<dyn FlatBackend<Self>>>
    where
        Self: crate::Element;
    /// [`open_ivf`].
    fn open_ivf(settings: &mut Settings) -> Result<Box<dyn IvfBackend<Self>>>
    where
        Self: crate::Element;
    /// [`KMeans::cluster`].
    fn cluster(
        settings: &KMeans,
        rows: &[Self],
        dim: usize,
        weights: Option<&[f32]>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Clustering>;
    /// [`assign_on`].
    fn assign(
        placement: &Placement,
        metric: Assign,
        rows: &[Self],
        dim: usize,
        centroids: &[f32],
        budget: Option<u64>,
    ) -> Result<Vec<u32>>;
}

macro_rules! once {
    ($($element:ty)*) => {$(
        impl Once for $element {
            fn open_flat(builder: &FlatIndexBuilder<Self>) -> Result<Box<dyn FlatBackend<Self>>> {
                open_flat(builder)
            }

            fn open_ivf(settings: &mut Settings) -> Result<Box<dyn IvfBackend<Self>>> {
                open_ivf(settings)
            }

            fn cluster(
                settings: &KMeans,
                rows: &[Self],
                dim: usize,
                weights: Option<&[f32]>,
                watch: &mut dyn FnMut(&Progress),
            ) -> Result<Clustering> {
                settings.cluster(rows, dim, weights, watch)
            }

            fn assign(
                placement: &Placement,
                metric: Assign,
                rows: &[Self],
                dim: usize,
                centroids: &[f32],
                budget: Option<u64>,
            ) -> Result<Vec<u32>> {
                assign_on(placement, metric, rows, dim, centroids, budget)
            }
        }
    )*};
}
once! { f32 f16 bf16 u8 i8 }
