//! Parts that every product of vectors shares: elements, half-precision operands with proved errors, the tile product,
//! and the distance that all back ends return.
//!
//! A tile product has four parts. All of them use one main loop. A new instruction is a file of [`instruction`]. New
//! operands implement [`mainloop::Operands`] in the file of the kernel's launch struct, and a new use of the products
//! implements [`mainloop::Epilogue`] there.
//!
//! | module | algorithm |
//! |---|---|
//! | [`element`] | loading four vector components of any element type |
//! | [`quad`] | sums of the terms of rows of such groups |
//! | [`metric`] | metrics, and all decisions that depend on them |
//! | [`prepare`] | half-precision operands of vectors, with proved error norms |
//! | [`prepare_bytes`] | the numbers of vectors of bytes, whose products are exact |
//! | [`bounds`] | the error bound of a score of such operands |
//! | [`tile`] | chunks of rows in shared memory: layout and copies |
//! | [`ring`] | the place of chunks in shared memory during a product |
//! | [`instruction`] | the instructions that multiply tiles, with one file for each |
//! | [`mainloop`] | the main loop of tile products, over operands, an instruction and an epilogue |
//! | [`canonical`] | the distance that every back end returns to the bit, as a dense tile or for listed candidates |

pub mod bounds;
pub mod canonical;
pub mod element;
pub mod instruction;
pub mod mainloop;
pub mod metric;
pub mod prepare;
pub mod prepare_bytes;
pub mod quad;
pub mod ring;
pub mod tile;
