//! `cargo xtask mutate`: changes the code at random places and says which changes no test notices.
//!
//! # How
//! One build serves all mutants. The command copies the repository, and writes each mutation behind a switch:
//! `(if on(7) { a < b } else { a <= b })`. Then it runs the test programs once for each mutant, with the number of the
//! mutant in the
//! environment. So a mutant costs the time of its tests, and not a build: the kernels compile in 40 s of CPU, and a
//! direct test takes
//! milliseconds. (cargo-mutants, the tool for Rust in general, builds each mutant.) A kernel runs on the emulator, so
//! the switch works in it.
//!
//! The compiler says which mutations do not compile behind a switch: types that do not match, and places that it
//! evaluates itself. The
//! command leaves the former out. The latter, such as a `const fn`, are built one at a time if `--builds` allows it.
//!
//! Mutations of the bodies of functions: comparisons, operators, numbers, conditions, `min` for `max` and the like,
//! and statements that
//! are left out. The sample depends on the seed only, as long as the files do not change. The working tree is never
//! written.

mod find;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_random::Random;

use crate::shell::{self, Result};
use find::Mutation;

/// The variable that holds the number of the active mutant.
const VARIABLE: &str = "WARPANN_MUTANT";

/// Put at the end of the crate that is mutated. The variable is read once.
const SWITCH: &str = r#"
#[doc(hidden)]
#[allow(missing_docs, clippy::all)]
pub mod mutation_switch {
    static ACTIVE: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| {
        std::env::var("WARPANN_MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(usize::MAX)
    });
    #[inline]
    pub fn on(number: usize) -> bool {
        *ACTIVE == number
    }
}
"#;

/// The options of the command.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A file or folder to mutate, such as kernels-rs/src/select; may be given several times, in one crate
    #[arg(long, required = true)]
    pub path: Vec<String>,
    /// Number of mutants of each path, drawn at random
    #[arg(long, default_value_t = 40)]
    pub count: usize,
    /// Seed of the sample
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of mutants that may have a build of their own: those in code that the compiler evaluates
    #[arg(long, default_value_t = 0)]
    pub builds: usize,
    /// Run only the mutants of this path; the build has those of all, so that the next path needs no other build
    #[arg(long)]
    pub only: Vec<String>,
    /// Only print the sample
    #[arg(long)]
    pub list: bool,
    /// The tests, as arguments of cargo test: -p warpann-kernels --test kernels -- select::
    #[arg(last = true, required = true)]
    pub tests: Vec<String>,
}

/// A mutation of a file.
struct Mutant {
    /// Index of the path that the options name.
    path: usize,
    /// Path below the root of the repository.
    file: String,
    mutation: Mutation,
}

/// The result of the tests with a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// At least one test failed with the mutant.
    Killed,
    /// A test did not end in time.
    TimedOut,
    /// All tests passed with the mutant, so none notices it.
    Survived,
}

