//! The errors of the library. Each variant carries the facts as values (request, limit, place), not as text.

use std::path::PathBuf;

use crate::Device;

/// The error of a call, with the values that caused it. A failed call leaves the index, the output and the device
/// unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number that must be at least 1 is 0.
    #[error("{what} = 0; at least 1 is needed")]
    Zero {
        /// Name of the number: `dimension`, `k`, `probes`, `beam`, `lists`, `clusters`, `shifts` or
        /// `positions`.
        what: &'static str,
    },
    /// A flat array is not a whole number of rows.
    #[error("{len} {what} are not a whole number of rows of {size}")]
    Ragged {
        /// Name of what the array holds: `components`, `code bytes`, `keys` or `values`.
        what: &'static str,
        /// Length of the array.
        len: usize,
        /// Length of a row: the dimension of the vectors, the bytes of a code, or the keys of a row.
        size: usize,
    },
    /// Queries and index disagree on the dimension.
    #[error("wrong dimension: the index has {expected}, the vectors have {actual}")]
    WrongDimension {
        /// Dimension of the index.
        expected: usize,
        /// Dimension of the vectors that were passed.
        actual: usize,
    },
    /// A component is NaN or infinite.
    #[error("component {value} at row {row}, column {column} of the {input} is not finite")]
    NotFinite {
        /// The argument that holds the component.
        input: Input,
        /// Row (vector) of the component, from 0. If a call takes the vectors in batches, rows count over all batches.
        row: usize,
        /// Column (position in the vector), from 0.
        column: usize,
        /// Value of the component.
        value: f32,
    },
    /// A number that the library computes from finite vectors exceeds the range of f32, so that the call cannot
    /// continue.
    #[error("the {derived} of row {row} leaves the range of f32 at column {column}; divide all vectors by a constant")]
    Overflow {
        /// Name of the computed vectors: `residual` (the vector minus the centroid of its list), `rotated vector`, or
        /// `range of a component` (the greatest minus the least, of row 0, in a file of FAISS).
        derived: &'static str,
        /// Row of the vector from which the number was computed, from 0.
        row: usize,
        /// Number of the column, from 0.
        column: usize,
    },
    /// A component of a vector is larger than the encoding of an index holds, or the greatest one is so small that the
    /// encoding would keep fewer significant bits of it than it promises. The training determines the range.
    #[error(
        "component {value:e} at row {row}, column {column}: by its training, encoding {encoding} holds vectors whose greatest \
         component is {least:e} to {greatest:e} in size"
    )]
    DoesNotFit {
        /// Name of the encoding.
        encoding: &'static str,
        /// Row of the vector, from 0.
        row: usize,
        /// Column (position in the vector), from 0.
        column: usize,
        /// Value of the component: the first that is too large, or the greatest of a vector that is too small.
        value: f32,
        /// The least size of a greatest component; only a vector of zeros has none.
        least: f32,
        /// The greatest component that the encoding holds.
        greatest: f32,
    },
    /// More of something than an index, a call or a kernel can hold or number.
    #[error("{asked} {what}; the limit is {limit}")]
    TooMany {
        /// Name of what is too many: `rows`, `clusters`, `shifts`, `pairs`, `dimensions`, `dimensions for shifted
        /// sort`, or, with a plan for fewer, `rows for this plan`, `columns for this plan` or `queries for this
        /// workspace`.
        what: &'static str,
        /// The number that the call needs.
        asked: u64,
        /// The largest possible number.
        limit: u64,
    },
    /// No vector of the index, and no node of the graph, has the id.
    #[error("id {id} does not exist; there are {len} vectors")]
    UnknownId {
        /// The id that was passed.
        id: u64,
        /// Number of vectors in the index, or of nodes.
        len: u64,
    },
    /// An array has another length than the arrays or numbers that it belongs to need.
    #[error("{actual} {what}; {expected} are needed")]
    WrongLength {
        /// Name of what the array holds: `results` (slots: queries times k), `ids`, `weights` (one for each vector),
        /// `lengths` (one for each row), `payloads` (one for each key), `filter bits` (one for each vector, or for each
        /// bit of the other filter), `filters` (one for each query), `vectors of the base`,
        /// `components of starting centroids` (clusters times dimension), `components of codebooks` (dimension ·
        /// 2^bits), `queries` or `neighbours of a query` (in comparisons of results).
        what: &'static str,
        /// The length that is needed.
        expected: usize,
        /// The length that was passed.
        actual: usize,
    },
    /// The results, queries times k, do not fit in the address space.
    #[error("{queries} queries times k = {k} results do not fit in memory")]
    ResultTooLarge {
        /// Number of queries that were passed.
        queries: usize,
        /// Number of neighbours for each query.
        k: usize,
    },

    /// The index or quantizer is not trained.
    #[error("not trained; call train before {call}")]
    NotTrained {
        /// Name of the method that was called.
        call: &'static str,
    },
    /// The [`Watch`](crate::Watch) of the call cancelled it. Nothing has changed.
    #[error("the call was cancelled")]
    Cancelled,
    /// A call of `train` on an index that holds vectors. Training would change the list of each vector.
    #[error("the index holds {len} vectors; it can only be trained while empty")]
    NotEmpty {
        /// Number of vectors in the index.
        len: u64,
    },
    /// Fewer training vectors than clusters or codewords.
    #[error("{have} training vectors; at least {need} are needed")]
    TooFewTrainingVectors {
        /// Number of vectors.
        have: usize,
        /// Clusters or codewords to train.
        need: usize,
    },
    /// The number of sub-quantizers does not divide the dimension, or that of shards the number of devices.
    #[error("{what} {number} is not divisible by {parts} {by}")]
    NotDivisible {
        /// Name of the number: `dimension` or `number of devices`.
        what: &'static str,
        /// The dimension or the number of devices.
        number: usize,
        /// Name of the parts: `sub-quantizers` or `shards`.
        by: &'static str,
        /// Number of parts that was passed.
        parts: usize,
    },
    /// A weight is negative, NaN or infinite, or all weights are zero.
    #[error("weight {value} of row {row}: weights are finite, not negative, and not all zero")]
    BadWeight {
        /// Row of the weight, from 0.
        row: usize,
        /// Value of the weight.
        value: f32,
    },
    /// A number is NaN or outside the range of its meaning.
    #[error("{what} = {value}; a number of at least {least} is needed")]
    BadNumber {
        /// Name of the number: `radius`; or `refine` or `bound of cluster sizes over their mean`, which must be finite
        /// as well.
        what: &'static str,
        /// The number that was passed.
        value: f64,
        /// The smallest possible number.
        least: f64,
    },
    /// An id occurs twice, or a vector of the index already has it.
    #[error("id {id} is not unique")]
    DuplicateId {
        /// Id that is not unique.
        id: u64,
    },
    /// The id `u64::MAX`, which means "no neighbour" and cannot be the id of a vector.
    #[error("id {} means 'no neighbour' and cannot be a vector's", u64::MAX)]
    ReservedId,
    /// A number is not among those that are supported.
    #[error("{what} = {value}; {least} to {most} are possible")]
    OutOfRange {
        /// Name of the number: `degree` (edges of a vector in a graph), `bits per sub-quantizer`, `end of the bits`
        /// (the least one is their start) or `id in a graph of row numbers`.
        what: &'static str,
        /// The number that was passed.
        value: u64,
        /// The smallest possible number.
        least: u64,
        /// The largest possible number.
        most: u64,
    },
    /// A filter was made for other ids than those in the index: ids were added or removed since then, or the filter
    /// belongs to another index. [`IvfIndex::filter`](crate::IvfIndex::filter) makes a new one.
    #[error("the filter was made for other ids than the {vectors} that the index holds now; make it again")]
    StaleFilter {
        /// Number of vectors in the index.
        vectors: u64,
    },
    /// A type or a metric is another one than an index, an encoding or an algorithm takes.
    #[error("{what}: {actual}; {expected} is needed")]
    Mismatch {
        /// Name of what differs: `metric of the refiner`, `metric of the file`, `metric of codes for FAISS`,
        /// `encoding for metric hamming`, `element type for metric hamming`, `element type for encoding f16`,
        /// `key type for warp-select`, or `filter`, where filters for each query cannot be.
        what: &'static str,
        /// The name that is needed.
        expected: &'static str,
        /// The name of what was passed.
        actual: &'static str,
    },
    /// Two indexes cannot be merged.
    #[error("the indexes differ in {what}")]
    Incompatible {
        /// Name of the property that differs: `dimension`, `metric`, `encoding`, `centroids`, ..
        what: &'static str,
    },
    /// The target recall is not reached by any number of probes or any beam, or is not a recall.
    #[error("recall {target} cannot be reached; {widest} has {best}")]
    RecallOutOfReach {
        /// The recall that was requested.
        target: f64,
        /// The recall of the widest search.
        best: f64,
        /// The widest search: `a search of all lists`, or `a beam of all vectors`.
        widest: &'static str,
    },
    /// No query has a true neighbour, so there is no recall: there are no queries, or the index is empty.
    #[error("there is no recall to measure: none of {queries} queries has a true neighbour among {vectors} vectors")]
    NoTrueNeighbors {
        /// Number of queries.
        queries: usize,
        /// Number of vectors in the index.
        vectors: u64,
    },
    /// A matrix is not a rotation: it is not dim × dim, or its rows are not orthonormal.
    #[error("the matrix of {len} entries is not a rotation of dimension {dim}: it is {error} away from orthogonal")]
    NotOrthogonal {
        /// Dimension of the vectors that were passed.
        dim: usize,
        /// Number of entries of the matrix.
        len: usize,
        /// Largest entry of |R·Rᵀ − I|; infinite if the shape is wrong.
        error: f64,
    },

    /// A row of keys, or a selection of them, is not possible.
    #[error("{what} of row {row} = {value}; {least} to {most} are possible")]
    BadRow {
        /// Name of the number: `length`, `end` (starts of rows ascend, and rows end where the keys do) or `selected
        /// position`.
        what: &'static str,
        /// Number of the row, from 0.
        row: usize,
        /// The number that was passed, or computed from the arguments; `u64::MAX` if it does not fit.
        value: u64,
        /// The smallest possible number.
        least: u64,
        /// The largest possible number; below `least` if none is possible.
        most: u64,
    },
    /// A call with device addresses needs an index whose vectors are in the memory of one GPU.
    #[error("the vectors of the index are not in the memory of one GPU: {index}")]
    NotInDeviceMemory {
        /// Description of the index's device.
        index: String,
    },
    /// The index has changed since the workspace was made, or the workspace is one of another index.
    #[error("the workspace is for another index or for another version of this index")]
    StaleWorkspace,
    /// Memory or a stream of the caller's on a device cannot be used.
    #[error("{what}: {defect}")]
    BadMemory {
        /// Name of what the memory has: `queries`, `vectors`, `ids`, `distances` or `counts`; `stream`; `tensor` before
        /// its use is known.
        what: &'static str,
        /// The defect of the memory or the stream.
        defect: MemoryDefect,
    },

    /// There is no path between two nodes.
    #[error("no path leads from {from} to {to}: their components have {from_size} and {to_size} nodes")]
    NotConnected {
        /// Start of the path.
        from: u64,
        /// End of the path.
        to: u64,
        /// Number of nodes in the component of `from`.
        from_size: u64,
        /// Number of nodes in the component of `to`.
        to_size: u64,
    },

    /// No usable GPU was found, or the one that was selected is not usable.
    #[error("no CUDA device: {reason}")]
    NoDevice {
        /// Why no GPU can be used, or not this one.
        reason: NoDeviceReason,
    },
    /// Device memory, or the budget for it, is too small.
    #[error("out of memory on {device}: {asked} bytes needed, {available} bytes available within the budget")]
    OutOfDeviceMemory {
        /// Name of the device.
        device: String,
        /// Bytes of the request that failed.
        asked: u64,
        /// Bytes that were available within the budget.
        available: u64,
    },
    /// Host memory is too small. The call has changed nothing.
    #[error("out of host memory: {asked} bytes needed")]
    OutOfHostMemory {
        /// Bytes of the request that failed; `u64::MAX` if the number does not fit.
        asked: u64,
    },
    /// The driver refused a kernel module, or the module does not contain the kernel.
    #[error("the driver refused the PTX module '{module}' (code {code}): {log}")]
    PtxRefused {
        /// Name of the module, which is that of a kernel family.
        module: &'static str,
        /// Raw driver code (CUresult).
        code: i32,
        /// The driver's compile log, or the name of the kernel.
        log: String,
    },
    /// Any other failure that the driver reports.
    #[error("driver call {call} failed on device {device} with code {code}")]
    Driver {
        /// Name of the operation in the driver.
        call: &'static str,
        /// Number of the device, from 0.
        device: usize,
        /// Raw driver code (CUresult).
        code: i32,
    },
    /// One of several devices failed during a call. The index does not use the device again; it works without the
    /// device as long as `left` is not 0.
    #[error("{device} failed and is not used again; {left} other devices hold shard {shard}: {source}")]
    DeviceFailed {
        /// The device that failed.
        device: Device,
        /// Number of the shard on that device, from 0.
        shard: usize,
        /// Number of other devices that hold the shard.
        left: usize,
        /// Error that the driver reported.
        source: Box<Error>,
    },
    /// All devices that hold a shard have failed. `move_to` of an inverted file places the index on other devices, from
    /// the copy in host memory. A flat index has no such copy; its vectors must be added to a new index.
    #[error("shard {shard} is lost: all of its {replicas} replicas have failed")]
    ShardLost {
        /// Number of the shard, from 0.
        shard: usize,
        /// Number of replicas of the shard.
        replicas: usize,
    },
    /// A launch exceeds a limit of the kernel.
    #[error("kernel {kernel}: {what} is {asked}, the limit is {limit}")]
    LaunchLimit {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of the quantity.
        what: &'static str,
        /// Value in the launch.
        asked: u64,
        /// Largest value that the kernel allows.
        limit: u64,
    },

    /// A measured selection differs from that of the CPU: a bug in the kernel, or a broken device.
    #[error("the selection of row {row} differs from the CPU's")]
    WrongSelection {
        /// The first row that differs.
        row: usize,
    },
    /// The emulator stopped a kernel that broke a rule of the hardware: a bug in the kernel.
    #[error("the emulator stopped a kernel: {violation}")]
    KernelViolation {
        /// The rule that was broken, and the place in the kernel.
        violation: Box<cuda_std::emulator::Violation>,
    },

    /// Another rank of a distributed call failed, so this rank stopped as well.
    #[error("rank {rank} failed: {reason}")]
    RankFailed {
        /// Number of the rank, from 0; the lowest if several failed.
        rank: usize,
        /// The error of that rank as text, because ranks do not exchange errors as values.
        reason: String,
    },
    /// A [`Batcher`](crate::Batcher) did not search for a request.
    #[error("the request was refused: {0}")]
    Refused(Refusal),
    /// The operating system refused a thread.
    #[error("no thread could be started: {source}")]
    Thread {
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// MPI was started before; a process can start it once.
    #[error("MPI was already started in this process")]
    MpiStarted,

    /// An operating-system error on a file.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file cannot be used: it does not follow its format, or the call cannot have a file of this name.
    #[error("{path}: {defect}")]
    BadFile {
        /// Path of the file.
        path: PathBuf,
        /// The defect of the file.
        defect: FileDefect,
    },
}

