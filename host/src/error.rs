//! Every way a call can fail. Variants carry the facts (asked, limit, place); none is a catch-all string.

use std::path::PathBuf;

use crate::{Device, ElementType};

/// What went wrong, with the numbers that show it. A failed call leaves the index, the output and the device as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Vectors must have at least one component.
    #[error("dimension is 0; vectors need at least one component")]
    ZeroDimension,
    /// The flat array of components is not a whole number of vectors.
    #[error("{len} components are not a whole number of vectors of dimension {dim}")]
    RaggedVectors {
        /// Components given.
        len: usize,
        /// Components of one vector.
        dim: usize,
    },
    /// Queries and index disagree on the dimension.
    #[error("wrong dimension: the index has {expected}, the vectors have {actual}")]
    WrongDimension {
        /// The index's dimension.
        expected: usize,
        /// The dimension of what was given.
        actual: usize,
    },
    /// `k` must be at least 1.
    #[error("k is 0; ask for at least one neighbour")]
    ZeroK,
    /// A component is NaN or infinite.
    #[error("component {value} at row {row}, column {column} of the {input} is not finite")]
    NotFinite {
        /// The argument that holds the component.
        input: Input,
        /// Row (vector) of the component, from 0; of vectors that a call takes in batches, counted over all batches.
        row: usize,
        /// Column (position in the vector), from 0.
        column: usize,
        /// The component itself.
        value: f32,
    },
    /// A number that the library computes from finite vectors exceeds the range of f32, so that it cannot go on with it.
    #[error("the {derived} of row {row} leaves the range of f32 at column {column}; divide all vectors by a constant")]
    Overflow {
        /// What was computed: `residual` (the vector less the centroid of its list) or `rotated vector`.
        derived: &'static str,
        /// Row of the vector it was computed from, from 0.
        row: usize,
        /// Column, from 0.
        column: usize,
    },
    /// A component of a vector is larger than the encoding of an index holds.
    #[error("column {column} of row {row} exceeds {greatest} in size, the most that encoding {encoding} holds")]
    DoesNotFit {
        /// The encoding's name.
        encoding: &'static str,
        /// Row of the vector, from 0.
        row: usize,
        /// Column, from 0.
        column: usize,
        /// The greatest component that the encoding holds.
        greatest: f32,
    },
    /// An encoding that is not for vectors of this element type.
    #[error("encoding {encoding} takes {} vectors, not {}", takes.name(), element.name())]
    EncodingOfElement {
        /// The encoding's name.
        encoding: &'static str,
        /// The element type of the index.
        element: ElementType,
        /// The element type that the encoding takes.
        takes: ElementType,
    },
    /// More rows than a shard can number.
    #[error("{asked} rows exceed the {limit} that one index can hold")]
    TooManyRows {
        /// Rows there would be.
        asked: u64,
        /// Rows an index can hold.
        limit: u64,
    },
    /// An id that no vector of the index has.
    #[error("id {id} does not exist; the index holds {len} vectors")]
    UnknownId {
        /// The id asked for.
        id: u64,
        /// Vectors in the index.
        len: u64,
    },
    /// A result slice whose length is not `nq * k`.
    #[error("a result slice has {actual} slots; the queries times k need {expected}")]
    WrongResultLength {
        /// Slots needed.
        expected: usize,
        /// Slots given.
        actual: usize,
    },
    /// `nq * k` does not fit the address space.
    #[error("{queries} queries times k = {k} results do not fit in memory")]
    ResultTooLarge {
        /// Queries asked.
        queries: usize,
        /// Neighbours asked for each.
        k: usize,
    },

    /// Clusters (of k-means), lists (of an inverted file), or copies and positions (of shifted sort) must be at least 1.
    #[error("asked for 0 {what}; at least one is needed")]
    ZeroClusters {
        /// `clusters`, `lists`, `shifts` or `positions`.
        what: &'static str,
    },
    /// An index or quantizer that must be trained first.
    #[error("not trained; call train before {call}")]
    NotTrained {
        /// What was called.
        call: &'static str,
    },
    /// Training an index that already holds vectors would change where they belong.
    #[error("the index holds {len} vectors; it can only be trained while empty")]
    NotEmpty {
        /// Vectors held.
        len: u64,
    },
    /// Fewer training vectors than clusters or codewords.
    #[error("{have} training vectors; {need} are needed at least")]
    TooFewTrainingVectors {
        /// Vectors given.
        have: usize,
        /// Clusters or codewords to train.
        need: usize,
    },
    /// A dimension that cannot be cut into that many equal parts.
    #[error("dimension {dim} is not divisible by {parts} sub-quantizers")]
    NotDivisible {
        /// Components of a vector.
        dim: usize,
        /// Sub-quantizers asked for.
        parts: usize,
    },
    /// Codes have 4 to 8 bits a sub-quantizer.
    #[error("{bits} bits a sub-quantizer; 4 to 8 are possible")]
    BadCodeBits {
        /// Bits asked for.
        bits: u32,
    },
    /// Codes that are not a whole number of vectors.
    #[error("{len} code bytes are not a whole number of codes of {code_bytes} bytes")]
    RaggedCodes {
        /// Bytes given.
        len: usize,
        /// Bytes of one vector's code.
        code_bytes: usize,
    },
    /// A code that names no codeword (possible where bits do not fill the byte, or codewords are fewer).
    #[error("the code of vector {row} names codeword {code} of sub-quantizer {sub_quantizer}; there are {codewords}")]
    NoSuchCodeword {
        /// Vector, from 0.
        row: usize,
        /// Sub-quantizer, from 0.
        sub_quantizer: usize,
        /// What the code says.
        code: u32,
        /// Codewords there are.
        codewords: usize,
    },
    /// Not one weight for each training vector.
    #[error("{weights} weights for {rows} vectors")]
    WrongWeights {
        /// Weights given.
        weights: usize,
        /// Vectors given.
        rows: usize,
    },
    /// A weight that is negative, NaN or infinite, or weights that are all zero.
    #[error("weight {value} of row {row}: weights are finite, not negative, and not all zero")]
    BadWeight {
        /// Row, from 0.
        row: usize,
        /// The weight.
        value: f32,
    },
    /// A bound on cluster sizes that no clustering can meet.
    #[error("a cluster may have {bound} times the mean size; that must be a number, 1 or more")]
    BadBalance {
        /// The bound asked for.
        bound: f64,
    },
    /// Not one id for each vector.
    #[error("{ids} ids for {rows} vectors")]
    WrongIds {
        /// Ids given.
        ids: usize,
        /// Vectors given.
        rows: usize,
    },
    /// An id that occurs twice, or that the index already holds.
    #[error("id {id} is not unique")]
    DuplicateId {
        /// The id.
        id: u64,
    },
    /// All ones stands for "no neighbour" and cannot be an id.
    #[error("id {} means 'no neighbour' and cannot be a vector's", u64::MAX)]
    ReservedId,
    /// `probes` must be at least 1.
    #[error("probes is 0; at least one list must be searched")]
    ZeroProbes,
    /// A filter that has not one bit for each vector.
    #[error("the filter has {bits} bits; the index holds {vectors} vectors")]
    WrongFilterLength {
        /// Bits of the filter.
        bits: u64,
        /// Vectors in the index.
        vectors: u64,
    },
    /// A filter that was made for other ids than the index holds: since then ids were added or removed, or it is another index's.
    /// [`IvfIndex::filter`](crate::IvfIndex::filter) makes it again.
    #[error("the filter was made for other ids than the {vectors} that the index holds now; make it again")]
    StaleFilter {
        /// Vectors in the index.
        vectors: u64,
    },
    /// A radius that is NaN.
    #[error("the radius is not a number")]
    BadRadius,
    /// Two indexes that cannot become one.
    #[error("the indexes differ in {what}")]
    Incompatible {
        /// What differs: `dimension`, `metric`, `encoding`, `centroids`, ..
        what: &'static str,
    },
    /// A target that no number of probes reaches, or that is no recall.
    #[error("recall {target} cannot be reached; all lists give {best}")]
    RecallOutOfReach {
        /// The recall asked for.
        target: f64,
        /// The recall with every list probed.
        best: f64,
    },
    /// Starting centroids that are not clusters times dimension.
    #[error("{actual} components of starting centroids; the clusters times the dimension need {expected}")]
    WrongCentroids {
        /// Components needed.
        expected: usize,
        /// Components given.
        actual: usize,
    },
    /// Codebooks that do not have 2^bits codewords for each sub-quantizer.
    #[error("the codebooks have {actual} components; dimension and bits need {expected}")]
    WrongCodebooks {
        /// Components needed: dimension · 2^bits.
        expected: usize,
        /// Components given.
        actual: usize,
    },
    /// A matrix that is no rotation: not dim × dim, or its rows are not orthonormal.
    #[error("the matrix of {len} entries is no rotation of dimension {dim}: it is {error} away from orthogonal")]
    NotOrthogonal {
        /// Dimension asked for.
        dim: usize,
        /// Entries given.
        len: usize,
        /// Largest entry of |R·Rᵀ − I|; infinite where the shape is wrong.
        error: f64,
    },
    /// More components than vectors of that use can have.
    #[error("dimension {dim}: {what} takes up to {limit}")]
    TooManyDimensions {
        /// What the vectors are for: `an index`, `shifted sort`, ..
        what: &'static str,
        /// Dimension asked for.
        dim: usize,
        /// The largest possible.
        limit: usize,
    },
    /// Two sets of neighbours that cannot be compared.
    #[error("{found} queries with k = {found_k} against {exact} with k = {exact_k}: they must agree")]
    UnlikeNeighbors {
        /// Queries of the first.
        found: usize,
        /// Its k.
        found_k: usize,
        /// Queries of the second.
        exact: usize,
        /// Its k.
        exact_k: usize,
    },

    /// A row of keys longer than it can be.
    #[error("row {row} has length {length}, the limit is {limit}")]
    RowTooLong {
        /// Row, from 0.
        row: usize,
        /// Its length.
        length: u64,
        /// The longest possible.
        limit: u64,
    },
    /// Strided rows of which one reaches past the last key.
    #[error("{rows} rows of {columns} keys, {stride} keys apart, do not fit in {len} keys")]
    RowsPastEnd {
        /// Rows.
        rows: usize,
        /// Keys of a row.
        columns: usize,
        /// Keys from the start of a row to the next row's.
        stride: usize,
        /// Keys given.
        len: usize,
    },
    /// Ragged rows of which one ends before it starts.
    #[error("row {row} starts at key {start} and ends at key {end}; starts must ascend")]
    StartsNotAscending {
        /// Row, from 0.
        row: usize,
        /// Where it starts.
        start: u64,
        /// Where the next row starts.
        end: u64,
    },
    /// Ragged rows that go on after the last key.
    #[error("the last row ends at key {end}; there are {len} keys")]
    StartsPastEnd {
        /// Where the last row ends.
        end: u64,
        /// Keys given.
        len: usize,
    },
    /// Not one length for each row.
    #[error("{lengths} lengths for {rows} rows")]
    WrongLengths {
        /// Rows.
        rows: usize,
        /// Lengths given.
        lengths: usize,
    },
    /// Not one payload for each key.
    #[error("{payloads} payloads for {keys} keys")]
    WrongPayloads {
        /// Keys of all rows, and between rows.
        keys: usize,
        /// Payloads given.
        payloads: usize,
    },
    /// A selection that names a key which its row has not.
    #[error("the selection of row {row} names position {position}; the row has {length} keys")]
    NoSuchPosition {
        /// Row, from 0.
        row: usize,
        /// Position in the selection.
        position: u32,
        /// Keys of the row.
        length: usize,
    },
    /// An algorithm that does not select keys of that type.
    #[error("no kernel of algorithm {algorithm} selects keys of type {key}")]
    NoSuchSelection {
        /// The name of the requested algorithm.
        algorithm: &'static str,
        /// The name of the keys' type.
        key: &'static str,
    },
    /// More rows, or longer ones, than a selection on the device was planned for.
    #[error("the selection is planned for {limit} {what}, not for {asked}")]
    BeyondPlan {
        /// Which size: `rows` or `columns`.
        what: &'static str,
        /// What the call has.
        asked: u32,
        /// What was planned for.
        limit: u32,
    },
    /// More pairs than 32-bit positions can number.
    #[error("{asked} pairs to sort exceed the limit of {limit}")]
    TooManyPairs {
        /// Pairs given.
        asked: u64,
        /// Pairs that can be sorted.
        limit: u64,
    },
    /// Bits to sort by that a key has not.
    #[error("bits {start}..{end} are no range of the bits of a {bits}-bit key")]
    BadBitRange {
        /// The first bit.
        start: u32,
        /// The bit after the last.
        end: u32,
        /// Bits of a key.
        bits: u32,
    },

    /// A base that does not belong to the index or graph it is used with.
    #[error("the base has {actual} vectors; {expected} are needed")]
    WrongBase {
        /// Vectors of the index, or nodes of the graph.
        expected: u64,
        /// Vectors of the base.
        actual: u64,
    },
    /// An index whose ids are not the row numbers of its base, which the nodes of a graph are.
    #[error("the index has a vector of id {id}; a graph needs the row numbers below {rows} as ids")]
    IdsAreNotRows {
        /// The greatest id.
        id: u64,
        /// Rows of the base.
        rows: u64,
    },
    /// A node that the graph has not.
    #[error("node {node} does not exist; the graph has {nodes}")]
    NoSuchNode {
        /// The node asked for.
        node: u64,
        /// Nodes of the graph.
        nodes: u64,
    },
    /// Two nodes without a path between them.
    #[error("no path leads from {from} to {to}: their components have {from_size} and {to_size} nodes")]
    NotConnected {
        /// The first node.
        from: u64,
        /// The last node.
        to: u64,
        /// Nodes in the component of the first.
        from_size: u64,
        /// Nodes in the component of the last.
        to_size: u64,
    },
    /// What an interrupted run left is of a run with other input.
    #[error(
        "{path}: left by a run with other input: its {what} is '{there}', here '{here}'; go on with that, or restart"
    )]
    OtherRun {
        /// The journal.
        path: PathBuf,
        /// What differs: `base`, `k`, `index`, ..
        what: &'static str,
        /// What the journal says.
        there: String,
        /// What was asked.
        here: String,
    },

    /// No usable GPU was found.
    #[error("no CUDA device: {reason}")]
    NoDevice {
        /// Why: no driver library, driver without devices, or a build without the `cuda` feature.
        reason: NoDeviceReason,
    },
    /// A device index past the last device.
    #[error("device {asked} does not exist; this machine has {available}")]
    NoSuchDevice {
        /// Index asked for, from 0.
        asked: usize,
        /// Devices there are.
        available: usize,
    },
    /// The device is older than the oldest PTX in this build.
    #[error("device {device} has compute capability {major}.{minor}; the kernels need 8.0 or later")]
    DeviceTooOld {
        /// Device index.
        device: usize,
        /// Compute capability, major.
        major: i32,
        /// Compute capability, minor.
        minor: i32,
    },
    /// Device memory, or the budget set for it, is too small.
    #[error("out of memory on {device}: {asked} bytes asked, {available} bytes available within the budget")]
    OutOfDeviceMemory {
        /// Which device.
        device: String,
        /// Bytes of the request that failed.
        asked: u64,
        /// Bytes that were free within the budget.
        available: u64,
    },
    /// Host memory is too small. The call that needed it has changed nothing.
    #[error("out of host memory: {asked} bytes asked")]
    OutOfHostMemory {
        /// Bytes of the request that failed; `u64::MAX` if there are more.
        asked: u64,
    },
    /// The driver refused a kernel module.
    #[error("the driver refused the PTX module '{module}' (code {code}): {log}")]
    PtxRefused {
        /// Module (kernel family).
        module: &'static str,
        /// Raw driver code (CUresult).
        code: i32,
        /// The driver's compile log.
        log: String,
    },
    /// A kernel that the loaded module does not hold.
    #[error("module '{module}' has no kernel '{kernel}'")]
    NoSuchKernel {
        /// Module (kernel family).
        module: &'static str,
        /// Kernel looked for.
        kernel: &'static str,
    },
    /// Any other failure the driver reports.
    #[error("driver call {call} failed on device {device} with code {code}")]
    Driver {
        /// The operation, in the driver's terms.
        call: &'static str,
        /// Device index.
        device: usize,
        /// Raw driver code (CUresult).
        code: i32,
    },
    /// Devices that cannot hold so many shards in equally large replicas.
    #[error("{devices} devices cannot be replicas of {shards} shards each")]
    BadPlacement {
        /// Devices given.
        devices: usize,
        /// Shards asked for.
        shards: usize,
    },
    /// One of several devices failed in the middle of the work. The index does not use it again, and can be used without it while `left` is
    /// not 0.
    #[error("{device} failed and is left out from now on; {left} other devices hold shard {shard}: {source}")]
    DeviceFailed {
        /// The device.
        device: Device,
        /// The shard that it holds, from 0.
        shard: usize,
        /// Replicas of the shard that are left.
        left: usize,
        /// What the driver reported.
        source: Box<Error>,
    },
    /// All devices that hold a shard have failed before. `move_to` of an inverted file places it on other devices, from the copy in host
    /// memory; the vectors of a flat index, which has none, must be added to a new index.
    #[error("shard {shard} is lost: all of its {replicas} replicas have failed")]
    ShardLost {
        /// The shard, from 0.
        shard: usize,
        /// Replicas that there were.
        replicas: usize,
    },
    /// A launch that the kernel's contract forbids.
    #[error("kernel {kernel}: {what} is {asked}, the limit is {limit}")]
    LaunchLimit {
        /// Kernel name.
        kernel: &'static str,
        /// Which quantity.
        what: &'static str,
        /// Value asked for.
        asked: u64,
        /// Largest value allowed.
        limit: u64,
    },

    /// A measured selection differs from the CPU's: a bug in the kernel, or a broken device.
    #[error("the selection of row {row} differs from the CPU's")]
    WrongSelection {
        /// The first row that differs.
        row: usize,
    },
    /// The emulator caught a kernel breaking the rules of the hardware: a bug in the kernel.
    #[error("the emulator stopped a kernel: {violation}")]
    KernelViolation {
        /// What happened where.
        violation: Box<cuda_std::emulator::Violation>,
    },

    /// Another rank of a distributed call failed, so this one stopped as well.
    #[error("rank {rank} failed: {reason}")]
    RankFailed {
        /// The rank, from 0; of several that failed the lowest.
        rank: usize,
        /// Its error in words: errors do not travel as values.
        reason: String,
    },
    /// MPI can be started once in a process.
    #[error("MPI was already started in this process")]
    MpiStarted,

    /// An operating-system error on a file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An output of a call is the same file as another of its outputs or inputs.
    #[error("{path}: the same file as {other}; every output needs a file of its own")]
    SameFile {
        /// The output.
        path: PathBuf,
        /// The other file, as the call names it.
        other: PathBuf,
    },
    /// A file name whose extension names no known format.
    #[error("{path}: unknown extension; known here: {known}")]
    UnknownExtension {
        /// The file.
        path: PathBuf,
        /// Extensions that would do.
        known: &'static str,
    },
    /// A file of a known format whose bytes do not follow it.
    #[error("{path}: {defect}")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        defect: FileDefect,
    },
}

