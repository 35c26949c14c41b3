//! The grid of inverted-file search: builds, the sweep over the lists probed, batches of few queries.
//!
//! A row is right (`verified`) if, for a few queries of the batch, no vector occurs twice, distances ascend, and each
//! is the float64 distance from the stored vector; and if these queries, with all lists probed, get the nearest of all
//! stored vectors. The stored vectors are the base for flat lists, and the results of [`IvfIndex::reconstruct`] for
//! product codes.

use rayon::prelude::*;
use warpann::ivf::{Encoding, IvfIndex, IvfIndexBuilder, Refiner};
use warpann::{Element, Proof, Scan, SearchOptions};
use warpann_measure::{Searches, Times, Work, timed};

use crate::Outcome;
use crate::record::{Measured, Record};
use crate::set::{Measurement, TRUTH_DEPTH, Vectors, count, positive};
use crate::vectors::{Truth, all_right};

/// Arguments of `ivf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Encodings of the vectors: flat, f16, sq8, pq and the bytes of its code, or bits and those of a component.
    #[arg(long, value_delimiter = ',', default_value = "flat,f16,sq8,pq16,pq32,pq64", value_parser = encoding)]
    encodings: Vec<Encoding>,
    /// Lists of each index.
    #[arg(long, default_value_t = 4096, value_parser = count)]
    lists: usize,
    /// Numbers of probed lists to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256,512,1024", value_parser = count)]
    probes: Vec<usize>,
    /// Results a query, when all queries are searched at once.
    #[arg(long, value_delimiter = ',', default_value = "10,100", value_parser = count)]
    k: Vec<usize>,
    /// Sizes of batches of few queries, k = 10.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256", value_parser = count)]
    batches: Vec<usize>,
    /// Number of first rows of the base to train on. Default: all; the index takes a sample of them.
    #[arg(long, value_parser = count)]
    train: Option<usize>,
    /// How lists are read: auto, list-major or query-major. Named in the cases unless auto.
    #[arg(long, value_enum, default_value = "auto")]
    scan: ScanOrder,
    /// Also measure refined searches, with these numbers of candidates for each of the k results, whose original
    /// vectors are in host memory.
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    refine: Vec<f64>,
    /// The refined searches prove their results, by this proof; only with bits and flat.
    #[arg(long, requires = "refine", default_value_t = Proof::None)]
    prove: Proof,
    /// Rate of matrix products in f16 with f32 sums, in TFLOP/s: gives the floor that arithmetic sets.
    #[arg(long, value_parser = positive)]
    tflops: Option<f64>,
}

/// [`Scan`] as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ScanOrder {
    Auto,
    ListMajor,
    QueryMajor,
}

impl ScanOrder {
    /// The option of a search.
    pub fn scan(self) -> Scan {
        match self {
            Self::Auto => Scan::Auto,
            Self::ListMajor => Scan::ListMajor,
            Self::QueryMajor => Scan::QueryMajor,
        }
    }

    /// The text that the scan adds to the name of a case.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::ListMajor => " list-major",
            Self::QueryMajor => " query-major",
        }
    }
}

/// Queries whose answers are compared with float64, if the batch has them.
const CHECKED: &[usize] = &[0, 15, 255, 9_999];
/// Results of batches of few queries.
const FEW_QUERIES_K: usize = 10;

/// Parses an encoding without parameters, `pq` and the bytes of a product code, or `bits` and the bits of a component.
pub fn encoding(text: &str) -> Result<Encoding, String> {
    let plain: Vec<Encoding> = Encoding::plain().collect();
    let of_pq = || Some(pq(count(text.strip_prefix("pq")?).ok()?));
    let of_bits = || Some(Encoding::Bits { bits: text.strip_prefix("bits")?.parse().ok()? });
    let found = plain.iter().find(|encoding| encoding.name() == text).copied().or_else(of_pq).or_else(of_bits);
    found.ok_or_else(|| {
        let plain: Vec<&str> = plain.iter().map(|encoding| encoding.name()).collect();
        format!(
            "expected {}, pq and a number of bytes such as pq32, or bits and a number such as bits4",
            plain.join(", ")
        )
    })
}

