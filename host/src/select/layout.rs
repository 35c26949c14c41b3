//! The layout in memory of the rows of a batch and of the results of a selection.

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
    pub(super) keys: &'a [K],
    pub(super) layout: Layout<'a>,
    pub(super) lengths: Option<&'a [u32]>,
    pub(super) columns: usize,
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

impl<'a, K> Rows<'a, K> {
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

/// The position in a slot without a key.
pub const NO_POSITION: u32 = u32::MAX;

/// The best k of each row, best first: rows × k, row-major. A slot past the row's length holds
/// [`Key::worst`](super::Key::worst) and [`NO_POSITION`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selection<K = f32> {
    /// Number of slots of a row.
    pub k: usize,
    /// The selected keys, with −0 as +0 and NaN as the canonical NaN.
    pub keys: Vec<K>,
    /// Positions of the selected keys in their row, from 0.
    pub positions: Vec<u32>,
}