impl Error {
    /// The error of a call that took the rows from `first` on, as an error of all rows: the row it names, if it names one, counts
    /// from row 0 of all. For callers that pass vectors in batches.
    #[must_use]
    pub fn after_rows(self, first: usize) -> Error {
        self.with_row(|row| first + row)
    }

    /// The error of rows that were taken from others, as an error of those: `row_of` says which row of the others each one is.
    pub(crate) fn with_row(mut self, row_of: impl FnOnce(usize) -> usize) -> Error {
        if let Error::NotFinite { row, .. } | Error::Overflow { row, .. } | Error::DoesNotFit { row, .. } = &mut self {
            *row = row_of(*row);
        }
        self
    }
}

/// An argument that holds vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Input {
    /// Vectors to search in.
    #[error("base")]
    Base,
    /// Vectors to search for.
    #[error("queries")]
    Queries,
    /// Vectors to train with.
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

/// Why there is no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDeviceReason {
    /// Built without the `cuda` feature.
    #[error("this build has no 'cuda' feature")]
    FeatureOff,
    /// libcuda.so.1 could not be loaded.
    #[error("the NVIDIA driver library libcuda.so.1 is not on this machine")]
    NoDriver,
    /// The driver is there and reports no device.
    #[error("the driver reports no device (code {0})")]
    NoneReported(i32),
}

