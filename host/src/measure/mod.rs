//! Times of parts of the library, and the work that they have to do: for `warpann bench` and the benchmarks of the
//! repository. Items may change in any version.
//! | file | content |
//! |---|---|
//! | `times` | times of repeated runs |
//! | `gpu`, `sort` | selections, k-means and sorts with data in GPU memory (feature `cuda`) |
//! | [`cost_model`] | the cost of WarpSelect, as the paper's appendix derives it |

pub mod cost_model;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod sort;
mod times;

#[cfg(feature = "cuda")]
pub use gpu::{DISPATCH_HEADER, KMeansBench, KMeansRun, Method, SelectionBench};
#[cfg(feature = "cuda")]
pub use sort::{SortBench, SortRun};
pub use times::{Times, timed};
