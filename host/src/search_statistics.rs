//! Statistics of a search: for a look at filters, probes and beams that take long or find little.

/// Statistics of one call of `search_with_statistics`. Sums are over all queries of the call.
///
/// ```
/// use warpann::{Device, IvfIndex, SearchOptions};
///
/// let base: Vec<f32> = (0..1000).map(|i| i as f32).collect();
/// let mut index = IvfIndex::<f32>::builder(1, 10).device(Device::Cpu).build()?;
/// index.train(&base)?;
/// index.add(&base)?;
/// // No list is read for five vectors: the queries are compared with them.
/// let options = SearchOptions::new().probes(2).filter_ids(&[3, 14, 159, 265, 358]);
/// let (found, statistics) = index.search_with_statistics(&[160.0, 9.0], 2, &options)?;
/// assert_eq!(found.ids, [159, 265, 14, 3]);
/// assert_eq!((statistics.accepted, statistics.exact_queries, statistics.lists), (5, 2, 0));
/// // Without a filter, two lists are read for each query.
/// let (_, statistics) = index.search_with_statistics(&[160.0, 9.0], 2, &SearchOptions::new().probes(2))?;
/// assert_eq!((statistics.accepted, statistics.exact_queries, statistics.lists), (1000, 0, 4));
/// # Ok::<(), warpann::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct SearchStatistics {
    /// Number of queries.
    pub queries: u64,
    /// Number of vectors that could be results: those that the filter accepts; without a filter, all. With a filter for
    /// each query the sum over the queries.
    pub accepted: u64,
    /// Number of queries that were compared with every accepted vector, or whose search read every list. No neighbour
    /// of these is missing.
    pub exact_queries: u64,
    /// Number of lists that inverted files read, for each query and in each pass: a list that two queries read counts
    /// twice.
    pub lists: u64,
    /// Largest number of lists that were read for one query in one pass.
    pub most_lists: u64,
    /// Number of vectors that the walks of a graph kept, the largest of them; 0 without walks.
    pub beam: u64,
    /// Number of candidates that a refined search ranked by the original vectors; 0 for other searches.
    pub refined: u64,
    /// Number of searches that the call made: 0 for an empty index, 1, or more if some queries had fewer than k
    /// results, or no proof of them, and were searched again more widely.
    pub passes: u64,
}

impl SearchStatistics {
    /// Mean number of lists that were read for a query; 0 without queries.
    #[inline]
    pub fn mean_lists(&self) -> f64 {
        self.lists as f64 / self.queries.max(1) as f64
    }

    /// Notes a pass in which each of some queries read `probes` of `all` lists.
    #[inline]
    pub(crate) fn read_lists(&mut self, queries: usize, probes: usize, all: usize) {
        self.lists += queries as u64 * probes as u64;
        self.most_lists = self.most_lists.max(probes as u64);
        self.passes += 1;
        self.exact_queries += if probes >= all { queries as u64 } else { 0 };
    }

    /// Notes a pass in which some queries were compared with every accepted vector.
    #[inline]
    pub(crate) fn compared_all(&mut self, queries: usize) {
        self.passes += 1;
        self.exact_queries += queries as u64;
    }

    /// Adds the statistics of a search of other queries in the same call.
    pub(crate) fn add(&mut self, other: SearchStatistics) {
        self.queries += other.queries;
        self.accepted += other.accepted;
        self.exact_queries += other.exact_queries;
        self.lists += other.lists;
        self.most_lists = self.most_lists.max(other.most_lists);
        self.beam = self.beam.max(other.beam);
        self.refined += other.refined;
        self.passes += other.passes;
    }

    /// Notes a pass of walks that keep `beam` vectors.
    #[inline]
    pub(crate) fn walked(&mut self, beam: usize) {
        self.passes += 1;
        self.beam = beam as u64;
    }
}