/// A product code of this number of bytes, with one byte for each sub-quantizer.
pub const fn pq(bytes: usize) -> Encoding {
    Encoding::Pq { sub_quantizers: bytes, bits: 8, rotate: false }
}

/// The kind of an inverted file, as it stands in a case.
pub fn name(encoding: Encoding) -> String {
    match encoding {
        Encoding::Pq { sub_quantizers, .. } => format!("ivf-pq{sub_quantizers}"),
        Encoding::Bits { bits } => format!("ivf-bits{bits}"),
        plain => format!("ivf-{}", plain.name()),
    }
}

impl Measurement for Args {
    fn run<T: Element>(&self, vectors: &Vectors<'_, T>, record: &mut Record) -> Outcome {
        record.tflops = self.tflops;
        let lists = record.quick_or(16, self.lists);
        let quick = [Encoding::Flat, Encoding::F16, Encoding::Scalar8, Encoding::Bits { bits: 4 }, pq(8)];
        for &encoding in record.quick_or(&quick[..], &self.encodings) {
            let builder = IvfIndex::<T>::builder(vectors.dim, lists).encoding(encoding).seed(1);
            let builder = builder.device(record.device());
            if record.machine.gpu.is_some() {
                // Loads the kernels, which the driver compiles.
                self.build(vectors, builder.clone(), "")?;
            }
            let case = case(vectors, encoding, lists);
            let (index, stages) = self.build(vectors, builder, &case)?;
            stages.into_iter().try_for_each(|stage| record.add(stage))?;
            let truths = truths(&index, vectors, encoding)?;
            let exhaustive = exhaustive(&index, vectors, &truths)?;
            let refiner = Refiner::new(index.metric(), vectors.dim, vectors.base)?;
            let of_base = if self.refine.is_empty() { Vec::new() } else { vectors.truths(CHECKED) };
            for (batch, k, probes, repeat) in self.batches(vectors.count(), lists, record) {
                let options = SearchOptions::new().probes(probes).scan(self.scan.scan());
                let mut searches = Searches::new(&index, &vectors.queries[..batch * vectors.dim], k, options)?;
                let times = searches.times(record.repeat(repeat))?;
                let verified = exhaustive && all_right(&truths, &searches.found, Truth::admits);
                let case = format!("{case} nq={batch} probes={probes}{}", self.scan.suffix());
                let work_of = || work(&index, vectors, (batch, k, probes));
                let measured = Measured::new(case.clone(), k, times, work_of(), verified);
                record.add(measured.recall(vectors.recall(&searches.found)))?;
                for &factor in &self.refine {
                    let options = options.refine(factor).prove(self.prove);
                    let queries = &vectors.queries[..batch * vectors.dim];
                    let mut found = index.search_refined(queries, k, &options, &refiner)?.0;
                    let times = Times::collect(1, record.repeat(repeat), || -> warpann::Result<f64> {
                        let ((refined, _), time) = timed(|| index.search_refined(queries, k, &options, &refiner))?;
                        found = refined;
                        Ok(time)
                    })?;
                    let verified = all_right(&of_base, &found, Truth::admits);
                    let proof = match self.prove {
                        Proof::None => String::new(),
                        proof => format!(" proof={proof}"),
                    };
                    let case = format!("{case} refine={factor}{proof}");
                    let measured = Measured::new(case, k, times, work_of(), verified);
                    record.add(measured.recall(vectors.recall(&found)))?;
                }
            }
        }
        Ok(())
    }
}

impl Args {
    /// Queries, k, probes and runs of each step.
    fn batches(&self, queries: usize, lists: usize, record: &Record) -> Vec<(usize, usize, usize, usize)> {
        let Args { probes, k, batches, .. } = self;
        let quick = [1, 4, lists];
        let probes = record.quick_or(&quick[..], probes);
        let large = k.iter().flat_map(|&k| probes.iter().map(move |&probes| (queries, k, probes, 5)));
        let few = batches.iter().filter(|&&batch| batch < queries);
        let small = few.flat_map(|&batch| probes.iter().map(move |&probes| (batch, FEW_QUERIES_K, probes, 20)));
        large.chain(small).collect()
    }

