//! NumPy's npy format, versions 1 to 3: "\x93NUMPY", version, header length, a Python dictionary, the values.

use super::bytes::{Flat, check_size, extent, reserve, u32_at};
use super::ids::{GroundTruth, IdMatrix};
use crate::NONE;
use crate::element::ElementType;
use crate::error::FileDefect;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
const VECTOR_TYPES: &str = "<f4, <f2, <f8, |u1 or |i1";
const ID_TYPES: &str = "<i4, <u4, <i8 or <u8";

/// The content of the dictionary.
struct Header {
    descr: String,
    rows: u64,
    columns: u64,
    /// Offset of the first value in bytes.
    at: usize,
}

/// The matrix of a file of vectors.
pub(super) enum Matrix {
    /// The values are components.
    Flat(Flat),
    /// The values are f64, `rows · dim` from byte `at` on. No vectors have this element type.
    Float64 { rows: usize, dim: usize, at: usize },
}

/// The matrix of a file of vectors.
pub(super) fn matrix(bytes: &[u8]) -> Result<Matrix, FileDefect> {
    let header = header(bytes)?;
    let element = match header.descr.as_str() {
        "<f4" => Some(ElementType::F32),
        "<f2" => Some(ElementType::F16),
        "|u1" | "<u1" | "u1" => Some(ElementType::U8),
        "|i1" | "<i1" | "i1" => Some(ElementType::I8),
        "<f8" => None,
        _ => return Err(FileDefect::WrongElement { actual: header.descr, expected: VECTOR_TYPES }),
    };
    check_size(
        extent(header.rows, header.columns, element.map_or(8, ElementType::size), header.at)?,
        bytes.len() as u64,
    )?;
    let (rows, dim, at) = (header.rows as usize, header.columns as usize, header.at);
    Ok(match element {
        Some(element) => Matrix::Flat(Flat { rows, dim, at, element }),
        None => Matrix::Float64 { rows, dim, at },
    })
}

/// The matrix of a file of ids.
pub(super) fn ids(bytes: &[u8]) -> Result<GroundTruth, FileDefect> {
    let header = header(bytes)?;
    // Each reader maps −1, or all ones in unsigned types, to NONE and refuses other negative values.
    let (size, read): (usize, ReadId) = match header.descr.as_str() {
        "<i4" => (4, |id| signed(bytemuck::pod_read_unaligned::<i32>(id).into())),
        "<i8" => (8, |id| signed(bytemuck::pod_read_unaligned::<i64>(id))),
        "<u4" => (4, |id| match bytemuck::pod_read_unaligned::<u32>(id) {
            u32::MAX => Ok(NONE),
            id => Ok(id.into()),
        }),
        "<u8" => (8, |id| Ok(bytemuck::pod_read_unaligned::<u64>(id))),
        _ => return Err(FileDefect::WrongElement { actual: header.descr, expected: ID_TYPES }),
    };
    check_size(extent(header.rows, header.columns, size, header.at)?, bytes.len() as u64)?;
    let (rows, k) = (header.rows as usize, header.columns as usize);
    let mut ids = reserve(rows, k)?;
    for (i, id) in bytes[header.at..].chunks_exact(size).enumerate() {
        let id = read(id).map_err(|id| FileDefect::BadId { row: (i / k) as u64, column: (i % k) as u64, id })?;
        ids.push(id);
    }
    Ok(GroundTruth { ids: IdMatrix { rows, k, ids }, distances: None })
}

/// Reads one id of a type's size. The error is a negative id that does not mean NONE.
type ReadId = fn(&[u8]) -> Result<u64, i64>;

fn signed(id: i64) -> Result<u64, i64> {
    if id == -1 { Ok(NONE) } else { u64::try_from(id).map_err(|_| id) }
}

/// Makes a version 1 header for a matrix in C order. The values behind it start at a multiple of 64 bytes.
pub(super) fn write_header(descr: &str, rows: usize, columns: usize) -> Vec<u8> {
    let mut dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Ten bytes precede the dictionary and a line feed ends it. The header has at most 120 bytes, so its length fits
    // the u16 of version 1.
    while (10 + dictionary.len() + 1) % 64 != 0 {
        dictionary.push(' ');
    }
    dictionary.push('\n');
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend((dictionary.len() as u16).to_le_bytes());
    header.extend(dictionary.as_bytes());
    header
}

