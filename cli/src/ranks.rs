//! `build --mpi` and `search --mpi`: every rank runs the same command, and rank 0 prints.
//!
//! Each step that a rank does alone, such as reading files, ends with [`agree`], so that no rank waits for a rank that
//! has failed.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use warpann::device::info;
use warpann::distributed::{Mpi, Ranks, Sharded, agree, part};
use warpann::ivf::IvfIndex;
use warpann::{Device, Element, FlatIndex, IndexKind, Placement, SearchOptions};

use crate::index::{GRAPH, INVERTED_FILES, Made, Place, describe_ivf, name_of};
use crate::report::{Failure, Out, Outcome};
use crate::search::{About, BaseFiles, IndexFiles, Job, Report, flat_builder, print};
use crate::streams::refuse;
use crate::vectors::{exactly, with_element};
use crate::{build, search};

/// Starts MPI and runs `work` on every rank. If it fails on a rank, rank 0 prints the error, and all ranks exit with a
/// failure.
fn with_ranks(out: &Out, work: impl FnOnce(&Mpi) -> Outcome) -> Outcome {
    let ranks = Mpi::start()?;
    let done = match work(&ranks) {
        // The reader of the output has closed it.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    };
    agree(&ranks, done).map_err(|failure| {
        // Printed while MPI runs, because mpirun ends all processes when one has exited with a failure.
        if ranks.rank() == 0 {
            out.fail(&failure);
        }
        Failure::Told
    })
}

/// The devices of this rank: those of the option, or one of the machine's GPUs in turn.
fn placement(asked: &Placement, ranks: &Mpi) -> Placement {
    match info::devices() {
        Ok(devices) if *asked == Device::Auto && !devices.is_empty() => {
            Device::Gpu(ranks.local_rank() % devices.len()).into()
        }
        _ => asked.clone(),
    }
}

/// The failure for an index of another kind than inverted files.
fn of_inverted_files(kind: String) -> Failure {
    Failure::OtherKind { option: "--mpi", known: INVERTED_FILES, kind }
}

/// The description of an index that is divided among ranks.
fn about_all(shard: About, vectors: u64, ranks: &Mpi) -> About {
    let mut about = shard;
    (about.device, about.vectors) = (of_all(about.device, ranks), vectors);
    about
}

/// The description of the devices of all ranks.
fn of_all(device: String, ranks: &Mpi) -> String {
    format!("{} ranks, rank 0 on {device}", ranks.count())
}

/// `search --mpi`.
pub fn search(args: &search::Args, out: &Out) -> Outcome {
    with_ranks(out, |ranks| {
        let inputs = [args.base.as_deref(), Some(&*args.query), args.gt.as_deref()];
        refuse(inputs.into_iter().flatten().chain(args.outputs()))?;
        search_all(args, ranks)?.map_or(Ok(()), |report| print(&report, out))
    })
}

/// Searches on all ranks; the report is rank 0's.
fn search_all(args: &search::Args, ranks: &Mpi) -> Outcome<Option<Report>> {
    // Only rank 0 checks the output files, because other machines may not have their folders.
    let shard = args.index.as_ref().map(|index| part(index, ranks));
    agree(ranks, if ranks.rank() == 0 { args.check(shard.as_deref()) } else { Ok(()) })?;
    match (&args.index, &args.base) {
        (Some(index), _) => search_index(args, index, ranks),
        (None, Some(base)) => search_base(args, base, ranks),
        // The command line requires one of them.
        (None, None) => Ok(None),
    }
}

fn search_index(args: &search::Args, path: &Path, ranks: &Mpi) -> Outcome<Option<Report>> {
    let start = Instant::now();
    let IndexFiles { file, queries, truth } = agree(ranks, IndexFiles::read(args, &part(path, ranks)))?;
    if file.kind() != IndexKind::Ivf {
        return Err(of_inverted_files(name_of(&file)));
    }
    with_element!(file.element, T => {
        let queries = agree(ranks, exactly::<T>(&queries, &args.query))?;
        let load_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let (device, how) = (placement(&args.device, ranks), args.access.how);
        let index = Sharded::<_, IvfIndex<T>>::load_with(ranks, path, device, args.memory_budget, how)?;
        agree(ranks, args.check_ids(index.shard().greatest_id()))?;
        let build_seconds = start.elapsed().as_secs_f64();
        let about = about_all(About::ivf(index.shard(), args), index.len(), ranks);
        let options = SearchOptions::new().probes(about.probes);
        let start = Instant::now();
        let found = index.search(&queries, args.k, &options)?;
        let seconds = start.elapsed().as_secs_f64();
        let job = Job { args, about, queries, base: None, truth: truth.as_ref(), load_seconds, build_seconds };
        found.map(|found| job.report(&found.ids, &found.distances, seconds)).transpose()
    })
}

fn search_base(args: &search::Args, path: &Path, ranks: &Mpi) -> Outcome<Option<Report>> {
    let start = Instant::now();
    let BaseFiles { base, queries, truth, dim, .. } = agree(ranks, BaseFiles::read(args, path))?;
    with_element!(base.element(), T => {
        // They are of the same type now.
        let read = exactly::<T>(&base, path).and_then(|rows| Ok((rows, exactly::<T>(&queries, &args.query)?)));
        let (rows, queries) = agree(ranks, read)?;
        let load_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let builder = flat_builder::<T>(args, dim).device(placement(&args.device, ranks));
        let index = Sharded::<_, FlatIndex<T>>::build(ranks, builder, &rows)?;
        let build_seconds = start.elapsed().as_secs_f64();
        let about = about_all(About::flat(index.shard()), index.len(), ranks);
        let start = Instant::now();
        let found = index.search(&queries, args.k)?;
        let seconds = start.elapsed().as_secs_f64();
        let job = Job { args, about, queries, base: Some(&*rows), truth: truth.as_ref(), load_seconds, build_seconds };
        found.map(|found| job.report(&found.ids, &found.distances, seconds)).transpose()
    })
}

#[derive(Serialize)]
struct Built {
    device: String,
    ranks: usize,
    index: String,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    vectors: u64,
    load_seconds: f64,
    build_seconds: f64,
    save_seconds: f64,
    /// Rank 0's.
    file: String,
}

/// `build --mpi`.
pub fn build(args: &build::Args, out: &Out) -> Outcome {
    with_ranks(out, |ranks| {
        let inputs = [Some(&*args.base), args.ids.as_deref(), args.recipes.ivf.train.as_deref()];
        refuse(inputs.into_iter().flatten())?;
        build_all(args, ranks, out)
    })
}

/// Builds on all ranks; rank 0 prints.
fn build_all(args: &build::Args, ranks: &Mpi, out: &Out) -> Outcome {
    let Made::Ivf(kind) = args.kind else { return Err(of_inverted_files(GRAPH.into())) };
    let start = Instant::now();
    let files = agree(ranks, build::Files::read(args, &part(&args.out, ranks)))?;
    let (dim, ids) = (files.base.dim(), files.ids.as_ref().map(|ids| &ids.ids[..]));
    let place = Place { device: placement(&args.place.device, ranks), ..args.place };
    let built = with_element!(files.base.element(), T => {
        let (rows, train) = agree(ranks, files.exactly::<T>(args))?;
        let load_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let builder = agree(ranks, args.recipes.ivf.builder::<T>(kind, &place, dim, files.base.rows()))?;
        let index = Sharded::<_, IvfIndex<T>>::build(ranks, builder, &rows, ids, train.as_deref())?;
        let build_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        index.save(&args.out)?;
        let shard = index.shard();
        Built {
            device: of_all(shard.device(), ranks),
            ranks: ranks.count(),
            index: describe_ivf(shard.encoding(), shard.lists()),
            element: T::TYPE.name(),
            metric: shard.metric().name(),
            dim,
            vectors: index.len(),
            load_seconds,
            build_seconds,
            save_seconds: start.elapsed().as_secs_f64(),
            file: part(&args.out, ranks).display().to_string(),
        }
    });
    if ranks.rank() > 0 {
        return Ok(());
    }
    let Built { device, index, element, metric, vectors, .. } = &built;
    out.field("device", device)?;
    out.field("vectors", format_args!("{vectors}, dimension {dim}, {element}, metric {metric}"))?;
    out.field("index", index)?;
    out.field("load", format_args!("{:.3} s", built.load_seconds))?;
    out.field("build", format_args!("{:.3} s", built.build_seconds))?;
    out.field("save", format_args!("{:.3} s, {} and so on", built.save_seconds, built.file))?;
    out.object(&built)
}
