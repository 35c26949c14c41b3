//! The arrays of an image as searches read them.

use cuda_std::Ptr;
use cuda_std::launch::Kernel;
use warpann_kernels::ivf::code_bounds::MeasureCodes;
use warpann_kernels::ivf::encoding::{OperandParts, StoredRows};
use warpann_kernels::ivf::list_scan::RowScan;
use warpann_kernels::ivf::rerank::{PerQuery, Rerank};
use warpann_kernels::ivf::rescan::{Rescan, Rescanned};
use warpann_kernels::product::element::{ExactKey, RowKey};
use warpann_kernels::product::metric::Metric as KernelMetric;

use super::tables;
use super::tables::Terms;
use super::turn::TurnOnDevice;
use crate::product::gpu::VectorShape;
use crate::select::Best;
use crate::{ElementType, Metric};

/// The codes of an image as searches read them, for any encoding. Fields that an encoding does not use are empty or 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    /// The way in which the list scan reads rows.
    pub scan: RowScan,
    /// The kernels with which re-ranking reads a row.
    pub rerank: RerankKernels,
    /// Codes, `row_bytes` bytes each.
    pub rows: Ptr<u8>,
    pub row_bytes: u32,
    /// f16 operands, [`Image::f16_stride`] components a row; for scans that do not decode. Empty where rows are the
    /// operands.
    pub f16_rows: Ptr<u16>,
    /// The operands of the list scan.
    pub operands: ScanOperands,
    /// The bits that differ between each byte of a code and of a row.
    pub flips: u8,
    /// As the fields of [`StoredRows`] with the same names.
    pub bits: u32,
    pub width: u32,
    pub codebooks: Ptr<f32>,
    /// A row of zeros, if codes are of vectors: their decoding reads it in the place of each centroid. Otherwise
    /// absent.
    pub no_centroid: Option<Ptr<f32>>,
    /// The parts from which the scan makes f16 operands.
    pub parts: OperandParts,
    /// Whether rows are vectors as they were added, with the element type of queries.
    pub in_place: bool,
    /// Whether the list scan decodes operands. Then scanning each list twice costs more time than overlapping copies
    /// saves.
    pub decodes: bool,
    /// Whether decoding is so slow that with few queries a block re-ranks each query faster than a warp does. Then
    /// fewer vectors are compared without scores, too.
    pub costly: bool,
    /// The tables of the scan by lookup tables, if the encoding has this scan.
    pub tables: Option<TableIndex>,
    /// How rows are made ready for the list scan.
    pub measuring: Measuring,
}

/// The operands of the list scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanOperands {
    /// f16 copies of rows or f16 from codes, and f16 copies of queries.
    Halves,
    /// Vectors of bytes or bits and queries, as stored.
    Bytes(ExactKey),
    /// Codes as signed bytes, stored or unpacked, `bytes` for each row, and queries as two planes of as many bytes
    /// (`warpann_kernels::ivf::code_queries`).
    Codes { bytes: u32 },
}

/// How the scale, values and bounds of rows are found ([`Measured`](super::stored_plan::Measured)).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Measuring {
    /// Rows are vectors of this element type, and get f16 operands beside them.
    Operands(ElementType),
    /// Rows are vectors of bytes or bits, which are the operands.
    Bytes(ExactKey),
    /// Rows are codes. If they are `scaled`, the scale follows from the greatest component of what they stand for,
    /// otherwise from the training, or there is none.
    Codes { by: &'static Kernel<MeasureCodes>, scaled: bool },
}

impl Stored {
    /// Codes in `rows`; all other fields are empty or 0.
    pub fn new(scan: RowScan, rerank: RerankKernels, rows: Ptr<u8>) -> Stored {
        Stored {
            scan,
            rerank,
            rows,
            row_bytes: 0,
            f16_rows: Ptr::empty(),
            operands: ScanOperands::Halves,
            flips: 0,
            bits: 0,
            width: 0,
            codebooks: Ptr::empty(),
            no_centroid: None,
            parts: OperandParts::default(),
            in_place: false,
            decodes: false,
            costly: false,
            tables: None,
            measuring: Measuring::Operands(ElementType::F32),
        }
    }
}

/// The kernels that re-rank rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RerankKernels {
    /// Kernels for vectors with this content, as they were added.
    Stored(RowKey),
    /// Kernels of an encoding; queries are f32.
    Coded(fn(PerQuery) -> &'static Kernel<Rerank>, fn(Rescanned) -> &'static Kernel<Rescan>),
}

impl RerankKernels {
    /// The kernel that uses a warp or a block for each query.
    pub fn kernel(self, per_query: PerQuery) -> &'static Kernel<Rerank> {
        match self {
            RerankKernels::Stored(content) => Rerank::kernel((content, per_query)),
            RerankKernels::Coded(kernel, _) => kernel(per_query),
        }
    }

    /// The kernel that compares queries with all rows of their lists.
    pub fn rescanning(self, what: Rescanned) -> &'static Kernel<Rescan> {
        match self {
            RerankKernels::Stored(content) => Rescan::kernel((content, what)),
            RerankKernels::Coded(_, kernel) => kernel(what),
        }
    }
}

