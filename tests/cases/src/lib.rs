//! Random cases of exact search and k-selection, and naive references: what `warpann verify` and the tests of warpann
//! have in common.
//!
//! | module | content |
//! |---|---|
//! | [`mod@reference`] | the right results: naive code in float64 that shares no code with warpann |
//! | [`vectors`] | vectors of every distribution and magnitude |
//! | [`keys`] | keys of every distribution and of every bits |
//! | [`exact`] | a case of exact search |
//! | [`selection`] | a case of k-selection |
//!
//! A case follows from a sequence of random numbers ([`test_random::Random`]), so it follows from a seed.
#![forbid(unsafe_code)]

pub mod exact;
pub mod keys;
pub mod reference;
pub mod selection;
pub mod vectors;

use std::fmt::{self, Debug};

use warpann::{NONE, Neighbors};

/// Calls a function of an element type, and of the arguments. The element type is one of those of the tests.
#[macro_export]
macro_rules! by_element {
    ($element:expr, $run:ident($($argument:expr),*)) => {
        match $element {
            warpann::ElementType::F32 => $run::<f32>($($argument),*),
            warpann::ElementType::F16 => $run::<half::f16>($($argument),*),
            warpann::ElementType::Bf16 => $run::<half::bf16>($($argument),*),
            warpann::ElementType::U8 => $run::<u8>($($argument),*),
            warpann::ElementType::I8 => $run::<i8>($($argument),*),
            other => unreachable!("no case has vectors of {other}"),
        }
    };
}

/// A slot of a result: id and distance of a neighbour, or position and key. No id in an empty slot, and neither in one
/// that a result lacks.
pub type Slot = (Option<u64>, Option<f32>);

/// The first slot in which a result differs from what it must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Number of the query, or of the row of keys.
    pub query: usize,
    /// Place among the results of the query.
    pub place: usize,
    /// Id and distance that the slot must hold.
    pub expected: Slot,
    /// Id and distance in this slot of the result.
    pub found: Slot,
}

impl Difference {
    /// Slot number `at` of both results.
    pub fn at(at: usize, expected: &Neighbors, found: &Neighbors) -> Self {
        let slot = |of: &Neighbors| (of.ids.get(at).copied().filter(|&id| id != NONE), of.distances.get(at).copied());
        let k = expected.k.max(1);
        Self { query: at / k, place: at % k, expected: slot(expected), found: slot(found) }
    }
}

/// Checks that both have the same ids, and the same bits of distances.
///
/// # Errors
/// The first slot in which they differ, or that only one of them has.
pub fn same(expected: &Neighbors, found: &Neighbors) -> Result<(), Difference> {
    let bits = |of: &Neighbors, at: usize| (of.ids.get(at).copied(), of.distances.get(at).map(|d| d.to_bits()));
    let lengths = [expected, found].map(|of| of.ids.len().max(of.distances.len()));
    let differs = |&at: &usize| expected.k != found.k || bits(expected, at) != bits(found, at);
    let first = (0..lengths[0].max(lengths[1])).find(differs);
    first.map_or(Ok(()), |at| Err(Difference::at(at, expected, found)))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |(id, distance): Slot| {
            let id = id.map_or("none".to_owned(), |id| id.to_string());
            let distance = distance.map_or("none".to_owned(), |d| format!("{d:?} (bits {:#010x})", d.to_bits()));
            format!("id {id}, distance {distance}")
        };
        let Self { query, place, expected, found } = *self;
        write!(f, "query {query}, place {place}: {}; expected {}", text(found), text(expected))
    }
}

/// Why a case fails.
#[derive(Debug)]
pub enum Failure {
    /// The library returns an error.
    Library(warpann::Error),
    /// A result differs from its definition.
    Different(Difference),
    /// Anything else, in words.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => write!(f, "{error}"),
            Self::Different(difference) => write!(f, "{difference}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl From<warpann::Error> for Failure {
    fn from(error: warpann::Error) -> Self {
        Self::Library(error)
    }
}

impl From<Difference> for Failure {
    fn from(difference: Difference) -> Self {
        Self::Different(difference)
    }
}

/// The name of a variant in lower case, without its fields.
pub fn word(variant: &impl Debug) -> String {
    let text = format!("{variant:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    text[..end].to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_seen() {
        let expected = Neighbors { k: 2, ids: vec![3, 1, 4, NONE], distances: vec![0.0, 1.0, 0.5, f32::INFINITY] };
        let changed = |change: fn(&mut Neighbors)| {
            let mut found = expected.clone();
            change(&mut found);
            same(&expected, &found).err().map(|difference| 2 * difference.query + difference.place)
        };
        assert_eq!(changed(|_| {}), None);
        assert_eq!(changed(|found| found.ids[2] = 5), Some(2));
        assert_eq!(changed(|found| found.ids[3] = 0), Some(3));
        assert_eq!(changed(|found| found.distances[0] = -0.0), Some(0));
        assert_eq!(changed(|found| found.distances[1] = 1.0f32.next_up()), Some(1));
        assert_eq!(changed(|found| found.ids.truncate(3)), Some(3));
        assert_eq!(changed(|found| found.distances.push(0.0)), Some(4));
        assert_eq!(changed(|found| found.k = 4), Some(0));
    }

    #[test]
    fn words_have_no_fields() {
        assert_eq!(word(&keys::KeyData::Infinite { percent: 0.5 }), "infinite");
        assert_eq!(word(&vectors::Magnitude::FarRow(3)), "farrow");
        assert_eq!(word(&vectors::Twist::None), "none");
    }
}
