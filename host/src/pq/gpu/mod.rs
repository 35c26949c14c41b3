//! Product quantization on a device: codes of vectors, and products of rows with a matrix.

pub(crate) mod encode;
pub(crate) mod rotate;
