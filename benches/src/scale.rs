//! How several devices scale: replicas, shards and both, for exact search, inverted files and k-means.
//!
//! Every case is measured on the first device alone, then on the first 2, 4, .. and on all given devices, as replicas,
//! as shards and, with four or more devices, as pairs of shards. A search is right if the results of the first device
//! are exact for the checked queries (for inverted files: possible, see [`crate::ivf`]), and the results of other
//! placements have the same bits for all queries. k-means is right if the centroids have the same bits.
//!
//! `kmeans-iterations` is the time from the first iteration's end to the last's; `kmeans-call` that of the whole call.

use std::ops::ControlFlow;
use std::time::Instant;

use warpann::ivf::Encoding;
use warpann::kmeans::KMeans;
use warpann::{Device, Element, Index, IvfIndex, Neighbors, Placement, SearchOptions};
use warpann_measure::{Searches, Times};

use crate::ivf::{case, encoding, filled, pq, probed_bytes, truths};
use crate::record::{Measured, Record};
use crate::set::{Measurement, Vectors, count, exact};
use crate::vectors::{Check, Truth, all_right};
use crate::{Outcome, measured_device};

/// Arguments of `scale`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices to use; --device is ignored.
    #[arg(long, value_delimiter = ',', required = true, value_parser = measured_device)]
    pub devices: Vec<Device>,
    /// Kinds of index: exact, flat (an inverted file of vectors as they are), or pq and the bytes of a code.
    #[arg(long, value_delimiter = ',', default_value = "exact,flat,pq16", value_parser = kind)]
    kinds: Vec<Kind>,
    /// Sizes of batches; those of more queries than there are count for all.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000", value_parser = count)]
    batches: Vec<usize>,
    /// Number of neighbours per query.
    #[arg(long, default_value_t = 10, value_parser = count)]
    k: usize,
    /// Lists of inverted files.
    #[arg(long, default_value_t = 4096, value_parser = count)]
    lists: usize,
    /// Numbers of probed lists to measure.
    #[arg(long, value_delimiter = ',', default_value = "64,1024", value_parser = count)]
    probes: Vec<usize>,
    /// Numbers of centroids of k-means to measure.
    #[arg(long, value_delimiter = ',', default_value = "4096", value_parser = count)]
    centroids: Vec<usize>,
    /// Number of iterations of k-means.
    #[arg(long, default_value_t = 10, value_parser = count)]
    iterations: usize,
}

/// The kind of search or clustering that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exact,
    Inverted(Encoding),
}

fn kind(text: &str) -> Result<Kind, String> {
    if text == "exact" { Ok(Kind::Exact) } else { encoding(text).map(Kind::Inverted) }
}

impl Measurement for Args {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        let &Vectors { base, dim, .. } = vectors;
        let lists = record.quick_or(16, self.lists);
        let quick = [Kind::Exact, Kind::Inverted(Encoding::Flat), Kind::Inverted(pq(8))];
        for &kind in record.quick_or(&quick[..], &self.kinds) {
            match kind {
                Kind::Exact => {
                    let index = exact(base, dim, record.device())?;
                    let read = |_: &Index<_>, _: f64, _: usize, shards: f64| size_of_val(base) as f64 / shards;
                    let case = format!("exact {}", vectors.shape());
                    let searches = Searched { case, truths: vectors.truths(&[0]), check: Truth::confirms, read };
                    self.searches(vectors, index, &[0], searches, record)?;
                }
                Kind::Inverted(encoding) => {
                    let builder = IvfIndex::<T>::builder(dim, lists).encoding(encoding);
                    let index = filled(builder.device(record.device()), base)?;
                    let read = |index: &IvfIndex<T>, queries: f64, probes: usize, shards: f64| {
                        4.0 * (index.lists() * dim) as f64 + probed_bytes(index, queries, probes) / shards
                    };
                    let (case, truths) = (case(vectors, encoding, lists), truths(&index, vectors, encoding)?);
                    let searches = Searched { case, truths, check: Truth::admits, read };
                    self.searches(vectors, index, record.quick_or(&[4], &self.probes), searches, record)?;
                }
            }
        }
        for &centroids in record.quick_or(&[9][..], &self.centroids) {
            self.clustering(vectors, centroids, record)?;
        }
        Ok(())
    }
}

/// The parts of a measurement that depend on the kind of index.
struct Searched<R> {
    case: String,
    truths: Vec<Truth>,
    /// How results are checked.
    check: Check,
    /// Bytes that each device must read at least, besides its queries: those of this number of queries, probes and
    /// shards.
    read: R,
}

