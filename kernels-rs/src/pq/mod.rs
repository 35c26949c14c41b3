//! Product quantization: codes, their tables, and codes as vectors.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`codes`] | codes as vectors and as f16 operands | paper 2.2 |
//! | [`encode`] | codes of vectors: the nearest codeword of each sub-vector | paper 5.2 |
//! | [`mix`] | vectors after a random rotation, in O(d log d) | |
//! | [`pq_codes`] | reading codes | |
//! | [`rotate`] | rotated vectors | |
//! | [`pq_tables`] | tables of queries and lists, terms of rows, and the error bound of scores | paper 5.2 |

pub mod codes;
pub mod encode;
pub mod mix;
pub mod pq_codes;
pub mod pq_tables;
pub mod rotate;
