//! Matrices of the crate ndarray (feature `ndarray`): vectors from views of matrices, and results as views.
//!
//! A matrix has one vector in each row. If its rows lie one after the other in memory (the standard layout of ndarray),
//! nothing is copied. A matrix with another layout, such as a transposed matrix or a slice of columns, is copied once,
//! O(rows · columns). Other functions of this library take the vectors that [`components`] returns.
//!
//! ```
//! use ndarray::{Array2, array, s};
//! use warpann::matrices::components;
//! use warpann::{Device, FlatIndex, Metric, SearchOptions};
//!
//! // Points on a line, as rows and as columns.
//! let rows = Array2::from_shape_fn((100, 2), |(i, j)| if j == 0 { i as f32 } else { 0.0 });
//! let mut index = FlatIndex::new(2, Metric::L2, Device::Cpu)?;
//! index.add_matrix(rows.view())?;
//! let found = index.search_matrix(array![[50.2f32, 0.0], [98.9, 0.0]].view(), 3, &SearchOptions::new())?;
//! assert_eq!(found.ids_matrix(), array![[50, 51, 49], [99, 98, 97]]);
//! assert_eq!(found.distances_matrix().dim(), (2, 3));
//!
//! let columns = rows.t().as_standard_layout().into_owned();
//! assert_eq!(components(&columns.t(), 2)?, components(&rows.view(), 2)?);
//! assert!(components(&rows.slice(s![.., ..1]), 2).is_err());
//! # Ok::<(), warpann::Error>(())
//! ```

use std::borrow::Cow;

use ndarray::ArrayView2;

use crate::{Element, Error, Index, IvfIndex, Kind, Neighbors, Result, SearchOptions, host_memory};

/// The components of the rows of `matrix`, row-major: borrowed if the matrix has the standard layout, otherwise copied.
///
/// # Errors
/// [`Error::WrongDimension`] if the matrix does not have `dim` columns; [`Error::OutOfHostMemory`] if there is no
/// memory for a copy.
pub fn components<'a, T: Element>(matrix: &ArrayView2<'a, T>, dim: usize) -> Result<Cow<'a, [T]>> {
    if matrix.ncols() != dim {
        return Err(Error::WrongDimension { expected: dim, actual: matrix.ncols() });
    }
    if let Some(rows) = matrix.to_slice() {
        return Ok(Cow::Borrowed(rows));
    }
    let mut rows = Vec::new();
    host_memory::reserve(&mut rows, matrix.len())?;
    rows.extend(matrix.iter());
    Ok(Cow::Owned(rows))
}

/// # Matrices
impl<K: Kind> Index<K> {
    /// As [`add`](Self::add), for the rows of a matrix.
    ///
    /// # Errors
    /// As [`add`](Self::add) and [`components`].
    pub fn add_matrix(&mut self, rows: ArrayView2<'_, K::Element>) -> Result<()> {
        self.add(&components(&rows, self.dim())?)
    }

    /// As [`search_with`](Self::search_with), for the rows of a matrix.
    ///
    /// # Errors
    /// As [`search_with`](Self::search_with) and [`components`].
    pub fn search_matrix(
        &self,
        queries: ArrayView2<'_, K::Element>,
        k: usize,
        options: &SearchOptions<'_>,
    ) -> Result<Neighbors> {
        self.search_with(&components(&queries, self.dim())?, k, options)
    }
}

impl<T: Element> IvfIndex<T> {
    /// As [`train`](Self::train), for the rows of a matrix.
    ///
    /// # Errors
    /// As [`train`](Self::train) and [`components`].
    pub fn train_matrix(&mut self, rows: ArrayView2<'_, T>) -> Result<()> {
        self.train(&components(&rows, self.dim())?)
    }
}

impl Neighbors {
    /// The ids as a matrix of queries × k, without a copy.
    pub fn ids_matrix(&self) -> ArrayView2<'_, u64> {
        whole_rows(&self.ids, self.k)
    }

    /// The distances as a matrix of queries × k, without a copy.
    pub fn distances_matrix(&self) -> ArrayView2<'_, f32> {
        whole_rows(&self.distances, self.k)
    }
}

/// The whole rows of `columns` values each; no rows if `columns` is 0.
fn whole_rows<V>(values: &[V], columns: usize) -> ArrayView2<'_, V> {
    let rows = values.len().checked_div(columns).unwrap_or(0);
    match ArrayView2::from_shape((rows, columns), &values[..rows * columns]) {
        Ok(view) => view,
        Err(_) => unreachable!("the slice has rows · columns values"),
    }
}
