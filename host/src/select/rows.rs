//! The layout of the rows of a batch in memory.

use super::Key;
use crate::validate::check_length;
use crate::{Error, Result};

/// A batch of rows of keys in host memory: contiguous, strided or ragged.
///
/// ```
/// use warpann::select::Rows;
///
/// let keys = [5, 1, 4, 2, 3, 0u32];
/// assert_eq!(Rows::contiguous(&keys, 3)?.row(1), [2, 3, 0]);
/// // Rows may lie apart, and overlap: here every window of four keys.
/// assert_eq!(Rows::strided(&keys, 3, 4, 1)?.row(2), [4, 2, 3, 0]);
/// // Rows of any length, one after the other.
/// let ragged = Rows::ragged(&keys, &[0, 2, 2, 6])?;
/// assert_eq!((ragged.len(), ragged.columns()), (3, 4));
/// assert_eq!(ragged.row(1), []);
/// // Only the first keys of each row.
/// assert_eq!(Rows::contiguous(&keys, 3)?.with_lengths(&[2, 0])?.row(0), [5, 1]);
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, K> {
    keys: &'a [K],
    layout: Layout<'a>,
    lengths: Option<&'a [u32]>,
    columns: usize,
}

/// The start and the length of each row. The constructors of [`Rows`] check them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout<'a> {
    /// Row r has `columns` keys from r · `stride`.
    Strided {
        /// Number of rows.
        rows: usize,
        /// Number of keys of a row.
        columns: usize,
        /// Distance from the start of a row to the start of the next row, in keys.
        stride: usize,
    },
    /// Row r has the keys from `starts[r]` up to `starts[r + 1]`.
    Ragged {
        /// One entry for each row, and the end of the last row.
        starts: &'a [u64],
    },
}

/// Largest number of keys of a row.
pub const MAX_COLUMNS: usize = i32::MAX as usize;

/// Checks that the number called `what` of a row is within a range.
pub(super) fn check_row(what: &'static str, row: usize, value: u64, (least, most): (u64, u64)) -> Result<()> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(Error::BadRow { what, row, value, least, most }) }
}

/// Checks that a row may have so many keys.
pub(super) fn check_columns(row: usize, columns: u64) -> Result<()> {
    check_row("length", row, columns, (0, MAX_COLUMNS as u64))
}

impl<'a, K: Key> Rows<'a, K> {
    /// Rows of `columns` keys, one after the other. With `columns` = 0 there are no rows ([`Rows::strided`] can make rows without keys).
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

    /// `rows` rows of `columns` keys, row r from `keys[r * stride]`. Rows may overlap (`stride` < `columns`). The keys may end with the
    /// last row.
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

    /// Rows of any length (compressed sparse rows): row r is `keys[starts[r]..starts[r + 1]]`. If `starts` has at most one entry, there are
    /// no rows. O(rows).
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

    /// Number of rows.
    pub fn len(&self) -> usize {
        match self.layout {
            Layout::Strided { rows, .. } => rows,
            Layout::Ragged { starts } => starts.len().saturating_sub(1),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys of the longest row; 0 without rows. Strided rows without lengths all have this number.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The keys of row `row`; empty if there is no such row.
    pub fn row(&self, row: usize) -> &'a [K] {
        self.span(row).and_then(|(start, length)| self.keys[start..].get(..length)).unwrap_or_default()
    }

    /// Start and length of row `row` in [`Rows::keys`]; none for a row that has no keys or does not exist.
    pub(crate) fn span(&self, row: usize) -> Option<(usize, usize)> {
        if row >= self.len() {
            return None;
        }
        let (start, room) = match self.layout {
            // Rows without keys may start anywhere, even where the multiplication overflows.
            Layout::Strided { columns: 0, .. } => return None,
            Layout::Strided { columns, stride, .. } => (row * stride, columns),
            Layout::Ragged { starts } => (starts[row] as usize, (starts[row + 1] - starts[row]) as usize),
        };
        let length = self.lengths.map_or(room, |lengths| lengths[row] as usize);
        Some((start, length)).filter(|_| length > 0)
    }

    /// All keys, those of rows and those between rows.
    pub(crate) fn keys(&self) -> &'a [K] {
        self.keys
    }

    /// The layout of the rows: the position of each row in the keys.
    pub(crate) fn layout(&self) -> Layout<'a> {
        self.layout
    }

    /// The number of keys of each row, if lengths were given.
    pub(crate) fn lengths(&self) -> Option<&'a [u32]> {
        self.lengths
    }
}
