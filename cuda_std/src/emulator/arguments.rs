//! The addresses that a launch may access: the ranges of its arguments.
//!
//! Ranges may touch and overlap. They are cut into disjoint pieces, each of which the launch may write as a whole or
//! not at all. Two pieces that touch differ in this, so most accesses lie in one piece. An access that lies in several
//! pieces is looked up each time.

use super::{
    registry::{Live, Range},
    violation::{Nearest, ViolationKind},
};
use crate::launch::ArgumentRange;

/// Largest distance in bytes from an address to the nearest argument at which a message names the argument. An address
/// farther away has nothing to do with it.
const FAR: usize = 1 << 30;

/// An argument and its range of addresses.
struct Argument {
    name: &'static str,
    range: Range,
}

/// The memory that a launch may access.
pub struct Arguments {
    arguments: Vec<Argument>,
    /// The disjoint pieces, by ascending address.
    pieces: Vec<Range>,
}

/// The permissions of a launch for the bytes of an access.
pub struct Coverage {
    /// Whether the launch may write any of the bytes.
    pub writable: bool,
    /// Address of the first byte that the launch may only read.
    pub read_only: Option<usize>,
}

impl Arguments {
    /// The memory of the arguments `given`. Each must lie in one live buffer, unless it has no elements.
    pub fn new(given: impl Iterator<Item = ArgumentRange>) -> Result<Self, ViolationKind> {
        let live = Live::lock();
        let arguments = given.map(|range| resolved(range, &live)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { pieces: pieces(&arguments), arguments })
    }

    /// The piece that holds `bytes` bytes at `address`, if one holds all of them.
    pub fn piece(&self, address: usize, bytes: usize) -> Option<Range> {
        let count = self.pieces.partition_point(|piece| piece.start <= address);
        self.pieces[..count].last().copied().filter(|piece| piece.holds(address, bytes))
    }

    /// The permissions for `bytes` bytes at `address`, if pieces that touch hold all of them together.
    pub fn coverage(&self, address: usize, bytes: usize) -> Option<Coverage> {
        let first = self.pieces.partition_point(|piece| piece.start <= address).checked_sub(1)?;
        let mut coverage = Coverage { writable: false, read_only: None };
        let mut at = address;
        for piece in &self.pieces[first..] {
            if !piece.holds(at, 1) {
                return None;
            }
            if piece.writable {
                coverage.writable = true;
            } else {
                coverage.read_only.get_or_insert(at);
            }
            at = piece.start + piece.len;
            if at - address >= bytes {
                return Some(coverage);
            }
        }
        None
    }

    /// The argument that is nearest to `bytes` bytes at `address`; of two equally near ones, the one that starts below.
    /// `None` if all are more than [`FAR`] away.
    pub fn nearest(&self, address: usize, bytes: usize) -> Option<Nearest> {
        let distance = |&Range { start, len, .. }: &Range| match address.checked_sub(start) {
            Some(offset) => (offset.saturating_sub(len), false),
            None => ((start - address).saturating_sub(bytes), true),
        };
        let nearest = self.arguments.iter().min_by_key(|argument| distance(&argument.range))?;
        (distance(&nearest.range).0 <= FAR).then(|| nearest.at(address))
    }

    /// The first argument that holds the byte at `address`.
    pub fn holder(&self, address: usize) -> Option<Nearest> {
        let holder = self.arguments.iter().find(|argument| argument.range.holds(address, 1))?;
        Some(holder.at(address))
    }
}

impl Argument {
    /// The place of `address` relative to this argument.
    fn at(&self, address: usize) -> Nearest {
        let Range { start, len, .. } = self.range;
        Nearest { parameter: self.name, offset: address.wrapping_sub(start).cast_signed(), len }
    }
}

/// The argument of a range, if it lies in a live buffer. An argument of unknown length extends to the end of its
/// buffer, or has no bytes if it lies in no buffer.
fn resolved(range: ArgumentRange, live: &Live) -> Result<Argument, ViolationKind> {
    let ArgumentRange { name, address, bytes, writable } = range;
    let len = match (bytes, live.bytes_from(address)) {
        (Some(0), _) => 0,
        (None, available) => available.unwrap_or(0),
        (Some(bytes), Some(available)) if bytes <= available => bytes,
        (Some(bytes), Some(available)) => {
            return Err(ViolationKind::ArgumentTooLong { parameter: name, bytes, available });
        }
        (Some(bytes), None) if live.is_freed(address) => {
            return Err(ViolationKind::ArgumentFreed { parameter: name, address, bytes });
        }
        (Some(bytes), None) => return Err(ViolationKind::ArgumentNotGlobal { parameter: name, address, bytes }),
    };
    Ok(Argument { name, range: Range { start: address, len, writable } })
}

