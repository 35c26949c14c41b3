//! The graph index: walks in a graph of near neighbours.

pub mod distance;
pub mod walk;
