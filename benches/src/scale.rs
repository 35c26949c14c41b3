//! How several devices scale: replicas, shards and both, for exact search, inverted files and k-means.
//!
//! Every case is measured on the first device alone, then on the first 2, 4, .. and on all given devices, as replicas, as shards and, with
//! four or more devices, as pairs of shards. A search is right if the results of the first device are exact for the checked queries (for
//! inverted files: possible, see [`crate::ivf`]), and the results of other placements have the same bits for all queries. k-means is right
//! if the centroids have the same bits.
//!
//! `kmeans-iterations` is the time from the first iteration's end to the last's; `kmeans-call` that of the whole call.

use std::ops::ControlFlow;
use std::time::Instant;

use warpann::kmeans::KMeans;
use warpann::{Device, Element, FlatIndex, IvfIndex, Metric, NONE, Neighbors, Placement, SearchOptions};
use warpann_measure::Times;

use crate::ivf::{Coding, Source, Vectors, Work, count, truths, with_vectors};
use crate::machine::Machine;
use crate::record::{Measured, Record};
use crate::vectors::{Truth, recall};
use crate::{Common, Outcome, measured_device};

/// Arguments of `scale`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    source: Source,
    /// Devices to use; --device is ignored.
    #[arg(long, value_delimiter = ',', required = true, value_parser = measured_device)]
    devices: Vec<Device>,
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
    Inverted(Coding),
}

fn kind(text: &str) -> Result<Kind, String> {
    if text == "exact" { Ok(Kind::Exact) } else { text.parse().map(Kind::Inverted) }
}

/// Measures all cases. Returns true if every result was right.
pub fn run(args: &Args) -> Outcome<bool> {
    let machine = Machine::open(args.devices[0], args.common.quick)?;
    with_vectors(&args.source, &args.common, machine.device(), &Grid { args, machine: &machine })
}

struct Grid<'a> {
    args: &'a Args,
    machine: &'a Machine,
}

/// An index of any kind, with the number of lists that a search probes.
enum Index<T: Element> {
    Exact(FlatIndex<T>),
    Inverted(Box<IvfIndex<T>>, usize),
}

impl<T: Element> Index<T> {
    fn move_to(&mut self, placement: &Placement) -> Outcome {
        match self {
            Self::Exact(index) => index.move_to(placement.clone())?,
            Self::Inverted(index, _) => index.move_to(placement.clone())?,
        }
        Ok(())
    }

    fn search(&self, queries: &[T], found: &mut Neighbors) -> Outcome {
        let Neighbors { k, ids, distances } = found;
        match self {
            Self::Exact(index) => index.search_into(queries, *k, &SearchOptions::new(), ids, distances)?,
            Self::Inverted(index, probes) => {
                let options = SearchOptions::new().probes(*probes);
                index.search_into(queries, *k, &options, ids, distances)?;
            }
        }
        Ok(())
    }
}

impl<T: Element> Index<T> {
    /// What each device must read at least for its share of the work: its queries, its vectors; of an inverted file the centroids, and the
    /// probed lists as if different queries probed different ones, as far as there are lists.
    fn bytes(&self, base: &[T], queries: &[T], placement: &Placement) -> f64 {
        let (replicas, shards) = (placement.replicas() as f64, placement.shards() as f64);
        let own = size_of_val(queries) as f64 / replicas;
        match self {
            Self::Exact(_) => own + size_of_val(base) as f64 / shards,
            Self::Inverted(index, probes) => {
                let (lists, dim) = (index.lists() as f64, index.dim() as f64);
                let count = queries.len() as f64 / dim / replicas;
                let probed = (count * *probes as f64 / lists).min(1.0);
                own + 4.0 * lists * dim + probed * (index.len() * index.statistics().code_bytes) as f64 / shards
            }
        }
    }
}

impl Work for Grid<'_> {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>) -> Outcome<bool> {
        let Self { args, machine } = *self;
        let mut record = Record::open(&args.common, machine)?;
        let quick = [Kind::Exact, Kind::Inverted(Coding::FLAT), Kind::Inverted(Coding::Pq(8))];
        for &kind in if args.common.quick { &quick[..] } else { &args.kinds } {
            self.searches(vectors, kind, &mut record)?;
        }
        for &centroids in if args.common.quick { &[9][..] } else { &args.centroids } {
            self.clustering(vectors, centroids, &mut record)?;
        }
        Ok(record.all_verified())
    }
}