pub fn run(options: &Options) -> Result<()> {
    let root = shell::root();
    let crate_folder = options.path[0].split_once("/src").map(|(folder, _)| folder.to_owned());
    let crate_folder = crate_folder.ok_or("a path leads into the folder src of a crate")?;
    let (mut texts, mut mutants) = (BTreeMap::new(), Vec::new());
    for (number, path) in options.path.iter().enumerate() {
        let mut own = BTreeMap::new();
        read(&root, path, &mut own)?;
        if own.is_empty() || !path.starts_with(&format!("{crate_folder}/src")) {
            return Err(format!("{path} has no files, or is not in the crate {crate_folder}").into());
        }
        let (places, chosen) = sample(&own, number, options.count, options.seed)?;
        println!("{path}: {places} places in {} files, {} mutants", own.len(), chosen.len());
        mutants.extend(chosen);
        texts.extend(own);
    }
    if options.list {
        mutants.iter().enumerate().for_each(|(number, mutant)| println!("{}", mutant.describe(number, &texts)));
        return Ok(());
    }
    let library = format!("{crate_folder}/src/lib.rs");
    if let Some(other) = options.only.iter().find(|only| !options.path.contains(only)) {
        return Err(format!("--only {other} is not one of the paths").into());
    }
    let tree = Tree::copy(&root, &texts, &library)?;
    let (cargo_arguments, test_arguments) = split(&options.tests);
    // Mutations that an earlier run could not switch, so that this run compiles the crate once.
    let known = tree.refusals()?;
    let known_as = |number: usize| known.get(&mutants[number].describe(0, &texts)).copied();
    let (mut switched, mut alone, mut invalid) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (number, mutant) in mutants.iter().enumerate() {
        let set = match known_as(number) {
            Some(true) => &mut alone,
            Some(false) => &mut invalid,
            None if mutant.mutation.constant => &mut alone,
            None => &mut switched,
        };
        set.insert(number);
    }
    let programs = loop {
        let places = write_switched(&tree, &texts, &library, &mutants, &switched)?;
        match tree.build(cargo_arguments)? {
            Build::Done(programs) => break programs,
            Build::Errors(errors) => {
                let refused = refused(&errors, &places);
                if refused.is_empty() {
                    return Err(format!("the mutated crate does not compile:\n{}", errors[0].text).into());
                }
                for (number, constant) in refused {
                    switched.remove(&number);
                    if constant { &mut alone } else { &mut invalid }.insert(number);
                    tree.add_refusal(constant, &mutants[number].describe(0, &texts))?;
                }
            }
        }
    };
    count_tests(&programs, test_arguments)?;
    let start = Instant::now();
    if tests(&programs, test_arguments, usize::MAX, Duration::from_secs(600))? != Outcome::Survived {
        return Err("a test fails without any mutation".into());
    }
    let limit = start.elapsed() * 10 + Duration::from_secs(5);
    println!("tests take {:.2} s; a mutant has {:.0} s", start.elapsed().as_secs_f64(), limit.as_secs_f64());
    let runs = |number: &usize| options.only.is_empty() || options.only.contains(&options.path[mutants[*number].path]);
    let mut outcomes = BTreeMap::new();
    for &number in switched.iter().filter(|number| runs(number)) {
        outcomes.insert(number, report(tests(&programs, test_arguments, number, limit)?, number, &mutants, &texts));
    }
    for &number in alone.iter().filter(|number| runs(number)).take(options.builds) {
        let mutant = &mutants[number];
        write_switched(&tree, &texts, &library, &mutants, &BTreeSet::new())?;
        tree.write(&mutant.file, &mutant.mutation.alone(&texts[&mutant.file]))?;
        match tree.build(cargo_arguments)? {
            Build::Done(programs) => {
                let outcome = tests(&programs, test_arguments, usize::MAX, limit)?;
                outcomes.insert(number, report(outcome, number, &mutants, &texts));
            }
            Build::Errors(_) => _ = invalid.insert(number),
        }
    }
    for (path, name) in options.path.iter().enumerate() {
        if !options.only.is_empty() && !options.only.contains(name) {
            continue;
        }
        let own: Vec<usize> = (0..mutants.len()).filter(|&number| mutants[number].path == path).collect();
        let count = |outcome| own.iter().filter(|&number| outcomes.get(number) == Some(&outcome)).count();
        let [killed, late, survived] = [Outcome::Killed, Outcome::TimedOut, Outcome::Survived].map(count);
        let not_rust = own.iter().filter(|&number| invalid.contains(number)).count();
        let (ran, of) = (killed + late + survived, own.len());
        println!(
            "{name}: {ran} mutants ran: {killed} killed, {late} timed out, {survived} survived; \
             {not_rust} do not compile, {} need a build of their own",
            of - ran - not_rust,
        );
    }
    Ok(())
}

/// Prints a mutant that survived, and returns the outcome.
fn report(outcome: Outcome, number: usize, mutants: &[Mutant], texts: &BTreeMap<String, String>) -> Outcome {
    match outcome {
        Outcome::Survived => println!("survived: {}", mutants[number].describe(number, texts)),
        Outcome::TimedOut => println!("timed out: {}", mutants[number].describe(number, texts)),
        Outcome::Killed => {}
    }
    outcome
}

impl Mutant {
    fn describe(&self, number: usize, texts: &BTreeMap<String, String>) -> String {
        let text = &texts[&self.file];
        format!("{number}: {}:{}: {}", self.file, self.mutation.line(text), self.mutation.describe(text))
    }
}

/// Reads the Rust files at or below `path`.
fn read(root: &Path, path: &str, texts: &mut BTreeMap<String, String>) -> Result<()> {
    let path = path.trim_end_matches('/');
    let full = root.join(path);
    if full.is_dir() {
        for entry in std::fs::read_dir(&full)? {
            read(root, &format!("{path}/{}", entry?.file_name().to_string_lossy()), texts)?;
        }
    } else if path.ends_with(".rs") {
        let text = std::fs::read_to_string(&full).map_err(|error| format!("{}: {error}", full.display()))?;
        texts.insert(path.to_owned(), text);
    }
    Ok(())
}