impl Args {
    /// One device, then the first 2, 4, .. and all.
    fn counts(&self) -> Vec<usize> {
        let all = self.devices.len();
        let mut counts: Vec<usize> = (0..).map(|power| 1usize << power).take_while(|&count| count < all).collect();
        counts.push(all);
        counts
    }

    /// The placements to measure: one device first.
    fn placements(&self) -> Outcome<Vec<Placement>> {
        let mut placements = Vec::new();
        for count in self.counts() {
            let mut shards = vec![1];
            shards.extend((count >= 4 && count.is_multiple_of(2)).then_some(2));
            shards.extend((count > 1).then_some(count));
            for shards in shards {
                placements.push(Placement::new(self.devices[..count].to_vec(), shards)?);
            }
        }
        Ok(placements)
    }

    /// Measures an index in every placement, for each size of batch and number of probes; 0 if the index has no lists.
    fn searches<T: Element, K: warpann::Kind<Element = T>>(
        &self,
        vectors: &Vectors<'_, T>,
        mut index: Index<K>,
        probes: &[usize],
        Searched { case, truths, check, read }: Searched<impl Fn(&Index<K>, f64, usize, f64) -> f64>,
        record: &mut Record,
    ) -> Outcome {
        let mut batches: Vec<usize> = self.batches.iter().map(|&batch| batch.min(vectors.count())).collect();
        batches.dedup();
        let steps: Vec<(usize, usize)> =
            batches.iter().flat_map(|&batch| probes.iter().map(move |&probes| (batch, probes))).collect();
        let mut expected: Vec<Neighbors> = Vec::new();
        for placement in self.placements()? {
            index.move_to(placement.clone())?;
            let (replicas, shards) = (placement.replicas(), placement.shards());
            for (step, &(batch, probes)) in steps.iter().enumerate() {
                let (name, options) = match probes {
                    0 => (String::new(), SearchOptions::new()),
                    probes => (format!(" probes={probes}"), SearchOptions::new().probes(probes)),
                };
                let queries = &vectors.queries[..batch * vectors.dim];
                let mut searches = Searches::new(&index, queries, self.k, options)?;
                let times = searches.times(record.repeat(5))?;
                let found = searches.found;
                let verified = match expected.get(step) {
                    Some(expected) => *expected == found,
                    None => all_right(&truths, &found, check),
                };
                let own = size_of_val(queries) as f64 / replicas as f64;
                let bytes = own + read(&index, batch as f64 / replicas as f64, probes, shards as f64);
                let case = format!("{case} nq={batch}{name} replicas={replicas} shards={shards}");
                record.add(Measured::new(case, self.k, times, bytes, verified).recall(vectors.recall(&found)))?;
                if expected.len() == step {
                    expected.push(found);
                }
            }
        }
        Ok(())
    }

    fn clustering<T: Element>(&self, vectors: &Vectors<'_, T>, centroids: usize, record: &mut Record) -> Outcome {
        let &Vectors { base, dim, .. } = vectors;
        let mut expected: Option<Vec<f32>> = None;
        for count in self.counts() {
            let placement = Placement::new(self.devices[..count].to_vec(), 1)?;
            let settings =
                KMeans::new(centroids).iterations(self.iterations).seed(1).points_per_centroid(None).device(placement);
            let (mut calls, mut iterations, mut verified) = (Vec::new(), Vec::new(), true);
            // The first run loads the kernels.
            for run in 0..=record.repeat(3) {
                let mut ends = Vec::new();
                let start = Instant::now();
                let found = settings.train_watched(base, dim, None, &mut |_| {
                    ends.push(Instant::now());
                    ControlFlow::Continue(())
                })?;
                let call = start.elapsed();
                verified &= *expected.get_or_insert_with(|| found.centroids.clone()) == found.centroids;
                if run > 0 {
                    calls.push(1e3 * call.as_secs_f64());
                    let all = ends.last().zip(ends.first()).map(|(last, first)| last.duration_since(*first));
                    iterations.push(1e3 * all.unwrap_or_default().as_secs_f64());
                }
            }
            let passes = self.iterations as f64;
            for (name, milliseconds, passes) in
                [("kmeans-iterations", iterations, passes - 1.0), ("kmeans-call", calls, passes)]
            {
                let (shape, iterations) = (vectors.shape(), self.iterations);
                let case = format!("{name} {shape} centroids={centroids} iterations={iterations} devices={count}");
                let bytes = size_of_val(base) as f64 * passes / count as f64;
                record.add(Measured::new(case, 0, Times::new(milliseconds), bytes, verified))?;
            }
        }
        Ok(())
    }
}
