//! A block of base rows in device memory, the choices for its searches, and the launches that several of its searches
//! have in common.

use cuda_std::{Ptr, PtrMut};
use warpann_kernels::flat::byte_filter::ByteFilter;
use warpann_kernels::flat::filter::{self, Filter, FilterOutput, FilterPass};
use warpann_kernels::product::canonical::Canonical;

use crate::Result;
use crate::device::limits::Limits;
use crate::device::queue::OnStream;
use crate::device::runtime::{Runtime, Stream};
use crate::product::gpu::{Operands, VectorSet, VectorShape, prepare_set, upload_vectors};
use crate::vectors::VectorSlice;

/// Largest number of queries of a search: with padding it stays in u32.
pub(super) const MOST_QUERIES: usize = u32::MAX as usize / 2;

/// Choices that depend on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuning {
    /// Component products (queries × rows × components) up to which the filter costs more than it saves.
    pub direct_work: u64,
    /// For vectors of bytes: what each row adds to `direct_work`.
    pub byte_row_work: u64,
    /// Component products of the queries of a set of rows up to which they are searched with those of other sets.
    pub shared_work: u64,
    /// Smallest number of sample rows for the first threshold.
    pub sample_rows: u32,
    /// Number of slots of a query's list in the first attempt of a range search.
    pub range_list: u32,
}

impl Tuning {
    /// The choices for a device.
    pub fn of(limits: &Limits) -> Tuning {
        if limits.emulated {
            // The emulator exists to run kernels, so it uses the filter from the smallest case on that has more rows
            // than neighbours. A small sample lets small cases have the middle pass, and short lists let them overflow.
            return Tuning { direct_work: 0, byte_row_work: 0, shared_work: 2_000, sample_rows: 128, range_list: 32 };
        }
        // Below this much work the filter's extra launches cost more than the bytes it saves. On an H200 with 128
        // components: 500,000 rows for one query (0.128 ms with the filter, 0.132 without), 125,000 for two (0.089,
        // 0.086), 60,000 for four (0.076, 0.070). A set of rows that shares a launch must have no more.
        Tuning {
            direct_work: 48_000_000,
            byte_row_work: 250,
            shared_work: 48_000_000,
            sample_rows: 8192,
            range_list: 1024,
        }
    }
}

/// The rows of a block that take part in a search, where others do not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mask {
    /// A bit of each row.
    pub bits: Ptr<u32>,
    /// The values of all rows for the filter, +∞ for those that take no part.
    pub values: Ptr<f32>,
}

/// The rows that a pass of the filter visits: those of the base, or of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct VisitedRows {
    /// The operands of the rows' products, padded to whole tiles, as are the others.
    pub operands: Ptr<u8>,
    /// The value of each row, as bits.
    pub values: Ptr<u32>,
    /// The greatest norm and the greatest residual of each tile; not read where operands are bytes.
    pub tile_norms: Ptr<f32>,
    pub tile_residuals: Ptr<f32>,
}

/// A block of base rows in device memory, ready for search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Element type, metric and dimension of the vectors.
    pub shape: VectorShape,
    /// The rows, prepared unless every search of the base is without the filter.
    pub base: VectorSet,
    /// Whether a centre is subtracted from rows and queries.
    pub centred: bool,
    /// Id of the first row.
    pub first_id: u64,
    /// Choices that depend on the device.
    pub tuning: Tuning,
    /// The rows that take part in a search; `None` if all do.
    pub mask: Option<Mask>,
}

impl Block {
    pub(super) fn uses_filter(&self, queries: usize, k: u32) -> bool {
        self.filter_pays(queries) && u64::from(k) * 4 < u64::from(self.base.count)
    }

