//! The graph index: walks in a graph of near neighbours.

pub mod candidates;
pub mod distance;
pub mod encode;
pub mod insert;
pub mod prune;
pub mod reach;
pub mod repair;
pub mod tolerance;
pub mod twins;
pub mod walk;