/// The class of an error, by its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Input,
    Device,
    Other,
}

impl Error {
    /// The name of the variant in lower case with underscores, such as `wrong_dimension`. The name of an error stays
    /// the same in later versions, and its message may change. The program `warpann` prints the name with `--json`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.facts().0
    }

    /// Whether the arguments, the files or the order of the calls are the cause, so that the same call fails on every
    /// machine. A service tells it to its client.
    #[must_use]
    pub fn is_input(&self) -> bool {
        self.facts().1 == Class::Input
    }

    /// Whether a device, its memory or its driver is the cause: the call may succeed on another device, or with more
    /// memory. Errors that are neither this nor [`is_input`](Self::is_input) come from the operating system, from
    /// another rank, from a [`Watch`](crate::Watch) that cancelled the call, or from a bug of the library.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.facts().1 == Class::Device
    }

    /// Name and class of each variant.
    fn facts(&self) -> (&'static str, Class) {
        match self {
            Error::Zero { .. } => ("zero", Class::Input),
            Error::Ragged { .. } => ("ragged", Class::Input),
            Error::WrongDimension { .. } => ("wrong_dimension", Class::Input),
            Error::NotFinite { .. } => ("not_finite", Class::Input),
            Error::Overflow { .. } => ("overflow", Class::Input),
            Error::DoesNotFit { .. } => ("does_not_fit", Class::Input),
            Error::TooMany { .. } => ("too_many", Class::Input),
            Error::UnknownId { .. } => ("unknown_id", Class::Input),
            Error::WrongLength { .. } => ("wrong_length", Class::Input),
            Error::ResultTooLarge { .. } => ("result_too_large", Class::Input),
            Error::NotTrained { .. } => ("not_trained", Class::Input),
            Error::NotEmpty { .. } => ("not_empty", Class::Input),
            Error::Cancelled => ("cancelled", Class::Other),
            Error::TooFewTrainingVectors { .. } => ("too_few_training_vectors", Class::Input),
            Error::NotDivisible { .. } => ("not_divisible", Class::Input),
            Error::BadWeight { .. } => ("bad_weight", Class::Input),
            Error::BadNumber { .. } => ("bad_number", Class::Input),
            Error::DuplicateId { .. } => ("duplicate_id", Class::Input),
            Error::ReservedId => ("reserved_id", Class::Input),
            Error::OutOfRange { .. } => ("out_of_range", Class::Input),
            Error::StaleFilter { .. } => ("stale_filter", Class::Input),
            Error::Mismatch { .. } => ("mismatch", Class::Input),
            Error::Incompatible { .. } => ("incompatible", Class::Input),
            Error::RecallOutOfReach { .. } => ("recall_out_of_reach", Class::Input),
            Error::NoTrueNeighbors { .. } => ("no_true_neighbors", Class::Input),
            Error::NotOrthogonal { .. } => ("not_orthogonal", Class::Input),
            Error::BadRow { .. } => ("bad_row", Class::Input),
            Error::NotInDeviceMemory { .. } => ("not_in_device_memory", Class::Input),
            Error::StaleWorkspace => ("stale_workspace", Class::Input),
            Error::BadMemory { .. } => ("bad_memory", Class::Input),
            Error::NotConnected { .. } => ("not_connected", Class::Input),
            Error::NoDevice { .. } => ("no_device", Class::Device),
            Error::OutOfDeviceMemory { .. } => ("out_of_device_memory", Class::Device),
            Error::OutOfHostMemory { .. } => ("out_of_host_memory", Class::Other),
            Error::PtxRefused { .. } => ("ptx_refused", Class::Device),
            Error::Driver { .. } => ("driver", Class::Device),
            Error::DeviceFailed { .. } => ("device_failed", Class::Device),
            Error::ShardLost { .. } => ("shard_lost", Class::Device),
            Error::LaunchLimit { .. } => ("launch_limit", Class::Input),
            Error::WrongSelection { .. } => ("wrong_selection", Class::Other),
            Error::KernelViolation { .. } => ("kernel_violation", Class::Other),
            Error::RankFailed { .. } => ("rank_failed", Class::Other),
            Error::Refused(_) => ("refused", Class::Other),
            Error::Thread { .. } => ("thread", Class::Other),
            Error::MpiStarted => ("mpi_started", Class::Input),
            Error::Io { .. } => ("io", Class::Other),
            Error::BadFile { .. } => ("bad_file", Class::Input),
        }
    }

    /// Converts the error of a call for a batch whose first row is row `first` of all rows: if the error contains a row
    /// number, it becomes a number among all rows. For callers that pass vectors in batches.
    #[must_use]
    pub fn after_rows(self, first: usize) -> Error {
        self.with_row(|row| first + row)
    }

    /// Converts the error of a call for a selection of rows: `row_of` maps a row number of the selection to one of all
    /// rows.
    pub(crate) fn with_row(mut self, row_of: impl FnOnce(usize) -> usize) -> Error {
        if let Error::NotFinite { row, .. } | Error::Overflow { row, .. } | Error::DoesNotFit { row, .. } = &mut self {
            *row = row_of(*row);
        }
        self
    }
}

