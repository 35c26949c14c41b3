//! The constructors of rows, which check that the keys have them.

use super::Key;
use super::layout::{Layout, Rows};
use crate::validate::check_length;
use crate::{Error, Result};

/// Largest number of keys of a row.
pub const MAX_COLUMNS: usize = i32::MAX as usize;

/// Checks that the number called `what` of a row is within a range.
pub(super) fn check_row(what: &'static str, row: usize, value: u64, (least, most): (u64, u64)) -> Result<()> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(Error::BadRow { what, row, value, least, most }) }
}

/// Checks that a row may have `columns` keys.
pub(super) fn check_columns(row: usize, columns: u64) -> Result<()> {
    check_row("length", row, columns, (0, MAX_COLUMNS as u64))
}

impl<'a, K: Key> Rows<'a, K> {
    /// Rows of `columns` keys, one after the other. With `columns` = 0 there are no rows ([`Rows::strided`] can make
    /// rows without keys).
    ///
    /// # Errors
    /// [`Error::Ragged`] if `keys` is not a whole number of rows; [`Error::BadRow`] above [`MAX_COLUMNS`].
    pub fn contiguous(keys: &'a [K], columns: usize) -> Result<Self> {
        check_columns(0, columns as u64)?;
        let rows = keys.len().checked_div(columns).unwrap_or(0);
        if rows * columns != keys.len() {
            return Err(Error::Ragged { what: "keys", len: keys.len(), size: columns });
        }
        Ok(Self::uniform(keys, rows, columns, columns))
    }

    /// `rows` rows of `columns` keys, row r from `keys[r * stride]`. Rows may overlap (`stride` < `columns`). The keys
    /// may end with the last row.
    ///
    /// # Errors
    /// [`Error::BadRow`] if a row extends past the end of `keys`, or has more than [`MAX_COLUMNS`].
    pub fn strided(keys: &'a [K], rows: usize, columns: usize, stride: usize) -> Result<Self> {
        check_columns(0, columns as u64)?;
        // Rows without keys may start anywhere.
        if rows > 0 && columns > 0 {
            let end = (rows - 1).checked_mul(stride).and_then(|last| last.checked_add(columns));
            check_row("end", rows - 1, end.map_or(u64::MAX, |end| end as u64), (0, keys.len() as u64))?;
        }
        Ok(Self::uniform(keys, rows, columns, stride))
    }

    fn uniform(keys: &'a [K], rows: usize, columns: usize, stride: usize) -> Self {
        let longest = if rows == 0 { 0 } else { columns };
        Self { keys, layout: Layout::Strided { rows, columns, stride }, lengths: None, columns: longest }
    }

    /// Rows of any length (compressed sparse rows): row r is `keys[starts[r]..starts[r + 1]]`. If `starts` has at most
    /// one entry, there are no rows. O(rows).
    ///
    /// # Errors
    /// [`Error::BadRow`] if the entries do not ascend, the last one is above `keys.len()`, or a row has more than
    /// [`MAX_COLUMNS`] keys.
    pub fn ragged(keys: &'a [K], starts: &'a [u64]) -> Result<Self> {
        let mut columns = 0;
        for (row, pair) in starts.windows(2).enumerate() {
            check_row("end", row, pair[1], (pair[0], u64::MAX))?;
            let length = pair[1] - pair[0];
            check_columns(row, length)?;
            columns = columns.max(length as usize);
        }
        if let Some(&end) = starts.last() {
            check_row("end", starts.len().saturating_sub(2), end, (0, keys.len() as u64))?;
        }
        Ok(Self { keys, layout: Layout::Ragged { starts }, lengths: None, columns })
    }

    /// Rows with only the first `lengths[r]` keys of row r. These lengths replace earlier ones. O(rows).
    ///
    /// # Errors
    /// [`Error::WrongLength`] if the numbers of lengths and rows differ; [`Error::BadRow`] for a length above that of
    /// the row.
    pub fn with_lengths(self, lengths: &'a [u32]) -> Result<Self> {
        let rows = self.len();
        check_length("lengths", rows, lengths.len())?;
        let whole = Self { lengths: None, ..self };
        for (row, &length) in lengths.iter().enumerate() {
            check_row("length", row, length.into(), (0, whole.row(row).len() as u64))?;
        }
        let columns = lengths.iter().max().map_or(0, |&longest| longest as usize);
        Ok(Self { lengths: Some(lengths), columns, ..self })
    }
}
