//! What every product of vectors shares: elements, half-precision operands with proved errors, the tile product, and the distance that all back ends return.
//!
//! | module | algorithm |
//! |---|---|
//! | [`element`] | loading four vector components of any element type |
//! | [`metric`] | metrics, and what depends on them |
//! | [`prepare`] | half-precision operands of vectors, with proved error norms |
//! | [`bounds`] | how wrong a score of such operands may be |
//! | [`tile`] | the tile product, by warps or by warpgroups |
//! | [`canonical`] | the distance that every back end returns to the bit, as a dense tile or for listed candidates |

pub mod bounds;
pub mod canonical;
pub mod element;
pub mod metric;
pub mod prepare;
pub mod tile;
