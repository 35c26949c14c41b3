//! Product quantization: stores a vector as a few bytes and computes distances from tables.
//!
//! # Problem
//! A billion vectors do not fit in memory. Cut each vector into M sub-vectors, and replace each sub-vector by the
//! number of the nearest of 2^bits codewords, learned for its position. Then M · bits bits represent dim floats, and
//! the distance from a query to a coded vector is a sum of M table entries (Jégou, Douze, Schmid 2011; section 5.2 of
//! "Billion-scale similarity search with GPUs").
//!
//! # Definition
//! The codebooks are f32, M × 2^bits × dim / M. All arithmetic is f32; every operation is rounded and none is fused:
//!
//! - Code m of x is the first codeword c with the smallest Σ_j (x_j − c_j)², where j ascends from 0 over the
//!   sub-vector.
//! - The M codes are packed from the lowest bit of the first byte, sub-quantizer 0 first, in ⌈M · bits / 8⌉ bytes. The
//!   unused high bits of the last byte are 0.
//! - Decoding gives the components of the codewords.
//!
//! Codes have the same bits on every device.
//!
//! # Training
//! The codewords of a sub-quantizer are the centroids of k-means over the sub-vectors at its position. k-means starts
//! from k-means++ for sub-vectors of up to four components, otherwise from random points. [`Rotation`] learns an
//! orthogonal pre-transform (OPQ) that distributes the information shared by sub-vectors over the sub-quantizers.
//!
//! *Longer codewords* ([`PqTraining::lengthen`]). A mean is shorter than its points: Σ‖x‖² = Σ‖p‖² + Σ‖x − p‖². So
//! squared distances to decoded vectors are too small, and vectors with a large error rank among the nearest.
//! Multiplying the codewords by ½ + ½ √(Σ‖x‖² / Σ‖p‖²), one factor for each sub-quantizer and at most 1.25, increases
//! the error slightly and improves the ranking of short codes. Recall of 10 and of 100 neighbours, all lists searched,
//! means of two seeds, in a PyTorch model of this module (2026-11-22, 128 dimensions, 65,536 training vectors, random
//! starts):
//!
//! | bytes | 1,000,000 clustered: means | longer | 200,000 SIFT: means | longer |
//! |---|---|---|---|---|
//! | 8 | .442 .536 | .451 .547 | .472 .567 | .469 .570 |
//! | 16 | .631 .670 | .647 .691 | .646 .718 | .649 .721 |
//! | 32 | .825 .847 | .826 .848 | .784 .835 | .784 .836 |
//! | 64 | .944 .956 | .944 .956 | .892 .922 | .892 .923 |
//!
//! The full factor √(Σ‖x‖² / Σ‖p‖²) is better still for the clustered vectors (.656 .704 with 16 bytes) and worse for
//! SIFT (.463 .566 with 8). A factor for each codeword is no better than one for all. Training with a sixteenth of the
//! vectors also gives longer codewords: .637 .678 for the clustered vectors with 16 bytes, but .633 .703 for SIFT.
//!
//! # Cost
//! Encoding a vector takes 3 · dim · 2^bits operations, decoding copies dim components, and a table distance takes M
//! look-ups.

pub(crate) mod codes;
pub(crate) mod encode;
pub(crate) mod gpu;
mod linear;
pub(crate) mod mixing;
mod quantizer;
mod rotation;
mod tables;
#[cfg(test)]
mod tests;
mod train;
pub(crate) mod turn;

pub(crate) use self::quantizer::CODE_BITS;
pub use self::quantizer::ProductQuantizer;
pub use self::rotation::Rotation;
pub use self::tables::{SymmetricTables, Tables};
pub use self::train::PqTraining;

use self::encode::{Residuals, Term};
use self::quantizer::check_shape;
use crate::device::open::open;
use crate::simd::Isa;
use crate::validate::check_vectors;
use crate::{Device, Error, Input, Result, Watch};