/// What is wrong with a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileDefect {
    /// The file ends before its header says.
    #[error("truncated: {expected} bytes needed, {actual} there")]
    Truncated {
        /// Bytes that header and shape ask for.
        expected: u64,
        /// Bytes in the file.
        actual: u64,
    },
    /// The file goes on after its contents should have ended.
    #[error("oversized: {expected} bytes expected, {actual} there")]
    Oversized {
        /// Bytes that header and shape ask for.
        expected: u64,
        /// Bytes in the file.
        actual: u64,
    },
    /// A row's stated dimension differs from the first row's.
    #[error("row {row} has dimension {actual}, the first row has {expected}")]
    UnevenRows {
        /// Row, from 0.
        row: u64,
        /// The first row's dimension.
        expected: u64,
        /// This row's dimension.
        actual: i64,
    },
    /// A dimension that no file can have (zero, negative or too large).
    #[error("impossible dimension {0}")]
    BadDimension(i64),
    /// Rows times dimension overflow the address space.
    #[error("{rows} rows of dimension {dim} do not fit in memory")]
    TooLarge {
        /// Rows in the header.
        rows: u64,
        /// Dimension in the header.
        dim: u64,
    },
    /// A header that is not the format's.
    #[error("header: {0}")]
    BadHeader(&'static str),
    /// An element type that this use of the file cannot take.
    #[error("element type {actual}; needed: {expected}")]
    WrongElement {
        /// What is in the file.
        actual: String,
        /// What would do.
        expected: &'static str,
    },
    /// An index file of a version that this library does not read.
    #[error("version {found} of the index format; this library reads {known}")]
    Version {
        /// In the file.
        found: u32,
        /// What the library reads.
        known: u32,
    },
    /// A part of an index file whose checksum is wrong: the file is damaged.
    #[error("checksum of section '{section}' does not match: the file is damaged")]
    Checksum {
        /// Which part.
        section: &'static str,
    },
    /// Parts of an index file that contradict each other.
    #[error("inconsistent: {0}")]
    Inconsistent(&'static str),
    /// A negative id other than −1, which stands for "no neighbour".
    #[error("row {row}, column {column}: id {id} is negative")]
    BadId {
        /// Row, from 0.
        row: u64,
        /// Column, from 0.
        column: u64,
        /// The id.
        id: i64,
    },
    /// A matrix of ids that does not hold as many as its shape says.
    #[error("{ids} ids for {rows} rows of {k}")]
    WrongIdCount {
        /// Rows that the matrix states.
        rows: u64,
        /// Ids of each row that the matrix states.
        k: u64,
        /// Ids there are.
        ids: u64,
    },
    /// An id of a graph that is not the number of a row.
    #[error("row {row}, column {column}: id {id} names no row; there are {rows}")]
    NoSuchRow {
        /// Row, from 0.
        row: u64,
        /// Column, from 0.
        column: u64,
        /// The id.
        id: u64,
        /// Rows there are.
        rows: u64,
    },
    /// An id that the format cannot hold.
    #[error("id {id} exceeds {limit}, the largest that this format holds")]
    IdTooLarge {
        /// The id.
        id: u64,
        /// The format's limit.
        limit: u64,
    },
    /// A line of a text format that does not follow it.
    #[error("line {line}: {what}")]
    BadLine {
        /// Line, from 1.
        line: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A value of a mesh file's element that cannot be there.
    #[error("{element} {index}: {what}")]
    BadElement {
        /// `vertex` or `face`.
        element: &'static str,
        /// Which one, from 0.
        index: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
