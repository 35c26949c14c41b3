//! Keys to select from, and the right answer by sorting.

use std::fmt;

use test_random::Random;

use crate::vectors;

/// How the keys of a row are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Evenly between 0 and 1.
    Random,
    /// 0, 1, 2 ..: the first k stay the best, and nothing is inserted after them.
    Ascending,
    /// .. 2, 1, 0: every key is better than all before it, the most insertions that a queue can meet.
    Descending,
    /// All the same: only positions decide.
    Equal,
    /// 0 or 1, evenly: more ties at the k-th place than k.
    TwoValues,
    /// Between 1 and 1 + 2^−12: the upper twenty bits are the same.
    EqualLeadingBits,
    /// Nine in ten +∞, the others random.
    Infinite,
    /// All but one in a thousand +∞: most rows have fewer other keys than k.
    MostlyInfinite,
    /// Half of them NaN, the others random.
    HalfNan,
    /// All keys are NaN.
    Nan,
    /// Between 1 and 2, but for one far below.
    Outlier,
}

impl Keys {
    /// All distributions except [`Keys::Random`].
    pub const ADVERSARIAL: [Self; 10] = [
        Self::Ascending,
        Self::Descending,
        Self::Equal,
        Self::TwoValues,
        Self::EqualLeadingBits,
        Self::Infinite,
        Self::MostlyInfinite,
        Self::HalfNan,
        Self::Nan,
        Self::Outlier,
    ];

    /// `rows` rows of `columns` keys, row after row; the same on every run.
    pub fn make(self, rows: usize, columns: usize) -> Vec<f32> {
        let mut random = vectors::random(1);
        // One key in `many` is random, the others are `other`.
        let one_in = |random: &mut Random, many: u64, other: f32| {
            let key = random.unit_f32();
            if random.bits().is_multiple_of(many) { key } else { other }
        };
        let key = |at: usize| {
            let column = at % columns;
            match self {
                Self::Random => random.unit_f32(),
                Self::Ascending => column as f32,
                Self::Descending => (columns - 1 - column) as f32,
                Self::Equal => 0.5,
                Self::TwoValues => (random.bits() & 1) as f32,
                // The spacing of keys here is 2^−23.
                Self::EqualLeadingBits => f32::from_bits(1f32.to_bits() | (random.bits() % (1 << 11)) as u32),
                Self::Infinite => one_in(&mut random, 10, f32::INFINITY),
                Self::MostlyInfinite => one_in(&mut random, 1000, f32::INFINITY),
                Self::HalfNan => one_in(&mut random, 2, f32::NAN),
                Self::Nan => f32::NAN,
                Self::Outlier if column == columns / 2 => -f32::MAX,
                Self::Outlier => 1.0 + random.unit_f32(),
            }
        };
        (0..rows * columns).map(key).collect()
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Ascending => "ascending",
            Self::Descending => "descending",
            Self::Equal => "equal",
            Self::TwoValues => "two values",
            Self::EqualLeadingBits => "equal leading bits",
            Self::Infinite => "90% infinite",
            Self::MostlyInfinite => "99.9% infinite",
            Self::HalfNan => "half NaN",
            Self::Nan => "NaN",
            Self::Outlier => "outlier",
        })
    }
}

/// The `k` smallest of `row` and their positions, equal keys by lower position: a stable sort of the whole row. The
/// keys above have no −0, and the one NaN, which comes last.
pub fn smallest(row: &[f32], k: usize) -> Vec<(f32, u32)> {
    let mut sorted: Vec<(f32, u32)> = row.iter().copied().zip(0..).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    sorted.truncate(k);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_their_names_say() {
        let row = |keys: Keys| keys.make(2, 1000);
        for keys in Keys::ADVERSARIAL {
            assert_eq!(row(keys).len(), 2000, "{keys}");
        }
        assert!(row(Keys::Ascending)[1000..].is_sorted());
        assert!(row(Keys::Descending)[..1000].iter().rev().is_sorted());
        assert!(row(Keys::Equal).iter().all(|&key| key == 0.5));
        let ones = row(Keys::TwoValues).iter().filter(|&&key| key == 1.0).count();
        assert!((800..1200).contains(&ones), "{ones}");
        let infinite = row(Keys::Infinite).iter().filter(|key| key.is_infinite()).count();
        assert!((1700..1900).contains(&infinite), "{infinite}");
        let infinite = Keys::MostlyInfinite.make(2, 100_000).iter().filter(|key| key.is_infinite()).count();
        assert!((199_700..199_900).contains(&infinite), "{infinite}");
        let nan = row(Keys::HalfNan).iter().filter(|key| key.is_nan()).count();
        assert!((900..1100).contains(&nan), "{nan}");
        assert!(row(Keys::Nan).iter().all(|key| key.is_nan()));
        let leading = row(Keys::EqualLeadingBits);
        assert!(leading.iter().all(|key| (1.0..1.0 + 2f32.powi(-12)).contains(key)));
        assert!(leading.iter().any(|&key| key > 1.0 + 2f32.powi(-13)));
        assert_eq!(row(Keys::Outlier).iter().filter(|&&key| key < 1.0).count(), 2);
        assert!(row(Keys::Random).iter().all(|key| (0.0..1.0).contains(key)));
    }

    #[test]
    fn equal_keys_go_by_position() {
        assert_eq!(smallest(&[2.0, 1.0, f32::INFINITY, 1.0], 3), [(1.0, 1), (1.0, 3), (2.0, 0)]);
        assert_eq!(smallest(&[2.0], 3), [(2.0, 0)]);
        assert_eq!(smallest(&[f32::NAN, f32::INFINITY], 1), [(f32::INFINITY, 1)]);
    }
}
