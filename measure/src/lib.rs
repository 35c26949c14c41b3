//! How the programs of warpann measure. Items may change in any version.
//! | module | content |
//! |---|---|
//! | [`times`] | repeated runs and their statistics |
//! | [`cost_model`] | the cost of WarpSelect, as the paper's appendix derives it |

pub mod cost_model;
pub mod times;

pub use times::{Times, timed};
