//! The values of a dataset of one or two dimensions.
//!
//! # Why not by the crate alone
//! HDF5 numbers the chunks of a fixed array and of an implicit index over the maximum extent of the dataset, so that
//! the extent can change. The crate `hdf5-reader` 0.12 numbers them over the extent of the moment: it returns values of
//! other places, or refuses the file. Its fill value may be the attribute `_FillValue` of NetCDF, which HDF5 does not
//! use. It filters all chunks, also where a flag says that those at the edge are not filtered. Its types have a size
//! only, not an exponent or a precision.
//!
//! So this module finds the chunks with the crate's readers of indexes and the maximum extent, decodes them with the
//! crate's filters, and checks the types.

use hdf5_reader::btree_v1::{BTreeV1Key, collect_btree_v1_leaves_storage};
use hdf5_reader::chunk_index::{self, ChunkEntry};
use hdf5_reader::error::{Error, Result};
use hdf5_reader::extensible_array::collect_extensible_array_chunk_entries_storage;
use hdf5_reader::filters::apply_pipeline_with_limit;
use hdf5_reader::fixed_array::collect_fixed_array_chunk_entries_storage;
use hdf5_reader::io::Cursor;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::fill_value::FillValueMessage;
use hdf5_reader::messages::filter_pipeline::FilterPipelineMessage;
use hdf5_reader::messages::layout::{ChunkIndexing, DataLayout};
use hdf5_reader::object_header::ObjectHeader;
use hdf5_reader::{Dataset, Datatype, H5Type, Hdf5File};

/// Most bytes of values for each byte of a file. Deflate, the strongest compression that the reader has, makes at
/// most 1032.
pub const MOST_COMPRESSION: u64 = 1100;

/// Reads all values of `dataset`, a dataset of `file`, in the order of rows. `values` has room for exactly these.
///
/// # Errors
/// The file is damaged, or has something that the crate does not support.
pub fn read<T: H5Type + Copy>(file: &Hdf5File, dataset: &Dataset, values: &mut [T]) -> Result<()> {
    read_parts(file, dataset, values).map_err(|error| match error {
        // The crate has named the dataset.
        error @ Error::Context { .. } => error,
        error => error.with_context(dataset.name()),
    })
}

fn read_parts<T: H5Type + Copy>(file: &Hdf5File, dataset: &Dataset, values: &mut [T]) -> Result<()> {
    check_type(dataset)?;
    let header = file.get_or_parse_header(dataset.address())?;
    let offset_size = file.superblock().offset_size;
    if header.messages.iter().any(|message| matches!(message, HdfMessage::ExternalFiles(_))) {
        return Err(Error::Other("the values are in external files, which are not read".into()));
    }
    match last(&header, |message| match message {
        HdfMessage::DataLayout(found) => Some(&found.layout),
        _ => None,
    }) {
        Some(DataLayout::Chunked { address, .. } | DataLayout::Contiguous { address, .. })
            if Cursor::is_undefined_offset(*address, offset_size) =>
        {
            values.fill(fill_value(&header, dataset)?);
            Ok(())
        }
        Some(DataLayout::Chunked { address, chunk_indexing, .. }) => {
            let shape = matrix(dataset.shape(), 1).ok_or_else(|| damaged("the dataset has no dimensions"))?;
            if values.is_empty() {
                return Ok(());
            }
            values.fill(fill_value(&header, dataset)?);
            let chunks = Chunks::new(file, dataset, &header, chunk_indexing.is_some(), size_of::<T>())?;
            let mut entries = chunks.entries(*address, chunk_indexing.as_ref())?;
            entries.sort_by(|a, b| a.offsets.cmp(&b.offsets));
            if let Some(pair) = entries.windows(2).find(|pair| pair[0].offsets == pair[1].offsets) {
                return Err(damaged(format!("two chunks at {:?}", pair[0].offsets)));
            }
            entries.iter().try_for_each(|entry| {
                let bytes = chunks.decode(entry)?;
                chunks.copy(entry, &of_bytes(&bytes, dataset.dtype())?, shape, values)
            })
        }
        // One piece, in the file or in the header.
        _ => dataset.read_into(values),
    }
}

/// The chunks of a dataset.
struct Chunks<'a> {
    file: &'a Hdf5File,
    dataset: &'a Dataset,
    /// The extent of a chunk.
    extent: Vec<u32>,
    /// Bytes of an element and of a chunk.
    element: usize,
    bytes: usize,
    filters: Option<&'a FilterPipelineMessage>,
    /// Whether chunks that reach beyond the extent are stored without filters.
    edge_unfiltered: bool,
}

