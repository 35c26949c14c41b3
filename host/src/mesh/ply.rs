//! Stanford PLY: a header in text that declares elements and their properties, then their values in text or binary.

use super::triangles::Mesh;
use super::words::{number, words};
use crate::FileDefect;

/// Reads vertices and polygons. The caller checks that the corners exist.
pub(super) fn read(bytes: &[u8]) -> Result<Mesh, FileDefect> {
    let (Header { form, elements }, body) = Header::read(bytes)?;
    let mut values = Values { form, body, at: 0 };
    let mut mesh = Mesh::default();
    let mut corners = Vec::new();
    for element in &elements {
        // Elements without properties have no values.
        let count = if element.properties.is_empty() { 0 } else { element.count };
        for index in 0..count {
            let bad = |what| FileDefect::BadElement { element: element.kind.name(), index, what };
            let mut vertex = [0.0; 3];
            corners.clear();
            for property in &element.properties {
                let length = match property.length {
                    None => 1.0,
                    Some(of) => values.next(of).map_err(bad)?,
                };
                if !(length >= 0.0 && length.fract() == 0.0) {
                    return Err(bad("the length of a list is not a whole number"));
                }
                // Every value takes at least one byte, so reading ends with the file even if the length is wrong.
                for _ in 0..length as u64 {
                    let value = values.next(property.value).map_err(bad)?;
                    match property.role {
                        Role::Axis(axis) => vertex[axis] = value as f32,
                        Role::Corners if value >= 0.0 && value <= f64::from(u32::MAX) => corners.push(value as u32),
                        Role::Corners => return Err(bad("a corner's number is negative")),
                        Role::Other => {}
                    }
                }
            }
            match element.kind {
                Kind::Vertex if vertex.iter().all(|x| x.is_finite()) => mesh.vertices.push(vertex),
                Kind::Vertex => return Err(bad("a coordinate is not finite")),
                Kind::Face if corners.len() < 3 => return Err(bad("a face has at least three corners")),
                Kind::Face => mesh.push_polygon(&corners),
                Kind::Other => {}
            }
        }
    }
    values.end()?;
    Ok(mesh)
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Ascii,
    LittleEndian,
    BigEndian,
}

/// The kind of an element.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Vertex,
    Face,
    Other,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Vertex => "vertex",
            Self::Face => "face",
            Self::Other => "element",
        }
    }
}

/// The use of a property.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Axis(usize),
    Corners,
    Other,
}

#[derive(Clone, Copy, PartialEq)]
enum Type {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    F32,
    F64,
}

impl Type {
    fn of(word: Option<&[u8]>) -> Option<Type> {
        Some(match word? {
            b"char" | b"int8" => Self::I8,
            b"uchar" | b"uint8" => Self::U8,
            b"short" | b"int16" => Self::I16,
            b"ushort" | b"uint16" => Self::U16,
            b"int" | b"int32" => Self::I32,
            b"uint" | b"uint32" => Self::U32,
            b"float" | b"float32" => Self::F32,
            b"double" | b"float64" => Self::F64,
            _ => return None,
        })
    }

    fn is_whole(self) -> bool {
        !matches!(self, Self::F32 | Self::F64)
    }
}

struct Property {
    role: Role,
    /// The type of the length, if the property is a list.
    length: Option<Type>,
    value: Type,
}

struct Element {
    kind: Kind,
    count: u64,
    properties: Vec<Property>,
}

impl Element {
    fn has(&self, role: Role) -> usize {
        self.properties.iter().filter(|property| property.role == role).count()
    }
}

struct Header {
    form: Form,
    elements: Vec<Element>,
}

impl Header {
    /// Reads the header. Returns it with the bytes behind it.
    fn read(bytes: &[u8]) -> Result<(Header, &[u8]), FileDefect> {
        let mut rest = bytes;
        let mut form = None;
        let mut elements: Vec<Element> = Vec::new();
        for line in 1.. {
            let bad = |what| FileDefect::BadLine { line, what };
            let end = rest.iter().position(|&byte| byte == b'\n').ok_or(bad("the file ends within the header"))?;
            let (text, behind) = (&rest[..end], &rest[end + 1..]);
            rest = behind;
            let mut words = words(text);
            match (line, words.next()) {
                (1, Some(b"ply")) if words.next().is_none() => {}
                (1, _) => return Err(bad("the first line is not 'ply'")),
                (_, None | Some(b"comment" | b"obj_info")) => {}
                (_, Some(b"format")) => {
                    let named = match words.next() {
                        Some(b"ascii") => Some(Form::Ascii),
                        Some(b"binary_little_endian") => Some(Form::LittleEndian),
                        Some(b"binary_big_endian") => Some(Form::BigEndian),
                        _ => None,
                    };
                    if form.is_some() || named.is_none() || words.next() != Some(b"1.0") {
                        return Err(bad("expected one format: ascii, binary_little_endian or binary_big_endian 1.0"));
                    }
                    form = named;
                }
                (_, Some(b"element")) => {
                    let kind = match words.next() {
                        Some(b"vertex") => Kind::Vertex,
                        Some(b"face") => Kind::Face,
                        Some(_) => Kind::Other,
                        None => return Err(bad("an element without a name")),
                    };
                    if kind != Kind::Other && elements.iter().any(|element| element.kind == kind) {
                        return Err(bad("an element is declared twice"));
                    }
                    let count = words.next().and_then(number).ok_or(bad("an element without a count"))?;
                    elements.push(Element { kind, count, properties: Vec::new() });
                }
                (_, Some(b"property")) => {
                    let element = elements.last_mut().ok_or(bad("a property before the first element"))?;
                    let property = property(element.kind, &mut words);
                    element.properties.push(property.ok_or(bad("a property of an unknown type or in the wrong form"))?);
                }
                (_, Some(b"end_header")) => break,
                (_, Some(_)) => return Err(bad("unknown keyword")),
            }
        }
        let form = form.ok_or(FileDefect::BadHeader("no format is declared"))?;
        let of_kind = |kind| elements.iter().find(move |element: &&Element| element.kind == kind);
        let once = |element: &Element, roles: &[Role]| roles.iter().all(|&role| element.has(role) == 1);
        if !of_kind(Kind::Vertex).is_some_and(|vertex| once(vertex, &[Role::Axis(0), Role::Axis(1), Role::Axis(2)])) {
            return Err(FileDefect::BadHeader("the vertices do not have x, y and z once each"));
        }
        // A mesh may have vertices without faces.
        if !of_kind(Kind::Face).is_none_or(|face| once(face, &[Role::Corners])) {
            return Err(FileDefect::BadHeader("the faces do not have one list vertex_indices"));
        }
        Ok((Header { form, elements }, rest))
    }
}

