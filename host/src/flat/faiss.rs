//! Vectors of bits as FAISS writes them (`faiss.write_index_binary`) and reads them (1.15.1;
//! faiss/impl/index_write.cpp).
//!
//! [`crate::io::faiss`] has headers and IndexBinaryFlat.
//!
//! ```text
//! with ids that are no row numbers: IBMp, header of bits, then what follows, and at the end u64 vectors, i64 ids
//! IndexBinaryFlat
//! ```
//! IBM2, FAISS's map of ids in both directions, is read as well.

use std::io::{self, BufWriter};
use std::path::Path;

use super::{FlatIndex, FlatIndexBuilder};
use crate::error::FileDefect;
use crate::index::private::Stored;
use crate::io::faiss::{BitsHead, FLAT_OF_BITS, check_bytes_of_bits, check_greatest_id, check_ids, vector, vector_of};
use crate::io::fields::{Fields, copied, values};
use crate::io::{Open, open, replace};
use crate::{Element, Error, Metric, Result};

const WITH_IDS: &[u8; 4] = b"IBMp";
const WITH_IDS_BOTH_WAYS: &[u8; 4] = b"IBM2";

/// The shape of a file of bits that FAISS wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaissBits {
    /// Bytes of a vector, with eight bits each: the dimension of an index of them.
    pub dim: usize,
    /// Number of vectors.
    pub vectors: u64,
}

impl FaissBits {
    /// Reads the beginning of a file. O(1). The caller promises what [`Open::Map`] requires while this function runs.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is no `IndexBinaryFlat` of FAISS.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = open(path, Open::Map)?;
        let start = start(&mut Fields::new(bytes.as_deref().map_or(&[], |bytes| bytes)));
        start
            .map(|(head, _)| FaissBits { dim: head.dim, vectors: head.len as u64 })
            .map_err(|defect| Error::BadFile { path: path.to_owned(), defect })
    }
}

impl<T: Element> FlatIndex<T> {
    /// Writes vectors of bits as an `IndexBinaryFlat` of FAISS (`faiss.read_index_binary`), in an `IndexBinaryIDMap` if
    /// ids are other numbers than 0, 1, 2, .. O(bytes), with memory for the vectors. A file that exists is replaced
    /// once the new one is complete.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for other metrics than [`Metric::Hamming`]; [`Error::OutOfRange`] for an id above 2⁶³ − 1;
    /// [`Error::TooMany`] above 2²⁸ − 1 bytes of a vector; [`Error::Io`]; [`Error::OutOfHostMemory`]; errors of the
    /// device's driver.
    pub fn save_faiss(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dim, ids) = (self.dim(), self.ids());
        if !self.metric().compares_bits() {
            let (expected, actual) = (Metric::Hamming.name(), self.metric().name());
            return Err(Error::Mismatch { what: "metric of vectors for FAISS", expected, actual });
        }
        check_bytes_of_bits(dim)?;
        check_greatest_id(self.kind.greatest_id())?;
        let rows = self.kind.all_rows()?;
        let named = ids.iter().copied().ne(0..ids.len() as u64);
        replace(path.as_ref(), |file| {
            let mut out = BufWriter::new(file);
            let head = BitsHead { word: *WITH_IDS, dim, len: ids.len() };
            if named {
                head.write(&mut out)?;
            }
            head.write_flat(bytemuck::cast_slice(&rows), &mut out)?;
            if named {
                vector(&ids, &mut out)?;
            }
            out.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
        })
    }
}

impl FlatIndexBuilder<u8> {
    /// Opens the device and creates an index of the bits in a file that FAISS or [`FlatIndex::save_faiss`] wrote.
    /// [`FaissBits::read`] tells the dimension. The metric becomes [`Metric::Hamming`].
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if it is no `IndexBinaryFlat` of FAISS, or one in another index than an
    /// `IndexBinaryIDMap`, is damaged, or has negative or equal ids. [`Error::WrongDimension`]; errors of opening the
    /// device.
    pub fn load_faiss(self, path: impl AsRef<Path>, how: Open) -> Result<FlatIndex<u8>> {
        let path = path.as_ref();
        let bytes = open(path, how)?;
        let parsed = parse(bytes.as_deref().map_or(&[], |bytes| bytes));
        let bad = |defect| Error::BadFile { path: path.to_owned(), defect };
        let Parsed { dim, rows, ids } = parsed.map_err(bad)?;
        if dim != self.settings.dim {
            return Err(Error::WrongDimension { expected: self.settings.dim, actual: dim });
        }
        let mut index = self.metric(Metric::Hamming).build()?;
        match ids {
            Some(ids) => index.add_with_ids(rows, &ids).map_err(|error| match error {
                Error::DuplicateId { .. } => bad(FileDefect::Inconsistent("an id occurs twice")),
                other => other,
            })?,
            None => index.add(rows)?,
        }
        Ok(index)
    }
}

/// The header of the vectors, and whether ids follow them. The rows come next.
fn start(fields: &mut Fields<'_>) -> Result<(BitsHead, bool), FileDefect> {
    let word = fields.get()?;
    if ![FLAT_OF_BITS, WITH_IDS, WITH_IDS_BOTH_WAYS].contains(&&word) {
        return Err(FileDefect::BadHeader("no IndexBinaryFlat of FAISS"));
    }
    let outer = BitsHead::after(word, fields)?;
    if &word == FLAT_OF_BITS {
        return Ok((outer, false));
    }
    let word = fields.get()?;
    if &word != FLAT_OF_BITS {
        return Err(FileDefect::BadHeader("an IndexBinaryIDMap of FAISS of another index than an IndexBinaryFlat"));
    }
    Ok((BitsHead::after(word, fields)?.within(&outer)?, true))
}

