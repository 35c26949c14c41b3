//! Keys to select from, and the right answer by sorting.

use std::fmt;

use crate::vectors::Random;

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
    /// Nine in ten +∞, the others random.
    Infinite,
}

impl Keys {
    /// What a selection may meet besides random keys.
    pub const ADVERSARIAL: [Self; 5] =
        [Self::Ascending, Self::Descending, Self::Equal, Self::TwoValues, Self::Infinite];

    /// `rows` rows of `columns` keys, row after row; the same on every run.
    pub fn make(self, rows: usize, columns: usize) -> Vec<f32> {
        let mut random = Random::new(1);
        let key = |at: usize| {
            let column = at % columns;
            match self {
                Self::Random => random.unit(),
                Self::Ascending => column as f32,
                Self::Descending => (columns - 1 - column) as f32,
                Self::Equal => 0.5,
                Self::TwoValues => (random.bits() & 1) as f32,
                Self::Infinite => {
                    let key = random.unit();
                    if random.bits().is_multiple_of(10) { key } else { f32::INFINITY }
                }
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
            Self::Infinite => "90% infinite",
        })
    }
}

/// The `k` smallest of `row` and their positions, equal keys by lower position: a stable sort of the whole row. The keys
/// above have no NaN and no −0.
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
        assert!(row(Keys::Random).iter().all(|key| (0.0..1.0).contains(key)));
    }

    #[test]
    fn equal_keys_go_by_position() {
        assert_eq!(smallest(&[2.0, 1.0, f32::INFINITY, 1.0], 3), [(1.0, 1), (1.0, 3), (2.0, 0)]);
        assert_eq!(smallest(&[2.0], 3), [(2.0, 0)]);
    }
}