impl<'a> Chunks<'a> {
    /// `flags`: whether the layout has flags, as all layouts have whose index is not a B-tree of version 1.
    fn new(
        file: &'a Hdf5File,
        dataset: &'a Dataset,
        header: &'a ObjectHeader,
        flags: bool,
        element: usize,
    ) -> Result<Self> {
        let extent = dataset.chunks().unwrap_or_default();
        if extent.len() != dataset.ndim() || extent.contains(&0) {
            return Err(damaged(format!("chunks of extent {extent:?} in a dataset of extent {:?}", dataset.shape())));
        }
        let bytes = extent.iter().try_fold(element as u64, |bytes, &dim| bytes.checked_mul(dim.into()));
        let most = file.storage().len().saturating_mul(MOST_COMPRESSION);
        let bytes = bytes.filter(|&bytes| bytes <= most).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| damaged(format!("the file cannot hold a chunk of extent {extent:?}")))?;
        let filters = last(header, |message| match message {
            HdfMessage::FilterPipeline(filters) => Some(filters),
            _ => None,
        });
        // The mask of a chunk has 32 bits.
        if let Some(count) = filters.map(|filters| filters.filters.len()).filter(|&count| count > 32) {
            return Err(damaged(format!("{count} filters")));
        }
        let edge_unfiltered = flags && filters.is_some() && layout_flags(file, dataset.address())? & 1 != 0;
        Ok(Self { file, dataset, extent, element, bytes, filters, edge_unfiltered })
    }

    /// The chunks that the index at `address` has within the extent of the dataset.
    fn entries(&self, address: u64, indexing: Option<&ChunkIndexing>) -> Result<Vec<ChunkEntry>> {
        let (storage, extent, shape) = (self.file.storage(), &self.extent[..], self.dataset.shape());
        let (offset_size, length_size) = (self.file.superblock().offset_size, self.file.superblock().length_size);
        let last: Vec<u64> = shape.iter().zip(extent).map(|(dim, &chunk)| dim.div_ceil(chunk.into()) - 1).collect();
        // The readers of arrays make a list of all chunks within the bounds, and a chunk with values has at least one
        // byte.
        let count = last.iter().try_fold(1u64, |count, last| count.checked_mul(last + 1));
        if count.is_none_or(|count| count > storage.len()) {
            return Err(damaged(format!("the file cannot hold chunks of extent {extent:?} for extent {shape:?}")));
        }
        let first = vec![0; last.len()];
        let bounds = Some((&first[..], &last[..]));
        let most = self.dataset.max_dims().unwrap_or(shape);
        if most.len() != shape.len() || most.iter().zip(shape).any(|(most, dim)| most < dim) {
            return Err(damaged(format!("extent {shape:?} beyond the maximum {most:?}")));
        }
        match indexing {
            None => {
                let rank = Some(shape.len() as u32);
                collect_btree_v1_leaves_storage(storage, address, offset_size, length_size, rank, extent, bounds)?
                    .into_iter()
                    .map(|(key, address)| match key {
                        BTreeV1Key::RawData { chunk_size, filter_mask, mut offsets } => {
                            // The last offset counts the bytes of an element, and is 0.
                            offsets.truncate(shape.len());
                            Ok(ChunkEntry { address, size: chunk_size.into(), filter_mask, offsets })
                        }
                        BTreeV1Key::Group { .. } => Err(damaged("a chunk index with keys of groups")),
                    })
                    .collect()
            }
            Some(&ChunkIndexing::SingleChunk { filtered_size, filters }) => {
                Ok(vec![chunk_index::single_chunk_entry(address, filtered_size, filters, shape.len())])
            }
            Some(ChunkIndexing::BTreeV2) => {
                let rank = shape.len() as u32;
                chunk_index::collect_v2_chunk_entries_storage(
                    storage,
                    address,
                    offset_size,
                    length_size,
                    rank,
                    extent,
                    bounds,
                )
            }
            Some(ChunkIndexing::Implicit) => {
                chunk_index::collect_implicit_chunk_entries(address, most, extent, self.element, bounds, storage.len())
            }
            Some(ChunkIndexing::FixedArray { .. }) => collect_fixed_array_chunk_entries_storage(
                storage,
                address,
                offset_size,
                length_size,
                most,
                extent,
                bounds,
            ),
            Some(ChunkIndexing::ExtensibleArray { .. }) => collect_extensible_array_chunk_entries_storage(
                storage,
                address,
                offset_size,
                length_size,
                shape,
                Some(most),
                extent,
                bounds,
            ),
        }
    }

    /// The bytes of a chunk, after its filters were undone.
    fn decode(&self, entry: &ChunkEntry) -> Result<Vec<u8>> {
        let filters = self.filters.filter(|_| !(self.edge_unfiltered && self.at_edge(entry)));
        let size = match filters {
            Some(_) if entry.size > 0 => entry.size,
            _ => self.bytes as u64,
        };
        let size = usize::try_from(size).map_err(|_| damaged(format!("a chunk of {size} bytes")))?;
        let stored = self.file.storage().read_range(entry.address, size)?;
        let bytes = match filters {
            Some(pipeline) => {
                let limit = Some(self.bytes + 1);
                apply_pipeline_with_limit(&stored, &pipeline.filters, entry.filter_mask, self.element, None, limit)?
            }
            None => stored.to_vec(),
        };
        if bytes.len() != self.bytes {
            return Err(damaged(format!(
                "{} bytes instead of {} in chunk {:?}",
                bytes.len(),
                self.bytes,
                entry.offsets
            )));
        }
        Ok(bytes)
    }

    /// Whether a chunk reaches beyond the extent of the dataset.
    fn at_edge(&self, entry: &ChunkEntry) -> bool {
        let ends = entry.offsets.iter().zip(&self.extent).map(|(&offset, &dim)| offset.saturating_add(dim.into()));
        ends.zip(self.dataset.shape()).any(|(end, &dim)| end > dim)
    }

    /// Copies the part of a chunk within the extent to the values of the dataset, a matrix of `shape`.
    fn copy<T: Copy>(&self, entry: &ChunkEntry, chunk: &[T], shape: [usize; 2], values: &mut [T]) -> Result<()> {
        let bad =
            || damaged(format!("a chunk at {:?} in a dataset of extent {:?}", entry.offsets, self.dataset.shape()));
        if entry.offsets.iter().zip(&self.extent).any(|(offset, &dim)| offset % u64::from(dim) != 0) {
            return Err(bad());
        }
        let extent: Vec<u64> = self.extent.iter().map(|&dim| dim.into()).collect();
        let ([top, left], [height, width]) = matrix(&entry.offsets, 0).zip(matrix(&extent, 1)).ok_or_else(bad)?;
        let [rows, columns] = shape;
        if top >= rows || left >= columns {
            return Err(bad());
        }
        let count = width.min(columns - left);
        for (row, from) in (top..rows).zip(chunk.chunks_exact(width)).take(height) {
            values[row * columns + left..][..count].copy_from_slice(&from[..count]);
        }
        Ok(())
    }
}

