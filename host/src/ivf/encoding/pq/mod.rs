//! Product-quantizer codes.

pub(crate) mod coder;
