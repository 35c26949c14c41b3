//! `warpann path`.

use std::path::PathBuf;

use serde::Serialize;
use warpann::Metric;

use crate::progress::spinning;
use crate::report::{Failure, Out, Outcome};
use crate::streams::check_files;
use crate::vectors::{Access, with_element};

/// Arguments of `path`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The graph: ids of neighbours, in ibin, npy, ivecs or bin. Edges are read in both directions.
    #[arg(long, value_name = "FILE")]
    graph: PathBuf,
    /// The vectors of the graph: fvecs, bvecs, fbin, u8bin, i8bin or npy.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// The node at which the path starts
    #[arg(long, value_name = "NODE")]
    from: u64,
    /// The node at which the path ends
    #[arg(long, value_name = "NODE")]
    to: u64,
    /// l2 (squared Euclidean distance), ip (inner product), cosine, or for u8 hamming (bits, eight in a byte). For ip
    /// and cosine the largest edge is the least similar one.
    #[arg(long, default_value = "l2")]
    metric: Metric,
    #[command(flatten)]
    access: Access,
}

#[derive(Serialize)]
struct Report {
    metric: &'static str,
    nodes: Vec<u64>,
    /// None if there is no edge.
    largest: Option<f32>,
}

/// Prints the nodes, one per line, and then the largest edge.
pub fn run(args: &Args, out: &Out) -> Outcome {
    check_files(args.access.stdin, [&*args.graph, &*args.base], [])?;
    let graph = spinning("reading the graph", || args.access.stdin.graph(&args.graph))?;
    let base = args.access.vectors(&args.base)?;
    let path = spinning("looking for the path", || {
        with_element!(base.element(), T => {
            let Some(rows) = base.as_slice::<T>() else {
                return Err(Failure::Message("the base is of another element type".into()));
            };
            // A file without rows may have no dimension; then the graph has no nodes either.
            Ok(graph.path(rows, base.dim().max(1), args.metric, args.from, args.to)?)
        })
    })?;
    for node in &path.nodes {
        out.line(node)?;
    }
    match path.largest {
        Some(largest) => out.line(format_args!("largest edge {largest}"))?,
        None => out.line("no edge")?,
    }
    out.object(&Report { metric: args.metric.name(), nodes: path.nodes, largest: path.largest })
}
