//! A rotation of all vectors and queries of an index: by a matrix, or in fewer steps.

use super::Rotation;
use super::mixing::Mixing;

/// One of the ways to rotate vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn<'a> {
    /// As the products with the rows of a matrix, which has dim² numbers.
    Matrix(&'a Rotation),
    /// By signs and butterflies, which follow from 4 · dim signs.
    Mixing(&'a Mixing),
}

impl<'a> Turn<'a> {
    /// The rows of the matrix, or the signs of each round.
    pub(crate) fn rows(self) -> &'a [f32] {
        match self {
            Turn::Matrix(rotation) => rotation.matrix(),
            Turn::Mixing(mixing) => mixing.signs(),
        }
    }
}