/// The union of the ranges as disjoint pieces, by ascending address.
fn pieces(arguments: &[Argument]) -> Vec<Range> {
    // The edges of ranges: (address, change of the number of ranges, change of the number of writable ranges).
    let mut edges: Vec<(usize, i32, i32)> = Vec::with_capacity(2 * arguments.len());
    for Argument { range: Range { start, len, writable }, .. } in arguments {
        let writable = i32::from(*writable);
        edges.extend([(*start, 1, writable), (start + len, -1, -writable)]);
    }
    edges.sort_unstable_by_key(|&(address, ..)| address);
    let mut pieces: Vec<Range> = Vec::with_capacity(edges.len());
    let (mut start, mut holders, mut writers) = (0, 0, 0);
    for (address, more_holders, more_writers) in edges {
        if holders > 0 && start < address {
            let writable = writers > 0;
            match pieces.last_mut() {
                Some(last) if last.start + last.len == start && last.writable == writable => {
                    last.len = address - last.start;
                }
                _ => pieces.push(Range { start, len: address - start, writable }),
            }
        }
        start = address;
        holders += more_holders;
        writers += more_writers;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(ranges: &[(usize, usize, bool)]) -> Arguments {
        let arguments: Vec<_> = ranges
            .iter()
            .zip(["a", "b", "c", "d"])
            .map(|(&(start, len, writable), name)| Argument { name, range: Range { start, len, writable } })
            .collect();
        Arguments { pieces: pieces(&arguments), arguments }
    }

    fn pieces_of(ranges: &[(usize, usize, bool)]) -> Vec<(usize, usize, bool)> {
        arguments(ranges).pieces.iter().map(|piece| (piece.start, piece.len, piece.writable)).collect()
    }

    #[test]
    fn pieces_are_the_union() {
        assert!(pieces_of(&[]).is_empty());
        assert!(pieces_of(&[(64, 0, true)]).is_empty());
        assert_eq!(pieces_of(&[(96, 32, false), (0, 64, false)]), [(0, 64, false), (96, 32, false)]);
        assert_eq!(pieces_of(&[(0, 64, false), (64, 32, false)]), [(0, 96, false)], "touching");
        assert_eq!(pieces_of(&[(0, 64, false), (64, 32, true)]), [(0, 64, false), (64, 32, true)]);
        assert_eq!(pieces_of(&[(0, 64, true), (32, 64, true)]), [(0, 96, true)], "overlapping");
        assert_eq!(pieces_of(&[(0, 64, false), (16, 8, true)]), [(0, 16, false), (16, 8, true), (24, 40, false)]);
        assert_eq!(pieces_of(&[(0, 64, true), (16, 8, false)]), [(0, 64, true)], "one of two may be written");
        assert_eq!(pieces_of(&[(0, 16, true), (0, 16, false), (8, 16, false)]), [(0, 16, true), (16, 8, false)]);
        assert_eq!(
            pieces_of(&[(0, 16, true), (16, 0, false), (16, 16, true)]),
            [(0, 32, true)],
            "an empty one between"
        );
    }

    #[test]
    fn coverage_is_that_of_all_bytes() {
        let arguments = arguments(&[(0, 64, false), (64, 32, true), (100, 4, false)]);
        let coverage =
            |address, bytes| arguments.coverage(address, bytes).map(|coverage| (coverage.writable, coverage.read_only));
        assert_eq!(coverage(4, 60), Some((false, Some(4))));
        assert_eq!(coverage(60, 8), Some((true, Some(60))));
        assert_eq!(coverage(64, 32), Some((true, None)));
        assert_eq!(coverage(92, 8), None);
        assert_eq!(coverage(96, 4), None);
        assert_eq!(coverage(102, 4), None);
        assert!(arguments.piece(60, 8).is_none());
        assert_eq!(arguments.piece(60, 4).map(|piece| piece.len), Some(64));
        // Compare every byte with the ranges.
        for byte in 0..110 {
            let inside = byte < 96 || (100..104).contains(&byte);
            assert_eq!(arguments.piece(byte, 1).is_some(), inside, "{byte}");
            assert_eq!(coverage(byte, 1).is_some(), inside, "{byte}");
        }
    }

    #[test]
    fn the_nearest_argument() {
        let arguments = arguments(&[(1000, 100, false), (1200, 0, true), (FAR * 2, 8, false)]);
        let nearest =
            |address, bytes| arguments.nearest(address, bytes).map(|nearest| (nearest.parameter, nearest.offset));
        assert_eq!(nearest(1100, 4), Some(("a", 100)));
        assert_eq!(nearest(1098, 4), Some(("a", 98)));
        assert_eq!(nearest(996, 4), Some(("a", -4)));
        assert_eq!(nearest(1149, 2), Some(("a", 149)), "equally near");
        assert_eq!(nearest(1190, 4), Some(("b", -10)));
        assert_eq!(nearest(FAR * 2 - 8, 4), Some(("c", -8)));
        assert_eq!(nearest(FAR * 4, 4), None);
        assert_eq!(arguments.holder(1050).map(|holder| holder.parameter), Some("a"));
        assert!(arguments.holder(1100).is_none());
    }
}