/// Why a [`Batcher`](crate::Batcher) did not search for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue has its largest number of requests. A service asks its client to come back later.
    #[error("{most} requests wait already")]
    Full {
        /// Largest number of requests that wait.
        most: usize,
    },
    /// The deadline of the request passed before its search began.
    #[error("its deadline has passed")]
    Expired,
    /// The batcher was closed before it got the request.
    #[error("the batcher is closed")]
    Closed,
}

/// An argument that holds vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Input {
    /// The vectors in which a call searches.
    #[error("base")]
    Base,
    /// The vectors whose neighbours a call finds.
    #[error("queries")]
    Queries,
    /// The vectors that train an index, a quantizer or a clustering.
    #[error("training vectors")]
    Training,
    /// Vectors to assign, encode or rotate.
    #[error("vectors")]
    Vectors,
    /// Starting centroids of k-means.
    #[error("starting centroids")]
    Centroids,
    /// Codewords of a product quantizer; rows count over all sub-quantizers.
    #[error("codebooks")]
    Codebooks,
    /// The matrix of a rotation.
    #[error("rotation")]
    Rotation,
}

/// A defect of memory or of a stream of the caller's on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryDefect {
    /// The device address is null, or is no multiple of the size of what lies there.
    #[error("address {address:#x} is null or no multiple of {align}")]
    Address {
        /// The address in the call.
        address: u64,
        /// The number of which the address must be a multiple.
        align: u64,
    },
    /// The CUDA driver does not know the address: it is neither device memory, nor managed memory, nor page-locked
    /// memory of the host.
    #[error("address {address:#x} is unknown to the CUDA driver")]
    Unknown {
        /// The address in the call.
        address: u64,
    },
    /// Memory of another GPU than that of the index, or of the stream.
    #[error("the memory belongs to GPU {found}; GPU {expected} is expected")]
    OtherGpu {
        /// Number of the GPU of the index.
        expected: usize,
        /// Number of the GPU of the memory.
        found: usize,
    },
    /// A stream or a buffer of cudarc that belongs to another context than the primary one of its GPU, in which indexes
    /// work.
    #[error("does not belong to the primary context of GPU {gpu}")]
    OtherContext {
        /// Number of the GPU of the context.
        gpu: usize,
    },
    /// The pointer to a DLPack tensor is null.
    #[error("the tensor is null")]
    Null,
    /// The structures of this version of DLPack are unknown.
    #[error("the tensor has version {major}.{minor} of DLPack; version 1 is supported")]
    Version {
        /// Version of the structures.
        major: u32,
        /// Version of the numbers in them.
        minor: u32,
    },
    /// The owner of the tensor forbids to write results to it.
    #[error("the tensor must not be written")]
    ReadOnly,
    /// The memory is not that of a CUDA device.
    #[error("the tensor is on device {device_id} of type {device_type}; CUDA devices have type 2")]
    Device {
        /// DLPack's number of the kind of device.
        device_type: i32,
        /// Number of the device.
        device_id: i32,
    },
    /// The elements have another type than expected.
    #[error("the tensor has elements of another type: code {code}, {bits} bits, {lanes} lanes")]
    Element {
        /// DLPack's number of the kind of type.
        code: u8,
        /// Size of an element in bits.
        bits: u8,
        /// Number of lanes.
        lanes: u16,
    },
    /// The tensor is neither a vector nor a matrix.
    #[error("the tensor has {dimensions} dimensions; it must have 1 or 2")]
    Dimensions {
        /// Number of dimensions.
        dimensions: i32,
    },
    /// A size is negative.
    #[error("the tensor has the size {size} along axis {axis}")]
    Size {
        /// Number of the axis, from 0.
        axis: usize,
        /// Number of elements along the axis, as the tensor says.
        size: i64,
    },
    /// The tensor is not contiguous.
    #[error("the tensor has the stride {stride} along axis {axis}; a contiguous one has {expected}")]
    Stride {
        /// Number of the axis, from 0.
        axis: usize,
        /// The stride in elements.
        stride: i64,
        /// The stride of a contiguous tensor.
        expected: i64,
    },
    /// The first element lies beyond the end of all memory.
    #[error("the tensor starts {byte_offset} bytes behind its address, beyond all memory")]
    Offset {
        /// Bytes from the address to the first element.
        byte_offset: u64,
    },
}