fn header(bytes: &[u8]) -> Result<Header, FileDefect> {
    let truncated = |expected: usize| FileDefect::Truncated { expected: expected as u64, actual: bytes.len() as u64 };
    if !bytes.starts_with(&MAGIC[..bytes.len().min(6)]) {
        return Err(FileDefect::BadHeader("not a NumPy file: the first six bytes differ from \\x93NUMPY"));
    }
    if bytes.len() < 8 {
        return Err(truncated(10));
    }
    let prefix = match bytes[6] {
        1 => 10,
        2 | 3 => 12,
        _ => return Err(FileDefect::BadHeader("NumPy format version other than 1, 2 and 3")),
    };
    if bytes.len() < prefix {
        return Err(truncated(prefix));
    }
    let length = match prefix {
        10 => usize::from(u16::from_le_bytes([bytes[8], bytes[9]])),
        _ => u32_at(bytes, 8) as usize,
    };
    let at = prefix + length;
    if bytes.len() < at {
        return Err(truncated(at));
    }
    let text = std::str::from_utf8(&bytes[prefix..at]).map_err(|_| FileDefect::BadHeader("the header is not text"))?;
    let (descr, rows, columns) = Parser { rest: text }.dictionary()?;
    if rows > 0 && columns == 0 {
        return Err(FileDefect::BadDimension(0));
    }
    Ok(Header { descr, rows, columns, at })
}

/// Reads the dictionary: the three keys, each once, in any order.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn dictionary(mut self) -> Result<(String, u64, u64), FileDefect> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.string()?;
            self.expect(':')?;
            let again = match key {
                "descr" => descr
                    .replace(self.string().map_err(|_| {
                        FileDefect::BadHeader("'descr' is not one plain type: structured arrays are not supported")
                    })?)
                    .is_some(),
                "fortran_order" => fortran.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => return Err(FileDefect::BadHeader("unknown key in the NumPy dictionary")),
            };
            if again {
                return Err(FileDefect::BadHeader("a key occurs twice in the NumPy dictionary"));
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.rest.trim_start().is_empty() {
            return Err(FileDefect::BadHeader("text after the NumPy dictionary"));
        }
        let (Some(descr), Some(fortran), Some((rows, columns))) = (descr, fortran, shape) else {
            return Err(FileDefect::BadHeader("'descr', 'fortran_order' or 'shape' is missing"));
        };
        if fortran {
            return Err(FileDefect::BadHeader("the array is in Fortran order; save it in C order"));
        }
        Ok((descr.to_owned(), rows, columns))
    }

    fn take(&mut self, token: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: char) -> Result<(), FileDefect> {
        if self.take(token) { Ok(()) } else { Err(FileDefect::BadHeader("malformed NumPy dictionary")) }
    }

    fn string(&mut self) -> Result<&'a str, FileDefect> {
        let quote = if self.take('\'') { '\'' } else { self.expect('"').map(|()| '"')? };
        let (text, rest) = self.rest.split_once(quote).ok_or(FileDefect::BadHeader("malformed NumPy dictionary"))?;
        self.rest = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, FileDefect> {
        let rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(FileDefect::BadHeader("'fortran_order' is neither True nor False"))
    }

    /// `(rows, columns)`; a one-dimensional shape is a single row.
    fn shape(&mut self) -> Result<(u64, u64), FileDefect> {
        self.expect('(')?;
        let mut extents = [0u64; 2];
        let mut count = 0;
        while !self.take(')') {
            let number = self.number()?;
            *extents.get_mut(count).ok_or(FileDefect::BadHeader("more than two dimensions"))? = number;
            count += 1;
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        match count {
            0 => Err(FileDefect::BadHeader("a single number, not an array")),
            1 => Ok((1, extents[0])),
            _ => Ok((extents[0], extents[1])),
        }
    }

    fn number(&mut self) -> Result<u64, FileDefect> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(end);
        // Python 2 wrote long integers with an L.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        digits.parse().map_err(|_| FileDefect::BadHeader("'shape' is not a tuple of sizes"))
    }
}