/// The number of all places, and `count` mutations of them that one build can have together.
fn sample(texts: &BTreeMap<String, String>, path: usize, count: usize, seed: u64) -> Result<(usize, Vec<Mutant>)> {
    let mut all = Vec::new();
    for (file, text) in texts {
        let mutations = find::mutations(text).map_err(|error| format!("{file}: {error}"))?;
        all.extend(mutations.into_iter().map(|mutation| Mutant { path, file: file.clone(), mutation }));
    }
    let places = all.len();
    Random::new(seed).shuffle(&mut all);
    let mut chosen: Vec<Mutant> = Vec::new();
    for mutant in all {
        let clashes = |other: &Mutant| other.file == mutant.file && other.mutation.clashes(&mutant.mutation);
        if chosen.len() < count && !chosen.iter().any(clashes) {
            chosen.push(mutant);
        }
    }
    chosen
        .sort_by(|a, b| (&a.file, a.mutation.line(&texts[&a.file])).cmp(&(&b.file, b.mutation.line(&texts[&b.file]))));
    Ok((places, chosen))
}

/// The arguments of cargo, and those of the test programs behind `--`.
fn split(arguments: &[String]) -> (&[String], &[String]) {
    match arguments.iter().position(|argument| argument == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[]),
    }
}

/// The places of mutations in the files of the copy: the number and the bytes, by file.
type Places = BTreeMap<String, Vec<(usize, std::ops::Range<usize>)>>;

/// Writes all files with the mutations `numbers` behind switches, and the switch into `library`.
fn write_switched(
    tree: &Tree,
    texts: &BTreeMap<String, String>,
    library: &str,
    mutants: &[Mutant],
    numbers: &BTreeSet<usize>,
) -> Result<Places> {
    let mut places = Places::new();
    for (file, text) in texts {
        let own = numbers.iter().filter(|&&number| mutants[number].file == *file);
        let own: Vec<(usize, &Mutation)> = own.map(|&number| (number, &mutants[number].mutation)).collect();
        let switched = find::switched(text, &own);
        let end = if file == library { SWITCH } else { "" };
        tree.write(file, &(switched.text + end))?;
        places.insert(file.clone(), switched.places);
    }
    if !texts.contains_key(library) {
        let text = std::fs::read_to_string(shell::root().join(library))?;
        tree.write(library, &(text + SWITCH))?;
    }
    Ok(places)
}

/// An error of the compiler.
struct Error {
    text: String,
    /// Whether the compiler evaluates the place.
    constant: bool,
    /// File below the root of the copy, and bytes in it.
    spans: Vec<(String, std::ops::Range<usize>)>,
}

/// The mutations at which `errors` point, and whether the place is one that the compiler evaluates.
fn refused(errors: &[Error], places: &Places) -> Vec<(usize, bool)> {
    let mut found = Vec::new();
    for error in errors {
        for (file, span) in &error.spans {
            let touched = places
                .get(file)
                .into_iter()
                .flatten()
                .filter(|(_, place)| place.start < span.end.max(span.start + 1) && span.start < place.end);
            // The smallest place is meant where one contains another.
            let inner = |place: &std::ops::Range<usize>| place.start <= span.start && span.end <= place.end;
            let touched: Vec<_> = touched.collect();
            let smallest = touched.iter().filter(|(_, place)| inner(place)).min_by_key(|(_, place)| place.len());
            match smallest {
                Some((number, _)) => found.push((*number, error.constant)),
                None => found.extend(touched.iter().map(|(number, _)| (*number, error.constant))),
            }
        }
    }
    found
}

/// The result of a build.
enum Build {
    /// The test programs, each with the folder in which it runs.
    Done(Vec<(PathBuf, PathBuf)>),
    /// The errors of the compiler.
    Errors(Vec<Error>),
}

/// A copy of the repository in the target directory.
struct Tree {
    folder: PathBuf,
    target: PathBuf,
}

impl Tree {
    /// Copies what git tracks, and new files that it does not ignore. Files that are the same stay untouched, so that
    /// cargo compiles only what
    /// changed.
    fn copy(root: &Path, mutated: &BTreeMap<String, String>, library: &str) -> Result<Tree> {
        let folder = shell::target_dir().join("mutate").join("tree");
        let tree = Tree { folder, target: shell::target_dir().join("mutate").join("target") };
        let mut list = Command::new("git");
        list.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        for file in shell::output(&mut list)?.split('\0').filter(|file| !file.is_empty()) {
            // A tracked file may be deleted. Those of the crate are written with their mutations.
            if let Ok(bytes) = std::fs::read(root.join(file))
                && !mutated.contains_key(file)
                && file != library
            {
                tree.write_bytes(file, &bytes)?;
            }
        }
        Ok(tree)
    }

    /// The file that lists the mutations that no switch can hold.
    fn refusals_file(&self) -> PathBuf {
        self.folder.with_file_name("refused.txt")
    }