/// The inputs of the scan by lookup tables that depend on the index only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableIndex {
    pub shape: tables::Shape,
    /// The kind of the values in `terms`.
    pub kind: Terms,
    pub terms: Ptr<f32>,
}

/// Arrays and sizes of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// Number of components of a centroid.
    pub dim: u32,
    /// The metric of the index.
    pub metric: Metric,
    /// Number of lists.
    pub lists: u32,
    /// Number of rows of the storage, padding included.
    pub rows: u32,
    /// Number of components from one row of f16 operands to the next.
    pub f16_stride: u32,
    pub stored: Stored,
    /// The value that a scan adds to the product of each row.
    pub values: Ptr<f32>,
    /// Rank of each row's id; `NO_ROW` for padding rows.
    pub ranks: Ptr<u32>,
    /// The first row of each list.
    pub starts: Ptr<u32>,
    /// Number of vectors of each list.
    pub lengths: Ptr<u32>,
    /// Centroids, with `dim` padded to a multiple of 4 components a row. Their f16 operands and values follow.
    pub centroids: Ptr<f32>,
    pub f16_centroids: Ptr<u16>,
    pub centroid_values: Ptr<f32>,
    /// The rotation of queries, if the index rotates and the device can.
    pub turn: Option<TurnOnDevice>,
    /// The vector that is subtracted from queries and vectors before conversion to f16 (squared L2 only).
    pub centre: Option<Ptr<f32>>,
    /// Greatest component of the vectors, and also of the centroids unless the metric is cosine: one word.
    pub greatest: Ptr<u32>,
    /// Greatest component of the centroids: one word, the same as `greatest` unless the metric is cosine.
    pub centroid_greatest: Ptr<u32>,
    /// Greatest norm and residual of the vectors, then of the centroids; then the greatest factor of a vector, and the
    /// greatest norm of its code.
    pub bounds: Ptr<f32>,
}

impl Image {
    /// Number of components of a row of centroids, and of queries that are compared with them.
    pub fn stride(&self) -> u32 {
        self.dim.next_multiple_of(4)
    }

    /// Number of components of a row of stored vectors, and of queries that are compared with them; or of bytes of
    /// bits.
    pub fn row_stride(&self) -> u32 {
        match self.stored.operands {
            ScanOperands::Halves | ScanOperands::Codes { .. } => self.stride(),
            ScanOperands::Bytes(_) => self.stored.row_bytes,
        }
    }

    /// The rows of the storage for launches that read them.
    pub fn stored_rows(&self) -> StoredRows {
        let &Image { stored: Stored { rows, row_bytes, bits, width, codebooks, no_centroid, .. }, dim, .. } = self;
        let (centroids, centroids_apart) = match no_centroid {
            Some(zeros) => (zeros, 0),
            None => (self.centroids, self.stride()),
        };
        StoredRows { rows, code_bytes: row_bytes, bits, width, dim, codebooks, centroids, centroids_apart }
    }

    /// The metric for comparisons with stored vectors.
    pub fn row_metric(&self) -> KernelMetric {
        self.metric.of_kernel()
    }

    /// The metric of the operands of queries and stored vectors, and of their products.
    pub fn operand_metric(&self) -> KernelMetric {
        // If the metric divides by norms, queries for codes are normalised before, and rows are divided by their norms
        // after the product.
        let metric = if self.stored.in_place { self.metric } else { self.metric.of_normalised() };
        metric.of_kernel()
    }

    /// Whether distances are divided by norms of which the operands know nothing.
    pub fn divides_scores(&self) -> bool {
        self.metric.divides_by_norms() && !self.stored.in_place
    }

    /// Whether the values of rows are factors of their products (`warpann_kernels::ivf::code_bounds`).
    pub fn has_factors(&self) -> bool {
        match self.stored.operands {
            ScanOperands::Halves => self.divides_scores() && self.stored.decodes,
            ScanOperands::Codes { .. } => self.divides_scores(),
            ScanOperands::Bytes(_) => self.metric.divides_by_norms(),
        }
    }

    /// The arrays of the index for the scan by lookup tables.
    pub fn table_image(&self) -> tables::Image {
        tables::Image {
            centroids: self.centroids,
            codebooks: self.stored.codebooks,
            codes: self.stored.rows,
            list_starts: self.starts,
            list_lengths: self.lengths,
            factors: self.has_factors().then(|| (self.values, self.bounds.skip(4))),
        }
    }

    /// The metric for comparisons with centroids.
    pub fn probe_metric(&self) -> KernelMetric {
        self.metric.probed_by().metric().of_kernel()
    }

    /// Which of the distances of [`Self::probe_metric`] are those of the nearest centroids.
    pub fn nearest_probes(&self) -> Best {
        let metric = self.metric.probed_by().metric();
        VectorShape::new(ElementType::F32, metric, self.dim as usize).best()
    }
}