    /// Makes an index with all vectors. Returns it, and the rows of training, of adding, and of both.
    fn build<T: Element>(
        &self,
        vectors: &Vectors<'_, T>,
        builder: IvfIndexBuilder<T>,
        case: &str,
    ) -> Outcome<(IvfIndex<T>, [Measured; 3])> {
        let &Vectors { base, dim, .. } = vectors;
        let training = &base[..self.train.map_or(base.len(), |rows| (rows * dim).min(base.len()))];
        let mut index = builder.build()?;
        let code_bytes = index.statistics().code_bytes as f64 * vectors.rows() as f64;
        let ((), training_ms) = timed(|| index.train(training))?;
        let ((), adding_ms) = timed(|| index.add(base))?;
        let (sample, added) = (size_of_val(training) as f64, size_of_val(base) as f64 + code_bytes);
        let parts = [
            ("train", training_ms, sample),
            ("add", adding_ms, added),
            ("build", training_ms + adding_ms, sample + added),
        ];
        let stage = |(name, milliseconds, bytes)| Measured::stage(format!("{name} {case}"), milliseconds, bytes);
        Ok((index, parts.map(stage)))
    }
}

/// The encoding, the vectors and the number of lists, as they stand in a case.
pub fn case<T: Element>(vectors: &Vectors<'_, T>, encoding: Encoding, lists: usize) -> String {
    format!("{} {} lists={lists}", name(encoding), vectors.shape())
}

/// An index with the vectors of `base`, on which it is trained.
pub fn filled<T: Element>(builder: IvfIndexBuilder<T>, base: &[T]) -> warpann::Result<IvfIndex<T>> {
    let mut index = builder.build()?;
    index.train(base)?;
    index.add(base)?;
    Ok(index)
}

/// Bytes of the lists that `queries` queries probe, as if different queries probed different lists, as far as there are
/// lists.
pub fn probed_bytes<T: Element>(index: &IvfIndex<T>, queries: f64, probes: usize) -> f64 {
    let share = (queries * probes as f64 / index.lists() as f64).min(1.0);
    share * index.len() as f64 * index.statistics().code_bytes as f64
}

/// The work of `batch` queries for `k` neighbours: the centroids and the probed lists.
fn work<T: Element>(index: &IvfIndex<T>, vectors: &Vectors<'_, T>, (batch, k, probes): (usize, usize, usize)) -> Work {
    let (n, lists, dim) = (vectors.rows() as f64, index.lists() as f64, vectors.dim as f64);
    let of_queries = Work::of_queries(batch, batch * vectors.dim * size_of::<T>(), k);
    let looked_at = batch as f64 * (lists + (probes as f64 / lists).min(1.0) * n);
    let bytes = probed_bytes(index, batch as f64, probes) + 4.0 * lists * dim + of_queries;
    Work { bytes, operations: 2.0 * dim * looked_at }
}

/// The truth about what the index stores, for the queries that are checked.
pub fn truths<T: Element>(index: &IvfIndex<T>, vectors: &Vectors<'_, T>, encoding: Encoding) -> Outcome<Vec<Truth>> {
    let &Vectors { queries, dim, .. } = vectors;
    if encoding == Encoding::Flat {
        return Ok(vectors.truths(CHECKED));
    }
    let ids = (0..vectors.rows() as u64).into_par_iter();
    let stored: Vec<Vec<f32>> = ids.map(|id| index.reconstruct(id)).collect::<Result<_, _>>()?;
    let (stored, queries): (_, Vec<f32>) = (stored.concat(), queries.iter().map(|x| x.to_f32()).collect());
    Ok(Vectors { base: &stored, queries: &queries, dim, truth: None }.truths(CHECKED))
}

/// Whether the queries that are checked get the nearest of all that is stored when all lists are probed.
fn exhaustive<T: Element>(index: &IvfIndex<T>, vectors: &Vectors<'_, T>, truths: &[Truth]) -> Outcome<bool> {
    let options = SearchOptions::new().probes(index.lists());
    for truth in truths {
        let query = &vectors.queries[truth.query() * vectors.dim..][..vectors.dim];
        let found = index.search_with(query, TRUTH_DEPTH, &options)?;
        if !truth.confirms(&found.ids, &found.distances) {
            return Ok(false);
        }
    }
    Ok(true)
}
