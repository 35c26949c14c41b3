//! The work that every implementation must do: the bytes that it must read or write at least once, and its arithmetic.

/// Bytes and operations of one piece of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Bytes that must be read or written at least once.
    pub bytes: f64,
    /// Multiplications and additions; 0 if these are not counted.
    pub operations: f64,
}

/// Bytes of a result: an id and a distance.
const RESULT: f64 = 12.0;

impl Work {
    /// An exact search for `k` neighbours of `queries` queries among `n` vectors of `dim` components of type `T`.
    pub fn exact<T>(n: usize, queries: usize, dim: usize, k: usize) -> Self {
        let [n, queries, dim, k] = [n, queries, dim, k].map(|count| count as f64);
        let bytes = size_of::<T>() as f64 * (n + queries) * dim + RESULT * queries * k;
        Self { bytes, operations: 2.0 * n * queries * dim }
    }

    /// Bytes that every search reads and writes for `queries` queries of `bytes` bytes: these, and the results.
    pub fn of_queries(queries: usize, bytes: usize, k: usize) -> f64 {
        bytes as f64 + RESULT * queries as f64 * k as f64
    }
}

impl From<f64> for Work {
    /// This number of bytes.
    fn from(bytes: f64) -> Self {
        Self { bytes, operations: 0.0 }
    }
}
