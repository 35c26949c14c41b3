//! What every product of vectors shares: elements, half-precision operands with proved errors, the tile product, and the distance that all back ends return.
//!
//! A tile product has four parts. The main loop is one for all. A new instruction is a file of [`instruction`]. A new kind of operands
//! implements [`mainloop::Operands`], and a new use of the products [`mainloop::Epilogue`], beside the launch struct of the kernel.
//!
//! | module | algorithm |
//! |---|---|
//! | [`element`] | loading four vector components of any element type |
//! | [`metric`] | metrics, and what depends on them |
//! | [`prepare`] | half-precision operands of vectors, with proved error norms |
//! | [`bounds`] | how wrong a score of such operands may be |
//! | [`tile`] | chunks of rows in shared memory: their layout, and how they come there |
//! | [`instruction`] | the instructions that multiply tiles, a file for each |
//! | [`mainloop`] | the main loop of tile products, over operands, an instruction and an epilogue |
//! | [`canonical`] | the distance that every back end returns to the bit, as a dense tile or for listed candidates |

pub mod bounds;
pub mod canonical;
pub mod element;
pub mod instruction;
pub mod mainloop;
pub mod metric;
pub mod prepare;
pub mod tile;