/// Reads the words after `property`: `TYPE NAME` or `list TYPE TYPE NAME`.
fn property<'a>(kind: Kind, words: &mut impl Iterator<Item = &'a [u8]>) -> Option<Property> {
    let first = words.next()?;
    let length = if first == b"list" { Some(Type::of(words.next()).filter(|of| of.is_whole())?) } else { None };
    let value = Type::of(if length.is_some() { words.next() } else { Some(first) })?;
    let role = match (kind, words.next()?, length) {
        (Kind::Vertex, b"x", None) => Role::Axis(0),
        (Kind::Vertex, b"y", None) => Role::Axis(1),
        (Kind::Vertex, b"z", None) => Role::Axis(2),
        (Kind::Face, b"vertex_indices" | b"vertex_index", Some(_)) if value.is_whole() => Role::Corners,
        (Kind::Vertex, b"x" | b"y" | b"z", _) | (Kind::Face, b"vertex_indices" | b"vertex_index", _) => return None,
        _ => Role::Other,
    };
    if words.next().is_some() { None } else { Some(Property { role, length, value }) }
}

/// The values behind the header, one after the other.
struct Values<'a> {
    form: Form,
    body: &'a [u8],
    at: usize,
}

impl Values<'_> {
    /// Reads the next value as f64, which is exact, or returns the defect.
    fn next(&mut self, of: Type) -> Result<f64, &'static str> {
        match self.form {
            Form::Ascii => self.word(of),
            Form::LittleEndian => self.binary(of, false),
            Form::BigEndian => self.binary(of, true),
        }
    }

    fn word(&mut self, of: Type) -> Result<f64, &'static str> {
        let rest = &self.body[self.at..];
        let start = rest.iter().position(|byte| !byte.is_ascii_whitespace()).ok_or(ENDS)?;
        let length = rest[start..].iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len() - start);
        self.at += start + length;
        let word = &rest[start..start + length];
        let value = match of {
            Type::I8 => number::<i8>(word).map(f64::from),
            Type::U8 => number::<u8>(word).map(f64::from),
            Type::I16 => number::<i16>(word).map(f64::from),
            Type::U16 => number::<u16>(word).map(f64::from),
            Type::I32 => number::<i32>(word).map(f64::from),
            Type::U32 => number::<u32>(word).map(f64::from),
            Type::F32 => number::<f32>(word).map(f64::from),
            Type::F64 => number::<f64>(word),
        };
        value.ok_or("a value is not valid for its type")
    }

    fn binary(&mut self, of: Type, big: bool) -> Result<f64, &'static str> {
        macro_rules! take {
            ($t:ty) => {{
                let bytes = self.body[self.at..].first_chunk().ok_or(ENDS)?;
                self.at += bytes.len();
                f64::from(if big { <$t>::from_be_bytes(*bytes) } else { <$t>::from_le_bytes(*bytes) })
            }};
        }
        Ok(match of {
            Type::I8 => take!(i8),
            Type::U8 => take!(u8),
            Type::I16 => take!(i16),
            Type::U16 => take!(u16),
            Type::I32 => take!(i32),
            Type::U32 => take!(u32),
            Type::F32 => take!(f32),
            Type::F64 => take!(f64),
        })
    }

    /// Checks that no bytes are left, except white space in text.
    fn end(&self) -> Result<(), FileDefect> {
        let rest = &self.body[self.at..];
        let rest = if self.form == Form::Ascii { rest.trim_ascii() } else { rest };
        if rest.is_empty() {
            return Ok(());
        }
        Err(FileDefect::Oversized { expected: self.at as u64, actual: self.body.len() as u64 })
    }
}

const ENDS: &str = "the file ends within it";