/// The content of a file.
#[derive(Debug)]
struct Parsed<'a> {
    dim: usize,
    rows: &'a [u8],
    ids: Option<Vec<u64>>,
}

fn parse(bytes: &[u8]) -> Result<Parsed<'_>, FileDefect> {
    let fields = &mut Fields::new(bytes);
    let (head, named) = start(fields)?;
    let rows = head.rows(fields)?;
    let ids = if named {
        let ids = vector_of(fields, head.len, 8)?;
        check_ids(values(ids))?;
        Some(copied(ids)?)
    } else {
        None
    };
    fields.finish()?;
    Ok(Parsed { dim: head.dim, rows, ids })
}

#[cfg(test)]
mod tests {
    use test_random::Random;

    use super::*;
    use crate::Device;

    const DIM: usize = 3;

    fn bits(ids: &[u64]) -> FlatIndex<u8> {
        let mut index = FlatIndex::<u8>::new(DIM, Metric::Hamming, Device::Cpu).unwrap();
        let rows: Vec<u8> = (0..ids.len() * DIM).map(|at| (at * 37 % 251) as u8).collect();
        index.add_with_ids(&rows, ids).unwrap();
        index
    }

    fn loaded(path: &Path) -> Result<FlatIndex<u8>> {
        FlatIndex::<u8>::builder(DIM).device(Device::Cpu).load_faiss(path, Open::Read)
    }

    #[test]
    fn bits_come_back_from_a_file_with_their_ids() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bits.faiss");
        for ids in [vec![], vec![0, 1, 2, 3, 4], vec![7, 8, 1 << 40, i64::MAX as u64]] {
            let index = bits(&ids);
            index.save_faiss(&path).unwrap();
            assert_eq!(FaissBits::read(&path).unwrap(), FaissBits { dim: DIM, vectors: ids.len() as u64 });
            let again = loaded(&path).unwrap();
            assert_eq!((again.ids(), again.metric()), (ids.clone(), Metric::Hamming));
            for id in ids {
                assert_eq!(again.vector(id).unwrap(), index.vector(id).unwrap());
            }
        }
    }

    /// The bytes of FAISS 1.15.1 for an index of 16 bits: two vectors with ids 5 and 9.
    #[test]
    fn a_file_of_faiss_is_read_and_written_to_the_byte() {
        let head = |word: &[u8]| {
            let numbers: [&[u8]; 5] =
                [&16i32.to_le_bytes(), &2i32.to_le_bytes(), &2u64.to_le_bytes(), &[1], &[1, 0, 0, 0]];
            [word, &numbers.concat()].concat()
        };
        let rows = [&4u64.to_le_bytes()[..], &[0xf0, 1, 2, 255]].concat();
        let ids = [2u64, 5, 9].map(u64::to_le_bytes).concat();
        let file = [head(b"IBMp"), head(b"IBxF"), rows.clone(), ids].concat();
        let parsed = parse(&file).unwrap();
        assert_eq!((parsed.dim, parsed.rows, parsed.ids), (2, &[0xf0, 1, 2, 255][..], Some(vec![5, 9])));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("two.faiss");
        let mut index = FlatIndex::<u8>::new(2, Metric::Hamming, Device::Cpu).unwrap();
        index.add_with_ids(&[0xf0, 1, 2, 255], &[5, 9]).unwrap();
        index.save_faiss(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), file);
        assert_eq!(parse(&[head(b"IBxF"), rows].concat()).unwrap().ids, None);
    }

    #[test]
    fn what_faiss_cannot_have_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no.faiss");
        let numbers = FlatIndex::<u8>::new(2, Metric::L2, Device::Cpu).unwrap();
        let refused = numbers.save_faiss(&path);
        assert!(matches!(refused, Err(Error::Mismatch { expected: "hamming", actual: "l2", .. })), "{refused:?}");
        let refused = bits(&[1 << 63]).save_faiss(&path);
        assert!(matches!(refused, Err(Error::OutOfRange { what: "id", .. })), "{refused:?}");
        assert!(!path.exists());
        bits(&[3]).save_faiss(&path).unwrap();
        let other = FlatIndex::<u8>::builder(4).device(Device::Cpu).load_faiss(&path, Open::Read);
        assert!(matches!(other, Err(Error::WrongDimension { expected: 4, actual: 3 })));
    }

    #[test]
    fn damaged_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bits.faiss");
        let mut random = Random::new(1);
        for ids in [vec![0, 1, 2, 3], vec![2, 4, 6, 1 << 50]] {
            bits(&ids).save_faiss(&path).unwrap();
            let whole = std::fs::read(&path).unwrap();
            for len in 0..whole.len() {
                std::fs::write(&path, &whole[..len]).unwrap();
                assert!(matches!(loaded(&path), Err(Error::BadFile { .. })), "{len} bytes");
            }
            for _ in 0..400 {
                let mut bytes = whole.clone();
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
                std::fs::write(&path, &bytes).unwrap();
                let found = loaded(&path);
                let is_typed = matches!(found, Ok(_) | Err(Error::BadFile { .. } | Error::WrongDimension { .. }));
                assert!(is_typed, "byte {at}: {:?}", found.err());
            }
            std::fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
            assert!(matches!(loaded(&path), Err(Error::BadFile { .. })));
        }
        // Equal ids.
        bits(&[2, 4]).save_faiss(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 8;
        bytes[last] = 2;
        std::fs::write(&path, &bytes).unwrap();
        let found = loaded(&path).err();
        assert!(matches!(found, Some(Error::BadFile { defect: FileDefect::Inconsistent(_), .. })), "{found:?}");
    }
}
