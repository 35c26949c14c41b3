//! The program `warpann`: similarity search over vector files, exact or by an index, and checks and measurements of the
//! library.

mod bench;
mod build;
mod change;
mod chart;
mod completions;
mod components;
mod convert;
mod hdf5;
mod id_list;
mod index;
mod info;
mod kmeans;
mod knn_graph;
mod man;
mod parquet;
mod path;
mod progress;
#[cfg(feature = "mpi")]
mod ranks;
mod recall;
mod repeat;
mod report;
mod safetensors;
#[cfg(test)]
#[path = "../tests/common/schema.rs"]
mod schema;
mod search;
mod shifted;
mod streams;
mod tune;
mod vectors;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use report::{Failure, Out};
use streams::is_stream;

/// Nearest-neighbour search on GPU and CPU, exact, by an inverted file or by a graph.
#[derive(Debug, Parser)]
#[command(name = "warpann", version, arg_required_else_help = true, max_term_width = 120)]
struct Args {
    /// Print one JSON object, and nothing else, on standard output: the report, or the error. docs/JSON.md describes
    /// the objects.
    #[arg(long, global = true)]
    json: bool,
    /// Show no progress. Without this option, progress is shown if standard error is a terminal and --json is not
    /// given.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show devices, driver, memory, CPU and features of this build; or the properties of an index file.
    Info(info::Args),
    /// Make an index of a file of vectors: an inverted file or a graph.
    Build(build::Args),
    /// Add vectors to an index file.
    Add(change::AddArgs),
    /// Remove vectors from an index file by their ids.
    Remove(change::RemoveArgs),
    /// Merge index files into one.
    Merge(change::MergeArgs),
    /// Find the smallest number of probes, or the narrowest beam, for a recall, and keep it in the index file.
    Tune(tune::Args),
    /// Convert a file of vectors or ids to another format or element type; or a dataset of an HDF5 file.
    Convert(convert::Args),
    /// Find the k nearest vectors of every query, in a file of vectors or in an index.
    Search(search::Args),
    /// Find near neighbours in low dimension, approximately, by shifted sort: of points, boxes or the triangles of a
    /// mesh.
    Shifted(shifted::Args),
    /// Cluster vectors by k-means and write the centroids.
    Kmeans(kmeans::Args),
    /// Make the graph of the k nearest neighbours of every vector in a file.
    KnnGraph(knn_graph::Args),
    /// Find the path between two nodes of a graph whose largest edge is as small as possible.
    Path(path::Args),
    /// Count the connected components of a graph, and their nodes.
    Components(components::Args),
    /// Compare GPU, emulator and CPU on fresh random cases; exit code 1 at the first difference.
    Verify(verify::Args),
    /// Measure a part of the library, and show the work that every implementation must do.
    Bench(bench::Args),
    /// Draw reports of `bench ivf` and `bench graph` as one chart, with the best points of all indexes as a line.
    Chart(bench::chart::Args),
    /// Print the completions of a shell, which offer commands, options and values of options.
    Completions(completions::Args),
    /// Print the manual page of the program, or write a page for every command to a folder.
    Man(man::Args),
}

impl Command {
    /// Whether standard output is an output file of the command, so that the report goes to standard error.
    fn writes_data_to_stdout(&self) -> bool {
        match self {
            Self::Convert(args) => args.outputs().any(is_stream),
            Self::Search(args) => args.outputs().any(is_stream),
            Self::Shifted(args) => args.outputs().any(is_stream),
            Self::Kmeans(args) => args.outputs().any(is_stream),
            // The others write only files.
            _ => false,
        }
    }
}

/// The command that a command line names, such as `bench ivf`; none if the line names no command.
fn command_of(words: &[OsString]) -> Option<String> {
    let root = Args::command();
    let (mut at, mut names) = (&root, Vec::new());
    // No option in front of a command takes a value.
    for word in words.iter().skip(1).filter_map(|word| word.to_str()).filter(|word| !word.starts_with('-')) {
        let Some(command) = at.find_subcommand(word) else { break };
        names.push(command.get_name().to_owned());
        at = command;
    }
    (!names.is_empty()).then(|| names.join(" "))
}

/// Prints an error of the command line, the help or the version, and returns the exit code.
fn refuse(error: &clap::Error, words: &[OsString], command: Option<String>) -> ExitCode {
    if error.exit_code() != 0 && words.iter().any(|word| word == "--json") {
        let text = error.render().to_string();
        let text = text.trim_start_matches("error: ").trim_end();
        Out::new(true, command).fail(&Failure::Usage(text.to_owned()));
    } else {
        // If the message cannot be printed, there is nothing left to do.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// 0: done; 1: failed, with `error: ...` on standard error; 2: the command line is wrong. With `--json` the error is
/// also an object, where the report would be.
fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let command = command_of(&words);
    let args = match Args::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => return refuse(&error, &words, command),
    };
    let out = Out::new(args.json, command).aside(args.command.writes_data_to_stdout());
    if args.json || args.quiet {
        progress::hide();
    }
    let result = match args.command {
        Command::Info(args) => info::run(&args, &out),
        #[cfg(feature = "mpi")]
        Command::Build(args) if args.mpi => ranks::build(&args, &out),
        Command::Build(args) => build::run(&args, &out),
        Command::Add(args) => change::run_add(&args, &out),
        Command::Remove(args) => change::run_remove(&args, &out),
        Command::Merge(args) => change::run_merge(&args, &out),
        Command::Tune(args) => tune::run(&args, &out),
        Command::Convert(args) => convert::run(&args, &out),
        #[cfg(feature = "mpi")]
        Command::Search(args) if args.mpi => ranks::search(&args, &out),
        Command::Search(args) => search::run(&args, &out),
        Command::Shifted(args) => shifted::run(&args, &out),
        Command::Kmeans(args) => kmeans::run(&args, &out),
        Command::KnnGraph(args) => knn_graph::run(&args, &out),
        Command::Path(args) => path::run(&args, &out),
        Command::Components(args) => components::run(&args, &out),
        Command::Verify(args) => verify::run(&args, &out),
        Command::Bench(args) => bench::run(&args, &out),
        Command::Chart(args) => bench::chart::run(&args, &out),
        Command::Completions(args) => completions::run(&args, Args::command(), &out),
        Command::Man(args) => man::run(&args, Args::command(), &out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        #[cfg(feature = "mpi")]
        Err(Failure::Told) => ExitCode::FAILURE,
        Err(failure) => {
            out.fail(&failure);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap checks in debug builds only that the commands have consistent arguments, and each command only when it
    /// runs.
    #[test]
    fn arguments_are_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }
}