    /// Whether the filter proves anything, and the work is enough for its launches.
    pub(super) fn filter_pays(&self, queries: usize) -> bool {
        let rows = u64::from(self.base.count);
        let work = (queries as u64).saturating_mul(rows).saturating_mul(self.shape.dim as u64);
        let direct = match self.shape.operands {
            Operands::Halves => self.tuning.direct_work,
            // Per row, the filter has a part of its cost whatever the number of queries: with 1,000,000 rows of 128
            // components one query takes .12 ms with it on an H200, and 16 queries as well; a direct search takes .08,
            // and 38 µs more for each further query, which was not measured.
            Operands::Bytes(_) => self.tuning.direct_work + self.tuning.byte_row_work * rows,
        };
        work > direct && self.shape.has_bound()
    }

    pub(super) fn id_of(&self) -> impl Fn(u32) -> u64 + Sync + use<> {
        let first_id = self.first_id;
        move |row| first_id + u64::from(row)
    }

    /// The launch of canonical distances from each query to all rows: one row of `distances` for each query.
    pub(super) fn canonical(&self, queries: VectorSet, distances: PtrMut<f32>) -> Canonical {
        Canonical {
            queries: queries.stored(self.shape),
            base: self.base.stored(self.shape),
            stride: self.shape.stride() as u32,
            query_count: queries.count,
            metric: self.shape.metric.of_kernel(),
            query_squares: queries.squares().map(Ptr::from),
            base_squares: self.base.squares().map_or_else(Ptr::empty, Ptr::from),
            rows: None,
            counts: None,
            columns: self.base.count,
            slices: 1,
            list_stride: u64::from(self.base.count),
            distances,
        }
    }

    /// A pass of the filter over all tiles of the base, without thresholds and outputs.
    pub(super) fn pass(&self, queries: VectorSet) -> FilterPass {
        FilterPass {
            query_count: queries.count,
            row_count: self.base.count,
            metric: self.shape.metric.of_kernel(),
            tiles: self.base.count.div_ceil(filter::TILE_ROWS),
            tile_stride: 1,
            tile_skip: 0,
            thresholds: Ptr::empty(),
            out_values: PtrMut::empty(),
            out_rows: PtrMut::empty(),
            counts: PtrMut::empty(),
            out_stride: 0,
        }
    }

    /// Bytes of the operand of a row, a multiple of 16.
    pub(super) fn operand_bytes(&self) -> usize {
        match self.shape.operands {
            Operands::Halves => self.shape.copy_stride() * size_of::<u16>(),
            Operands::Bytes(_) => self.shape.row_bytes(),
        }
    }

    /// All rows of the base, of which those that take no part have the value +∞.
    pub(super) fn all_rows(&self) -> VisitedRows {
        let base = self.base;
        VisitedRows {
            operands: match self.shape.operands {
                Operands::Halves => base.part(base.layout.copy).as_bytes().into(),
                Operands::Bytes(_) => base.rows().into(),
            },
            values: self.mask.map_or_else(|| base.part(base.layout.values).into(), |mask| mask.values).cast(),
            tile_norms: base.tile_norms(),
            tile_residuals: base.tile_residuals(),
        }
    }

    /// Launches one pass of the filter over the tiles of some rows with the kernel for this device and these vectors. A
    /// pass without tiles launches nothing.
    ///
    /// # Safety
    /// The arrays of the pass are as long as its fields say; queries and base are prepared. The rows have the tiles of
    /// the pass.
    pub(super) unsafe fn launch_filter(
        &self,
        OnStream { runtime, stream }: OnStream<'_>,
        output: FilterOutput,
        queries: VectorSet,
        visited: VisitedRows,
        pass: FilterPass,
    ) -> Result<()> {
        if pass.tiles == 0 {
            return Ok(());
        }
        let (base, shape, limits) = (self.base, self.shape, runtime.limits());
        let instruction = limits.products.instruction(pass.tiles);
        let VisitedRows { operands, values, tile_norms, tile_residuals } = visited;
        // SAFETY: as the caller promises; queries are resident if their stride allows it.
        unsafe {
            match shape.operands {
                Operands::Halves => {
                    let launch = Filter {
                        queries: queries.part(queries.layout.copy).into(),
                        base: operands.cast(),
                        stride: shape.copy_stride() as u32,
                        query_greatest: queries.part(queries.layout.greatest).into(),
                        base_greatest: base.part(base.layout.greatest).into(),
                        query_norms: queries.part(queries.layout.norms).into(),
                        query_residuals: queries.part(queries.layout.residuals).into(),
                        base_values: values.cast(),
                        tile_norms,
                        tile_residuals,
                        pass,
                    };
                    let kernel = Filter::kernel((instruction, output, launch.residency()));
                    runtime.launch(stream, kernel, launch.config(instruction, limits.multiprocessors), launch)
                }
                Operands::Bytes(key) => {
                    let launch = ByteFilter {
                        queries: queries.rows().into(),
                        base: operands,
                        stride: shape.stride() as u32,
                        query_values: queries.part(queries.layout.values.cast::<u32>()).into(),
                        query_norms: queries.part(queries.layout.norms).into(),
                        base_values: values,
                        base_norm: base.bounds(),
                        pass,
                    };
                    let kernel =
                        ByteFilter::kernel((self.shape.exact_key(key), instruction, output, launch.residency()));
                    runtime.launch(stream, kernel, launch.config(instruction, limits.multiprocessors), launch)
                }
            }
        }
    }

