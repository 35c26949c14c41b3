//! The choice of a node's edges among nodes near it.
//!
//! A candidate is *occluded* if a candidate that was chosen before it is nearer to it than the node is: a walk reaches
//! it through the other one. Candidates are taken from near to far. Those that are not occluded are chosen first, until
//! the node has `degree` edges: the rule by which HNSW and Vamana (with α = 1) choose edges. Then others take the
//! places that are left ([`Others`]).

use super::distance::{Key, Query, WalkDistance};

/// Number of chosen nodes with which a candidate is compared at a time. Most candidates are occluded by one of the
/// first.
const COMPARED: usize = 4;

/// Which occluded candidates take the places that are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// The nearest to the node.
    Nearest,
    /// The first in the order in which the candidates are given.
    First,
}

/// The memory of choices on one thread.
#[derive(Debug, Default)]
pub(super) struct Pruner {
    /// The node whose edges are chosen.
    query: Query,
    candidate: Query,
    keys: Vec<Key>,
    candidates: Vec<(Key, u32)>,
    occluded: Vec<u32>,
    chosen: Vec<u32>,
}

impl Pruner {
    /// Chooses at most `degree` of the `candidates`, which are different nodes other than `node`, and all of `held`.
    /// O(candidates · degree · dim).
    pub(super) fn choose(
        &mut self,
        distance: &WalkDistance<'_>,
        node: u32,
        (held, candidates): (&[u32], &[u32]),
        degree: usize,
        others: Others,
    ) -> &[u32] {
        distance.query(distance.rows(), node as usize, &mut self.query);
        self.keys.clear();
        distance.keys(&self.query, candidates, &mut self.keys);
        self.candidates.clear();
        self.candidates.extend(self.keys.iter().copied().zip(candidates.iter().copied()));
        self.candidates.sort_unstable();
        self.chosen.clear();
        self.occluded.clear();
        self.chosen.extend_from_slice(held);
        for at in 0..self.candidates.len() {
            if self.chosen.len() >= degree {
                break;
            }
            let (key, node) = self.candidates[at];
            if held.contains(&node) {
                continue;
            }
            if self.is_occluded(distance, key, node) {
                self.occluded.push(node);
            } else {
                self.chosen.push(node);
            }
        }
        let room = degree.saturating_sub(self.chosen.len());
        match others {
            Others::Nearest => self.chosen.extend(self.occluded.iter().take(room)),
            Others::First => {
                let chosen = self.chosen.len();
                let is_other = |other: &&u32| !self.chosen[..chosen].contains(other);
                self.occluded.clear();
                self.occluded.extend(candidates.iter().filter(is_other).take(room));
                self.chosen.extend_from_slice(&self.occluded);
            }
        }
        &self.chosen
    }

    fn is_occluded(&mut self, distance: &WalkDistance<'_>, key: Key, node: u32) -> bool {
        distance.query(distance.rows(), node as usize, &mut self.candidate);
        for some in self.chosen.chunks(COMPARED) {
            self.keys.clear();
            distance.keys(&self.candidate, some, &mut self.keys);
            if self.keys.iter().any(|&other| other < key) {
                return true;
            }
        }
        false
    }
}