    /// The descriptions of these mutations, and whether the compiler evaluates the place.
    fn refusals(&self) -> Result<BTreeMap<String, bool>> {
        let text =
            if self.refusals_file().exists() { std::fs::read_to_string(self.refusals_file())? } else { String::new() };
        Ok(text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(kind, text)| (text.to_owned(), kind == "constant"))
            .collect())
    }

    fn add_refusal(&self, constant: bool, description: &str) -> Result<()> {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(self.refusals_file())?;
        Ok(writeln!(file, "{} {description}", if constant { "constant" } else { "invalid" })?)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        self.write_bytes(file, text.as_bytes())
    }

    fn write_bytes(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(file);
        if std::fs::read(&path).is_ok_and(|own| own == bytes) {
            return Ok(());
        }
        std::fs::create_dir_all(path.parent().ok_or("a file has a folder")?)?;
        Ok(std::fs::write(path, bytes)?)
    }

    /// Compiles the tests in the copy.
    fn build(&self, arguments: &[String]) -> Result<Build> {
        let mut command = shell::cargo();
        command.current_dir(&self.folder).env("CARGO_TARGET_DIR", &self.target);
        command.args(["test", "--no-run", "--message-format=json"]).args(arguments);
        eprintln!("$ {}", shell::shown(&command));
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
        let (mut errors, mut programs) = (Vec::new(), Vec::new());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
                errors.push(Error::of(&message["message"]));
            } else if message["reason"] == "compiler-artifact" && message["profile"]["test"] == true {
                let folder = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
                if let (Some(program), Some(folder)) = (message["executable"].as_str(), folder) {
                    programs.push((program.into(), folder.into()));
                }
            }
        }
        errors.retain(|error| !error.spans.is_empty());
        if !output.status.success() && errors.is_empty() {
            return Err(format!("cargo test: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        if output.status.success() && programs.is_empty() {
            return Err("these arguments of cargo test name no test program".into());
        }
        Ok(if output.status.success() { Build::Done(programs) } else { Build::Errors(errors) })
    }
}

impl Error {
    fn of(message: &Value) -> Error {
        let mut spans = Vec::new();
        add_spans(message, &mut spans);
        // Calls of functions that are not constant, and errors of an evaluation.
        let constant = ["E0015", "E0080", "E0658"].iter().any(|code| message["code"]["code"] == *code);
        Error { text: message["rendered"].as_str().unwrap_or_default().to_owned(), constant, spans }
    }
}

/// Adds the places to which a message points, also through macros.
fn add_spans(message: &Value, spans: &mut Vec<(String, std::ops::Range<usize>)>) {
    for span in message["spans"].as_array().into_iter().flatten() {
        let mut span = span;
        while !span.is_null() {
            let at = |key: &str| span[key].as_u64().unwrap_or(0) as usize;
            if let Some(file) = span["file_name"].as_str() {
                spans.push((file.to_owned(), at("byte_start")..at("byte_end")));
            }
            span = &span["expansion"]["span"];
        }
    }
}

/// Fails unless the arguments select a test: without one, every mutant would survive.
fn count_tests(programs: &[(PathBuf, PathBuf)], arguments: &[String]) -> Result<()> {
    for (program, folder) in programs {
        let list = shell::output(Command::new(program).current_dir(folder).args(arguments).arg("--list"))?;
        if list.lines().any(|line| line.ends_with(": test")) {
            return Ok(());
        }
    }
    Err("the arguments select no test".into())
}

/// Runs all test programs with mutant `number`, until one fails.
fn tests(programs: &[(PathBuf, PathBuf)], arguments: &[String], number: usize, limit: Duration) -> Result<Outcome> {
    for (program, folder) in programs {
        let mut command = Command::new(program);
        command.current_dir(folder).args(arguments).env(VARIABLE, number.to_string());
        // A backtrace can take longer than all tests.
        command.env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        // The program runs its other tests after a failure; this command does not wait for them.
        let (tell, told) = std::sync::mpsc::channel();
        let output = child.stdout.take();
        let reader = std::thread::spawn(move || {
            let lines =
                output.into_iter().flat_map(|output| BufReader::new(output).lines().map_while(|line| line.ok()));
            let failed = lines.into_iter().any(|line| line.ends_with("... FAILED"));
            // Nobody waits any more after the limit.
            let _ = tell.send(failed);
        });
        let failed = told.recv_timeout(limit);
        if failed != Ok(false) {
            child.kill()?;
        }
        let status = child.wait()?;
        reader.join().map_err(|_| "the reader of a test program's output panicked")?;
        match failed {
            Err(_) => return Ok(Outcome::TimedOut),
            Ok(true) => return Ok(Outcome::Killed),
            Ok(false) if !status.success() => return Ok(Outcome::Killed),
            Ok(false) => {}
        }
    }
    Ok(Outcome::Survived)
}