/// The flags of the layout of chunks in the object header at `address`, which the crate parses but does not return. Bit
/// 0: chunks that reach beyond the extent are not filtered.
fn layout_flags(file: &Hdf5File, address: u64) -> Result<u8> {
    // Numbers of the specification: types of messages, and sizes in bytes.
    const LAYOUT: u8 = 8;
    const CONTINUATION: u8 = 16;
    /// Largest number of blocks of a header, as the crate has it.
    const MOST_BLOCKS: usize = 1024;
    let storage = file.storage();
    let missing = || damaged("an object header without a layout of chunks that has flags");
    let head = storage.read_range(address, 6)?;
    if !head.starts_with(b"OHDR\x02") {
        return Err(missing());
    }
    // Times, numbers of attributes, and the size of the first block come before the messages.
    let flags = head[5];
    let size_at = address + 6 + if flags & 0x20 == 0 { 0 } else { 16 } + if flags & 0x10 == 0 { 0 } else { 4 };
    let size_bytes = 1 << (flags & 3);
    let mut blocks = vec![(size_at + size_bytes, number(&storage.read_range(size_at, size_bytes as usize)?))];
    let prefix = if flags & 4 == 0 { 4 } else { 6 };
    for _ in 0..MOST_BLOCKS {
        let Some((at, len)) = blocks.pop() else { break };
        let len = usize::try_from(len).map_err(|_| missing())?;
        let block = storage.read_range(at, len)?;
        let mut rest = &block[..];
        while let Some((kind, after)) = rest.split_at_checked(prefix) {
            let Some((message, after)) = after.split_at_checked(usize::from(kind[1]) + 256 * usize::from(kind[2]))
            else {
                break;
            };
            let offset_size = usize::from(file.superblock().offset_size);
            match (kind[0], message) {
                (LAYOUT, [4 | 5, 2, flags, ..]) => return Ok(*flags),
                (CONTINUATION, message) if message.len() > offset_size => {
                    let (at, len) = message.split_at(offset_size);
                    // A signature comes before the messages, a checksum behind.
                    blocks.push((number(at).saturating_add(4), number(len).saturating_sub(8)));
                }
                _ => {}
            }
            rest = after;
        }
    }
    Err(missing())
}

