//! Products of queries and rows, on the CPU and on devices: scores with a bound of their error.

pub(crate) mod centre;
pub(crate) mod cpu;
pub(crate) mod gpu;
