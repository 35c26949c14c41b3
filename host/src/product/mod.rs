//! What all products of vectors share, on the CPU and on devices.

pub(crate) mod cpu;
pub(crate) mod gpu;
