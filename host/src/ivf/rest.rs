//! The lengths that codes leave out of vectors, for proofs of refined searches ([`super::proof`]).

/// The greatest lengths that some codes leave out of their vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rest {
    /// The length of what is left out: the distance of any query from a code differs by at most as much from that from
    /// the vector.
    pub length: f32,
    /// The length of its part along the residual. The rest of it has a random direction.
    pub along: f32,
}

impl Rest {
    /// The rest of the codes of both.
    pub fn and(self, other: Rest) -> Rest {
        Rest { length: self.length.max(other.length), along: self.along.max(other.along) }
    }
}