impl Grid<'_> {
    /// One device, then the first 2, 4, .. and all.
    fn counts(&self) -> Vec<usize> {
        let all = self.args.devices.len();
        let mut counts: Vec<usize> = (0..).map(|power| 1usize << power).take_while(|&count| count < all).collect();
        counts.push(all);
        counts
    }

    /// What is measured: one device first.
    fn placements(&self) -> Outcome<Vec<Placement>> {
        let mut placements = Vec::new();
        for count in self.counts() {
            let mut shards = vec![1];
            shards.extend((count >= 4 && count.is_multiple_of(2)).then_some(2));
            shards.extend((count > 1).then_some(count));
            for shards in shards {
                placements.push(Placement::new(self.args.devices[..count].to_vec(), shards)?);
            }
        }
        Ok(placements)
    }

    fn searches<T: Element>(&self, vectors: &Vectors<'_, T>, kind: Kind, record: &mut Record) -> Outcome {
        let Self { args, machine } = *self;
        let &Vectors { base, queries, dim, truth } = vectors;
        let (lists, probes) = if args.common.quick { (16, &[4][..]) } else { (args.lists, args.probes.as_slice()) };
        let (mut index, case, truths) = match kind {
            Kind::Exact => {
                let mut index = FlatIndex::<T>::new(dim, Metric::L2, machine.device())?;
                index.add(base)?;
                let truth = Truth::of(base, queries, dim, 0);
                (Index::Exact(index), format!("exact {}x{dim} {}", vectors.rows(), T::TYPE.name()), vec![truth])
            }
            Kind::Inverted(coding) => {
                let builder = IvfIndex::<T>::builder(dim, lists).encoding(coding.encoding());
                let mut index = builder.device(machine.device()).build()?;
                index.train(base)?;
                index.add(base)?;
                let truths = truths(&index, vectors, coding)?;
                (Index::Inverted(Box::new(index), 1), vectors.case(coding, lists), truths)
            }
        };
        let mut batches: Vec<usize> = args.batches.iter().map(|&batch| batch.min(vectors.count())).collect();
        batches.dedup();
        let probes = if kind == Kind::Exact { &[0][..] } else { probes };
        let steps: Vec<(usize, usize)> =
            batches.iter().flat_map(|&batch| probes.iter().map(move |&probes| (batch, probes))).collect();
        let mut expected: Vec<Neighbors> = Vec::new();
        for placement in self.placements()? {
            index.move_to(&placement)?;
            for (step, &(batch, probes)) in steps.iter().enumerate() {
                let mut name = format!("{case} nq={batch}");
                if let Index::Inverted(_, own) = &mut index {
                    *own = probes;
                    name += &format!(" probes={probes}");
                }
                let slots = batch * args.k;
                let mut found = Neighbors { k: args.k, ids: vec![NONE; slots], distances: vec![0.0; slots] };
                let part = &queries[..batch * dim];
                let repeat = args.common.repeat.unwrap_or(5);
                let times = Times::measure(2, repeat, || index.search(part, &mut found))?;
                let verified = match expected.get(step) {
                    Some(expected) => *expected == found,
                    None => truths.iter().filter(|truth| truth.query() < batch).all(|truth| {
                        let slots = truth.query() * args.k..(truth.query() + 1) * args.k;
                        let (ids, distances) = (&found.ids[slots.clone()], &found.distances[slots]);
                        if kind == Kind::Exact { truth.confirms(ids, distances) } else { truth.admits(ids, distances) }
                    }),
                };
                record.add(Measured {
                    case: format!("{name} replicas={} shards={}", placement.replicas(), placement.shards()),
                    k: args.k,
                    times,
                    memory_floor_ms: machine.floor_ms(index.bytes(base, part, &placement)),
                    recall: recall(base, queries, dim, &found, truth),
                    verified,
                    ..Measured::default()
                })?;
                if expected.len() == step {
                    expected.push(found);
                }
            }
        }
        Ok(())
    }

    fn clustering<T: Element>(&self, vectors: &Vectors<'_, T>, centroids: usize, record: &mut Record) -> Outcome {
        let Self { args, machine } = *self;
        let &Vectors { base, dim, .. } = vectors;
        let mut expected: Option<Vec<f32>> = None;
        for count in self.counts() {
            let placement = Placement::new(args.devices[..count].to_vec(), 1)?;
            let settings =
                KMeans::new(centroids).iterations(args.iterations).seed(1).points_per_centroid(None).device(placement);
            let (mut calls, mut iterations, mut verified) = (Vec::new(), Vec::new(), true);
            // The first run loads the kernels.
            for run in 0..=args.common.repeat.unwrap_or(3).max(1) {
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
            let passes = args.iterations as f64;
            for (name, milliseconds, passes) in
                [("kmeans-iterations", iterations, passes - 1.0), ("kmeans-call", calls, passes)]
            {
                let (rows, kind, iterations) = (vectors.rows(), T::TYPE.name(), args.iterations);
                record.add(Measured {
                    case: format!(
                        "{name} {rows}x{dim} {kind} centroids={centroids} iterations={iterations} devices={count}"
                    ),
                    times: Times::new(milliseconds),
                    memory_floor_ms: machine.floor_ms(size_of_val(base) as f64 * passes / count as f64),
                    verified,
                    ..Measured::default()
                })?;
            }
        }
        Ok(())
    }
}