    /// Uploads queries to `set`, and makes copies, norms and bounds of them with the centre of the base.
    ///
    /// # Safety
    /// `set` has room for the queries, and the base is prepared.
    pub(super) unsafe fn prepare_queries(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        set: VectorSet,
        queries: VectorSlice<'_>,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            upload_vectors(runtime, stream, self.shape, set.rows(), queries)?;
            self.prepare_stored(runtime, stream, set)
        }
    }

    /// Makes copies, norms and bounds of the queries in `set` with the centre of the base.
    ///
    /// # Safety
    /// The queries are in place, and the base is prepared.
    pub(super) unsafe fn prepare_stored(&self, runtime: &Runtime, stream: &Stream, set: VectorSet) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            if self.centred {
                runtime.copy(stream, set.centre(), self.base.centre())?;
            }
            prepare_set(runtime, stream, self.shape, set, self.centred)
        }
    }

    /// Launches canonical distances for lists of about `expected` rows. Enough warps share a list to fill the device,
    /// but no more than the list has rows for.
    ///
    /// # Safety
    /// As [`Canonical`].
    pub(super) unsafe fn launch_canonical(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        launch: Canonical,
        expected: u32,
    ) -> Result<()> {
        let warps = u64::from(runtime.limits().multiprocessors) * 64;
        let of_query = warps.div_ceil(u64::from(launch.query_count).max(1));
        let slices = of_query.min(u64::from(expected).div_ceil(8)).max(1) as u32;
        let launch = Canonical { slices, ..launch };
        // SAFETY: as the caller promises.
        unsafe { runtime.launch(stream, Canonical::kernel(self.shape.row_key()), launch.config(), launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::scratch::{Layout, Scratch};
    use crate::product::gpu::SetLayout;
    use crate::{ElementType, Metric};

    /// Above the dimension that the bound is proved for there is no filter. Up to it, offsets in a tile of rows fit 32
    /// bits.
    #[test]
    fn no_filter_beyond_the_dimension_of_the_bound() {
        let most = warpann_kernels::product::bounds::MOST_COMPONENTS as usize;
        for (dim, filters) in [(8, true), (most - 1, true), (most, true), (most + 1, false), (1 << 25, false)] {
            for metric in Metric::OF_NUMBERS {
                let shape = VectorShape::new(ElementType::F32, metric, dim);
                let layout = SetLayout::reserve(&mut Layout::default(), shape, 1_000);
                let base = VectorSet::new(Scratch::new(PtrMut::empty()), layout, 1_000);
                let block = Block {
                    shape,
                    base,
                    centred: false,
                    first_id: 0,
                    tuning: Tuning::of(Runtime::EMULATOR.limits()),
                    mask: None,
                };
                assert_eq!(block.uses_filter(10, 5), filters, "{dim} components");
                let of_tile = u64::from(filter::TILE_ROWS) * shape.copy_stride() as u64;
                assert!(!filters || of_tile <= u64::from(u32::MAX), "{dim} components");
            }
        }
    }
}