impl ProductQuantizer {
    /// Learns codebooks from `rows` (row-major, `dim` components each). The same settings and rows give the same
    /// codebooks on every device. O(iterations · min(rows, points per centroid · 2^bits) · dim · 2^bits).
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NotDivisible`], [`Error::OutOfRange`], [`Error::Ragged`],
    /// [`Error::NotFinite`], [`Error::TooFewTrainingVectors`] for fewer rows than 2^bits; and the errors of the device.
    pub fn train(settings: &PqTraining, rows: &[f32], dim: usize) -> Result<ProductQuantizer> {
        Self::train_watched(settings, rows, dim, &Watch::none())
    }

    /// As [`train`](Self::train), with a [`Watch`].
    ///
    /// # Errors
    /// As [`train`](Self::train); [`Error::Cancelled`].
    pub fn train_watched(
        settings: &PqTraining,
        rows: &[f32],
        dim: usize,
        watch: &Watch<'_>,
    ) -> Result<ProductQuantizer> {
        check_shape(dim, settings.sub_quantizers, settings.bits)?;
        let have = check_vectors(rows, dim, Input::Training)?;
        let need = 1 << settings.bits;
        if have < need {
            return Err(Error::TooFewTrainingVectors { have, need });
        }
        let codebooks = train::codebooks(settings, rows, dim, watch)?;
        Self::from_codebooks(dim, settings.sub_quantizers, settings.bits, codebooks)
    }

    /// Encodes `rows` (row-major, `dim` components each) as [`code_bytes`](Self::code_bytes) bytes per row. The result
    /// has the same bits on every device. O(rows · dim · 2^bits).
    ///
    /// # Errors
    /// [`Error::Ragged`], [`Error::NotFinite`]; and the errors of opening the device and running on it.
    pub fn encode(&self, rows: &[f32], device: Device) -> Result<Vec<u8>> {
        check_vectors(rows, self.dim(), Input::Vectors)?;
        self.encode_checked(rows, device, None)
    }

    /// As [`encode`](Self::encode), for checked rows and with at most `budget` bytes of device memory.
    pub(crate) fn encode_checked(&self, rows: &[f32], device: Device, budget: Option<u64>) -> Result<Vec<u8>> {
        match open(device)?.1 {
            Some(runtime) => gpu::encode::encode(&runtime, self, rows, budget),
            None => encode::encode(Isa::detect(), self, rows, None),
        }
    }

    /// Encodes the differences between checked rows and the centroids of their lists, on the CPU.
    pub(crate) fn encode_residuals(&self, rows: &[f32], residuals: Residuals<'_>) -> Result<Vec<u8>> {
        encode::encode(Isa::detect(), self, rows, Some(residuals))
    }

    /// Squared L2 distances from the sub-vectors of `query` to all codewords: M × 2^bits entries, from which
    /// [`Tables::distances`] adds up the distance to any code. O(dim · 2^bits).
    ///
    /// # Errors
    /// [`Error::WrongDimension`], [`Error::NotFinite`].
    pub fn distance_tables(&self, query: &[f32]) -> Result<Tables> {
        self.tables(Term::SquaredDifference, query)
    }

    /// As [`distance_tables`](Self::distance_tables), with inner products instead of distances.
    ///
    /// # Errors
    /// As [`distance_tables`](Self::distance_tables).
    pub fn product_tables(&self, query: &[f32]) -> Result<Tables> {
        self.tables(Term::Product, query)
    }

    fn tables(&self, term: Term, query: &[f32]) -> Result<Tables> {
        if query.len() != self.dim() {
            return Err(Error::WrongDimension { expected: self.dim(), actual: query.len() });
        }
        check_vectors(query, self.dim(), Input::Queries)?;
        let mut values = vec![0.0; self.sub_quantizers() * self.codewords()];
        self.entries_into(term, query, &mut values);
        let greatest = self.greatest_sum(term, query, &values);
        Ok(Tables::new(self, values, greatest))
    }

    /// Writes the entries of the tables of `query` (M × 2^bits) to `to`. An entry is Σ_j term(x_j, c_j) in f32, where j
    /// ascends from 0. The entries of [`Term::FusedProduct`] may differ in their bits between processors.
    pub(crate) fn entries_into(&self, term: Term, query: &[f32], to: &mut [f32]) {
        let isa = Isa::detect();
        let parts = query.chunks_exact(self.width()).zip(to.chunks_exact_mut(self.codewords()));
        for (part, (x, to)) in parts.enumerate() {
            encode::entries(isa, term, x, self.transposed(part), to);
        }
    }

    /// An upper bound, up to rounding, of Σ|term| over a vector's components for any code.
    fn greatest_sum(&self, term: Term, query: &[f32], entries: &[f32]) -> f64 {
        let greatest = |values: &[f32]| values.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        match term {
            // Terms are not negative, so an entry is its Σ|term|.
            Term::SquaredDifference => {
                entries.chunks_exact(self.codewords()).map(|entries| f64::from(greatest(entries))).sum()
            }
            Term::Product | Term::FusedProduct => {
                let components = query.iter().zip(self.all_transposed().chunks_exact(self.codewords()));
                components.map(|(x, values)| f64::from(x.abs()) * f64::from(greatest(values))).sum()
            }
        }
    }

    /// Squared L2 distances between the codewords of each sub-quantizer, M × 2^bits × 2^bits entries: tables for
    /// distances between codes. O(dim · 4^bits).
    pub fn symmetric_tables(&self) -> SymmetricTables {
        SymmetricTables::new(self)
    }
}
