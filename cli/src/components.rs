//! `warpann components`.

use std::path::PathBuf;

use serde::Serialize;

use crate::progress::spinning;
use crate::report::{Out, Outcome};
use crate::streams::Stdin;

/// Arguments of `components`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The graph: ids of neighbours, in ibin, npy, ivecs or bin. Edges are read in both directions.
    #[arg(long, value_name = "FILE")]
    graph: PathBuf,
    #[command(flatten)]
    stdin: Stdin,
}

#[derive(Serialize)]
struct Report {
    nodes: usize,
    edges: usize,
    components: usize,
    /// Sizes of components with their counts, the largest first.
    sizes: Vec<Size>,
}

/// Components of one size.
#[derive(Serialize)]
struct Size {
    nodes: u64,
    components: usize,
}

/// Prints the number of components and their sizes.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let graph = spinning("reading the graph", || args.stdin.graph(&args.graph))?;
    let all = spinning("looking for components", || graph.components().sizes);
    let sizes = all.chunk_by(|a, b| a == b).map(|same| Size { nodes: same[0], components: same.len() }).collect();
    let report = Report { nodes: graph.len(), edges: graph.edges(), components: all.len(), sizes };
    out.field("graph", format_args!("{} nodes, {} edges", report.nodes, report.edges))?;
    out.field("components", report.components)?;
    for Size { nodes, components } in &report.sizes {
        out.line(format_args!("{components:>12} of {nodes} nodes"))?;
    }
    out.object(&report)
}