/// The number in up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Two numbers of a dataset of two dimensions, or of one, which is a single row: `first` is the first number then.
fn matrix(numbers: &[u64], first: usize) -> Option<[usize; 2]> {
    match *numbers {
        [column] => Some([first, usize::try_from(column).ok()?]),
        [row, column] => Some([usize::try_from(row).ok()?, usize::try_from(column).ok()?]),
        _ => None,
    }
}

/// The last message of a kind in a header.
fn last<'a, M: ?Sized>(header: &'a ObjectHeader, of: impl Fn(&'a HdfMessage) -> Option<&'a M>) -> Option<&'a M> {
    header.messages.iter().rev().find_map(of)
}

/// The value of elements that were not written.
fn fill_value<T: H5Type + Copy>(header: &ObjectHeader, dataset: &Dataset) -> Result<T> {
    let value = last(header, |message| match message {
        HdfMessage::FillValue(FillValueMessage { value: Some(value), .. }) => Some(&value[..]),
        _ => None,
    });
    match value {
        Some(bytes) if bytes.len() == size_of::<T>() => T::from_bytes(bytes, dataset.dtype()),
        Some(bytes) => Err(damaged(format!("a fill value of {} bytes", bytes.len()))),
        None => T::from_bytes(&[0; 8][..size_of::<T>()], dataset.dtype()),
    }
}

/// The values of `bytes`, a whole number of elements.
fn of_bytes<T: H5Type>(bytes: &[u8], dtype: &Datatype) -> Result<Vec<T>> {
    T::decode_vec(bytes, dtype, bytes.len() / size_of::<T>())
        .unwrap_or_else(|| bytes.chunks_exact(size_of::<T>()).map(|bytes| T::from_bytes(bytes, dtype)).collect())
}

/// Refuses numbers with another layout than those of the language: other exponents, or bits that are not used.
fn check_type(dataset: &Dataset) -> Result<()> {
    let (bits, float) = match *dataset.dtype() {
        Datatype::FloatingPoint { size, .. } => (8 * u16::from(size), true),
        Datatype::FixedPoint { size, .. } => (8 * u16::from(size), false),
        _ => return Ok(()),
    };
    // Bytes of the message: class and version, three bytes of flags, u32 size, u16 offset and u16 precision in bits;
    // for floating point then position and size of exponent and mantissa, and the u32 bias. Of the flags, bits 4 and 5
    // of the first byte say that the highest bit of the mantissa is implied, and bit 6 is the byte order of VAX; the
    // second byte is the position of the sign.
    let message = dataset.raw_datatype()?;
    let whole = [[0; 2], bits.to_le_bytes()].concat();
    let standard = match (float, bits) {
        (false, _) => message.get(8..12) == Some(&whole[..]),
        (true, 32) => ieee(&message, &whole, 31, [23, 8, 0, 23], 127),
        (true, 64) => ieee(&message, &whole, 63, [52, 11, 0, 52], 1023),
        // The caller refuses other sizes.
        _ => true,
    };
    if standard { Ok(()) } else { Err(Error::Other(format!("numbers of {bits} bits in another layout than usual"))) }
}

/// Whether a message describes floating point of IEEE 754.
fn ieee(message: &[u8], whole: &[u8], sign: u8, fields: [u8; 4], bias: u32) -> bool {
    let expected = [whole, &fields, &bias.to_le_bytes()].concat();
    message.get(8..20) == Some(&expected[..]) && message[1] & 0x70 == 0x20 && message[2] == sign
}

fn damaged(what: impl Into<String>) -> Error {
    Error::InvalidData(what.into())
}