/// The reason why there is no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDeviceReason {
    /// The feature `cuda` of this library is off.
    #[error("the feature 'cuda' of warpann is off in this build")]
    FeatureOff,
    /// The feature `emulator` of this library is off.
    #[error("the feature 'emulator' of warpann is off in this build")]
    EmulatorOff,
    /// libcuda.so.1 could not be loaded.
    #[error("the NVIDIA driver library libcuda.so.1 is not on this machine")]
    NoDriver,
    /// The driver is installed and reports no device.
    #[error("the driver reports no device (code {0})")]
    NoneReported(i32),
    /// There is no device with this number.
    #[error("device {asked} does not exist; this machine has {available} devices")]
    NoSuchDevice {
        /// Number of the device, from 0.
        asked: usize,
        /// Number of devices of this machine.
        available: usize,
    },
    /// The device is older than the oldest PTX in this build.
    #[error("device {device} has compute capability {major}.{minor}; the kernels need 8.0 or later")]
    TooOld {
        /// Number of the device, from 0.
        device: usize,
        /// Major number of the compute capability.
        major: i32,
        /// Minor number of the compute capability.
        minor: i32,
    },
}

/// A defect of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileDefect {
    /// The extension of the file name is not that of a known format.
    #[error("unknown extension; the known ones are {known}")]
    UnknownExtension {
        /// Extensions of the known formats.
        known: &'static str,
    },
    /// An output of a call is the same file as an input or another output.
    #[error("the same file as {other}; every output needs a separate file")]
    SameFile {
        /// Path of the other file, as the call names it.
        other: PathBuf,
    },
    /// The journal of an interrupted run belongs to a run with other input.
    #[error(
        "belongs to a run with other input: its {what} is '{there}', that of this run is '{here}'; resume with the same input, or restart"
    )]
    OtherRun {
        /// Name of the input that differs: `base`, `k`, `index`, ..
        what: &'static str,
        /// Value in the journal.
        there: String,
        /// Value in this run.
        here: String,
    },
    /// The file is shorter than its header requires.
    #[error("truncated: {expected} bytes needed, {actual} found")]
    Truncated {
        /// Bytes that the header and the shape require.
        expected: u64,
        /// Size of the file in bytes.
        actual: u64,
    },
    /// The file is longer than its header requires.
    #[error("oversized: {expected} bytes expected, {actual} found")]
    Oversized {
        /// Bytes that the header and the shape require.
        expected: u64,
        /// Size of the file in bytes.
        actual: u64,
    },
    /// The dimension of a row differs from that of the first row.
    #[error("row {row} has dimension {actual}, the first row has {expected}")]
    UnevenRows {
        /// Number of the row, from 0.
        row: u64,
        /// Dimension of the first row.
        expected: u64,
        /// Dimension of this row.
        actual: i64,
    },
    /// A dimension that no file can have (zero, negative or too large).
    #[error("impossible dimension {0}")]
    BadDimension(i64),
    /// Rows times dimension exceed the address space.
    #[error("{rows} rows of dimension {dim} do not fit in memory")]
    TooLarge {
        /// Number of rows in the header.
        rows: u64,
        /// Dimension in the header.
        dim: u64,
    },
    /// The header does not follow the format.
    #[error("header: {0}")]
    BadHeader(&'static str),
    /// The element type of the file is not supported for this use.
    #[error("element type {actual}; needed: {expected}")]
    WrongElement {
        /// Element type in the file.
        actual: String,
        /// Element types that are supported.
        expected: &'static str,
    },
    /// The file has an index of another kind.
    #[error("an index of the kind {actual}; needed: {expected}")]
    WrongKind {
        /// Kind of the index in the file.
        actual: &'static str,
        /// Kind that is needed.
        expected: &'static str,
    },
    /// An f64 value is beyond the range of f32, as which it would be read.
    #[error("row {row}, column {column}: {value} is beyond the range of f32")]
    ExceedsF32 {
        /// Number of the row, from 0.
        row: u64,
        /// Number of the column, from 0.
        column: u64,
        /// Value in the file.
        value: String,
    },
    /// An index file of a version that this library does not read.
    #[error("version {found} of the index format; this library reads {known}")]
    Version {
        /// Version of the file.
        found: u32,
        /// Version that the library reads.
        known: u32,
    },
    /// The checksum of a section of an index file is wrong: the file is damaged.
    #[error("checksum of section '{section}' does not match: the file is damaged")]
    Checksum {
        /// Name of the section.
        section: &'static str,
    },
    /// Parts of an index file contradict each other.
    #[error("inconsistent: {0}")]
    Inconsistent(&'static str),
    /// An id is negative, but not −1, which means "no neighbour".
    #[error("row {row}, column {column}: id {id} is negative")]
    BadId {
        /// Number of the row, from 0.
        row: u64,
        /// Number of the column, from 0.
        column: u64,
        /// Id that is not allowed.
        id: i64,
    },
    /// The number of ids of a matrix does not agree with its shape.
    #[error("{ids} ids for {rows} rows of {k}")]
    WrongIdCount {
        /// Number of rows according to the shape.
        rows: u64,
        /// Number of ids of each row according to the shape.
        k: u64,
        /// Number of ids that were passed.
        ids: u64,
    },
    /// An id of a graph is not the number of a row.
    #[error("row {row}, column {column}: id {id} is not a row; there are {rows} rows")]
    NoSuchRow {
        /// Number of the row, from 0.
        row: u64,
        /// Number of the column, from 0.
        column: u64,
        /// Id that is not allowed.
        id: u64,
        /// Number of rows of the base.
        rows: u64,
    },
    /// An id exceeds the largest id of the format.
    #[error("id {id} exceeds {limit}, the largest that this format holds")]
    IdTooLarge {
        /// Id that is not allowed.
        id: u64,
        /// Largest id of the format.
        limit: u64,
    },
    /// A line does not follow its text format.
    #[error("line {line}: {what}")]
    BadLine {
        /// Number of the line, from 1.
        line: u64,
        /// Description of the defect.
        what: &'static str,
    },
    /// An element of a mesh file has an invalid value.
    #[error("{element} {index}: {what}")]
    BadElement {
        /// Kind of the element: `vertex` or `face`.
        element: &'static str,
        /// Number of the element, from 0.
        index: u64,
        /// Description of the defect.
        what: &'static str,
    },
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::{Device, Error, FileDefect};

    /// Each variant that this file declares has its own name as its kind.
    #[test]
    fn kinds_are_the_names_of_the_variants() {
        let source = include_str!("error.rs");
        let declared = source.split("pub enum Error {").nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap();
        let mut count = 0;
        for line in declared.lines() {
            let Some(name) = line.strip_prefix("    ").filter(|line| line.starts_with(char::is_uppercase)) else {
                continue;
            };
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            let kind: String = name
                .chars()
                .enumerate()
                .flat_map(|(at, c)| {
                    (at > 0 && c.is_uppercase()).then_some('_').into_iter().chain([c.to_ascii_lowercase()])
                })
                .collect();
            let arms = ["", " { .. }", "(_)"].map(|fields| format!("Error::{name}{fields} => (\"{kind}\", "));
            assert!(arms.iter().any(|arm| source.contains(arm)), "{name}");
            count += 1;
        }
        assert!(count > 40, "only {count} variants were found");
    }

    /// A service has one answer for what its client gave, one for a device, and one for the rest.
    #[test]
    fn errors_have_classes() {
        let classes = |error: Error| (error.is_input(), error.is_device());
        let io = || std::io::Error::other("none");
        let driver = || Error::Driver { call: "cuInit", device: 0, code: 100 };
        for input in [
            Error::Zero { what: "k" },
            Error::NotTrained { call: "search" },
            Error::BadFile { path: "x".into(), defect: FileDefect::BadDimension(0) },
        ] {
            assert_eq!(classes(input), (true, false));
        }
        for device in [
            driver(),
            Error::OutOfDeviceMemory { device: "gpu:0".to_owned(), asked: 2, available: 1 },
            Error::DeviceFailed { device: Device::Cpu, shard: 0, left: 1, source: Box::new(driver()) },
        ] {
            assert_eq!(classes(device), (false, true));
        }
        for other in
            [Error::Cancelled, Error::OutOfHostMemory { asked: 1 }, Error::Io { path: "x".into(), source: io() }]
        {
            assert_eq!(classes(other), (false, false));
        }
    }
}
