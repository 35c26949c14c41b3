//! `warpann verify`: runs every back end on the same random cases and compares the results.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use test_cases::exact::ExactCase;
use test_cases::selection::SelectCase;
use test_cases::vectors::VectorsShape;
use test_cases::{Difference, Failure as Defect, same, word};
use test_random::Random;
use warpann::select::Best;
use warpann::{Device, ElementType, Error, FlatIndex, Metric};

use crate::progress::Step;
use crate::repeat;
use crate::report::{Failure, Out, Outcome, positive};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of cases.
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// Seed of the first case; each further case has the next seed. Default: a new seed in every run.
    #[arg(long)]
    seed: Option<u64>,
    /// Devices to compare in addition to the CPU: auto (the emulator, and the GPU if there is one), gpu or gpu:N (GPU
    /// and emulator), emulator, or cpu (none). A GPU that is named must exist.
    ///
    /// All results must equal, to the bit, the definition of the results: all distances, sorted. Small cases are also
    /// searched in a graph that each device makes, whose results must be those of the CPU.
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Instead of random cases: this number of searches of four small indexes (exact, IVF-Flat, IVF-PQ, graph) on the
    /// device, in turn and from several threads. Each result must equal, to the bit, that of the CPU.
    #[arg(long, conflicts_with = "cases")]
    repeat: Option<u64>,
    /// Threads that search at once, with --repeat.
    #[arg(long, default_value_t = 4, value_parser = positive, requires = "repeat")]
    threads: usize,
}

/// The operation of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Task {
    /// Cases of exact search.
    Search,
    /// k-selection: `queries` rows of `n` keys; the "metric" is smallest or largest.
    Select,
}

/// One random case of a search.
#[derive(Debug, Clone, Serialize)]
struct Case {
    seed: u64,
    task: Task,
    element: &'static str,
    metric: &'static str,
    dim: usize,
    n: usize,
    queries: usize,
    k: usize,
    data: String,
}

#[derive(Serialize)]
struct Report<'a> {
    seed: u64,
    passed: bool,
    compared: Vec<&'a str>,
    missing: Vec<String>,
    cases: Vec<Row>,
    difference: Option<FirstDifference>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    /// Back ends that ran the case and agreed with the definition.
    agreed: Vec<&'static str>,
}

/// The first place at which a back end differs from the definition.
#[derive(Debug, Serialize)]
struct FirstDifference {
    seed: u64,
    backend: &'static str,
    query: usize,
    place: usize,
    expected_id: Option<u64>,
    expected_distance: Option<f32>,
    id: Option<u64>,
    distance: Option<f32>,
}

impl FirstDifference {
    fn new(seed: u64, backend: &'static str, difference: &Difference) -> Self {
        let &Difference { query, place, expected, found } = difference;
        let ((expected_id, expected_distance), (id, distance)) = (expected, found);
        Self { seed, backend, query, place, expected_id, expected_distance, id, distance }
    }
}

/// A back end, and the products of components (n · queries · dim) up to which it runs a case.
struct Backend {
    name: &'static str,
    device: Device,
    work: usize,
}

/// The largest graph of a case, in products of components of its vectors with each other (n · n · dim), and the part of
/// that which the emulator does.
const WALK_WORK: (usize, usize) = (1 << 22, 1 << 15);

/// The largest case that runs on the emulator, in products of components: emulated threads are thousands of times
/// slower than real ones.
const EMULATOR_WORK: usize = 1 << 18;

/// Runs the cases; fails at the first difference.
pub fn run(args: &Args, out: &Out) -> Outcome {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 >> 10);
    let seed = args.seed.unwrap_or_else(now);
    if let Some(searches) = args.repeat {
        return repeat::run(repeat::Plan { searches, threads: args.threads, seed, device: args.device }, out);
    }
    let (backends, missing) = backends(args.device)?;
    out.field("seed", seed)?;
    let names: Vec<&str> = backends.iter().map(|backend| backend.name).collect();
    out.line(line(HEADER, &names))?;
    let mut report = Report { seed, passed: true, compared: names, missing, cases: Vec::new(), difference: None };
    let step = Step::of("verifying", usize::try_from(args.cases).unwrap_or(usize::MAX), "cases");
    for i in 0..args.cases {
        let (case, drawn, random) = draw(seed.wrapping_add(i));
        let (agreed, differs) = compare(&case, drawn, random, &backends)?;
        let marks = backends.iter().map(|backend| match differs {
            Some((name, _)) if name == backend.name => "DIFF",
            Some(_) => "",
            None if agreed.contains(&backend.name) => "ok",
            None => "-",
        });
        let marks: Vec<String> =
            marks.zip(&backends).map(|(mark, of)| format!("{mark:<width$}", width = of.name.len())).collect();
        let marks: Vec<&str> = marks.iter().map(String::as_str).collect();
        step.aside(|| out.line(case.line(&marks)))?;
        step.advance(1);
        let seed = case.seed;
        report.cases.push(Row { case, agreed: if differs.is_some() { Vec::new() } else { agreed } });
        if let Some((backend, difference)) = differs {
            drop(step);
            (report.passed, report.difference) = (false, Some(FirstDifference::new(seed, backend, &difference)));
            let again = format!("repeat with: warpann verify --cases 1 --seed {seed}");
            return Err(Failure::difference(format!("{backend} differs at {difference}; {again}"), &report));
        }
    }
    drop(step);
    for missing in &report.missing {
        out.line(format_args!("not compared: {missing}"))?;
    }
    let ran = |name: &str| report.cases.iter().filter(|row| row.agreed.contains(&name)).count();
    let counts: Vec<String> =
        backends.iter().map(|backend| format!("{} {}", backend.name, ran(backend.name))).collect();
    let without: Vec<&str> = report.missing.iter().filter_map(|missing| missing.split(':').next()).collect();
    let without = if without.is_empty() { String::new() } else { format!("; WITHOUT {}", without.join(" and ")) };
    out.line(format_args!("no difference; cases that agree with the definition: {}{without}", counts.join(", ")))?;
    out.object(&report)
}

/// The titles of the columns.
const HEADER: [&str; 9] = ["seed", "task", "type", "metric", "dim", "n", "queries", "k", "data"];

/// A line of the table, with a mark for each back end.
fn line(columns: [&str; 9], marks: &[&str]) -> String {
    let [seed, task, element, metric, dim, n, queries, k, data] = columns;
    let numbers = format!("{dim:>5} {n:>6} {queries:>7} {k:>5}");
    format!("{seed:>20} {task:>6} {element:>4} {metric:>8} {numbers}  {data:<26} {}", marks.join(" "))
}

impl Case {
    fn line(&self, marks: &[&str]) -> String {
        let task = word(&self.task);
        let [seed, dim, n, queries, k] =
            [self.seed, self.dim as u64, self.n as u64, self.queries as u64, self.k as u64].map(|n| n.to_string());
        line([&seed, &task, self.element, self.metric, &dim, &n, &queries, &k, &self.data], marks)
    }
}

/// The back ends to compare, and the missing ones, each with the reason.
fn backends(device: Device) -> Outcome<(Vec<Backend>, Vec<String>)> {
    let cpu = Backend { name: "cpu", device: Device::Cpu, work: usize::MAX };
    let emulator = Backend { name: "emulator", device: Device::Emulator, work: EMULATOR_WORK };
    let gpu = |device| Backend { name: "gpu", device, work: usize::MAX };
    let wanted = match device {
        Device::Cpu => vec![],
        Device::Emulator => vec![emulator],
        Device::Gpu(_) => vec![emulator, gpu(device)],
        Device::Auto => vec![emulator, gpu(Device::Gpu(0))],
        other => return Err(Failure::Message(format!("this program does not compare {other}"))),
    };
    let mut there = vec![cpu];
    let mut missing = Vec::new();
    for backend in wanted {
        match FlatIndex::<f32>::new(1, Metric::L2, backend.device) {
            Ok(_) => there.push(backend),
            Err(error @ Error::NoDevice { .. }) if backend.device != device => {
                missing.push(format!("{}: {error}", backend.name));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((there, missing))
}

/// The work that a case compares.
enum Drawn {
    /// Searches, and walks in a graph of this degree.
    Search(ExactCase, usize),
    Select(SelectCase),
}

/// The case of a seed, and the random numbers for its vectors.
fn draw(seed: u64) -> (Case, Drawn, Random) {
    let mut random = Random::new(seed);
    let work = random.pick(&[EMULATOR_WORK, EMULATOR_WORK, 1 << 22, 1 << 26]);
    if random.once_in(4) {
        let drawn = SelectCase::draw(&mut random, work.min(1 << 22));
        let SelectCase { rows: queries, columns: n, k, key, best, data, .. } = drawn;
        let metric = if best == Best::Smallest { "smallest" } else { "largest" };
        let (task, element, data) = (Task::Select, key.name(), word(&data));
        let case = Case { seed, task, element, metric, dim: 1, n, queries, k, data };
        return (case, Drawn::Select(drawn), random);
    }
    let element = random.pick(&ElementType::ALL);
    // With a budget that is too small a search would end with an error.
    let drawn = ExactCase { budget: None, ..ExactCase::draw(&mut random, element, work) };
    let ExactCase { metric, shape: VectorsShape { dim, n, nq: queries }, k, form, .. } = drawn;
    let (element, metric, data) = (element.name(), metric.name(), form.to_string());
    let case = Case { seed, task: Task::Search, element, metric, dim, n, queries, k, data };
    let degree = 4 + random.below(13);
    (case, Drawn::Search(drawn, degree), random)
}

/// The back ends that agree with the definition, up to the first that does not.
type Compared = (Vec<&'static str>, Option<(&'static str, Difference)>);

fn compare(case: &Case, drawn: Drawn, mut random: Random, backends: &[Backend]) -> Outcome<Compared> {
    let (drawn, degree) = match drawn {
        Drawn::Search(drawn, degree) => (drawn, degree),
        Drawn::Select(selection) => return on_each(case, backends, |backend| selection.run(backend.device)),
    };
    let vectors = drawn.filled(&mut random);
    let expected = vectors.defined();
    let squared = case.n * case.n * case.dim;
    let walks = vectors.has_graphs() && squared <= WALK_WORK.0;
    let walked = if walks { Some(vectors.walk(degree, Device::Cpu)?) } else { None };
    on_each(case, backends, |backend| {
        same(&expected, &vectors.search(backend.device)?)?;
        match &walked {
            Some(walked) if backend.device == Device::Cpu => {
                let unsound = vectors.first_unsound(walked);
                unsound.map_or(Ok(()), |slot| Err(Difference::at(slot, &expected, walked).into()))
            }
            Some(walked) if backend.work == usize::MAX || squared <= WALK_WORK.1 => {
                Ok(same(walked, &vectors.walk(degree, backend.device)?)?)
            }
            _ => Ok(()),
        }
    })
}

/// Calls `check` for each back end that runs a case of this size.
fn on_each(
    case: &Case,
    backends: &[Backend],
    check: impl Fn(&Backend) -> std::result::Result<(), Defect>,
) -> Outcome<Compared> {
    let mut agreed = Vec::new();
    for backend in backends.iter().filter(|backend| case.n * case.queries * case.dim <= backend.work) {
        match check(backend) {
            Ok(()) => agreed.push(backend.name),
            Err(Defect::Different(difference)) => return Ok((agreed, Some((backend.name, difference)))),
            Err(Defect::Library(error)) => return Err(error.into()),
            Err(Defect::Other(text)) => return Err(Failure::Message(format!("{}: {text}", backend.name))),
        }
    }
    Ok((agreed, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    use warpann::select::KeyType;

    /// The JSON of a difference, which no test of the program can produce.
    #[test]
    fn a_difference_is_the_report_with_an_error() {
        let (case, ..) = draw(3);
        let difference =
            Difference { query: 0, place: 1, expected: (None, Some(f32::INFINITY)), found: (Some(1), Some(1.0)) };
        let report = Report {
            seed: 3,
            passed: false,
            compared: vec!["cpu"],
            missing: vec!["gpu: none".into()],
            cases: vec![Row { case, agreed: Vec::new() }],
            difference: Some(FirstDifference::new(3, "cpu", &difference)),
        };
        let failure = Failure::difference("cpu differs".into(), &report);
        let text = Out::new(true, Some("verify".into())).pretty(&failure.fields()).unwrap();
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        crate::schema::check(&object);
        assert_eq!((&object["passed"], &object["error"]["kind"]), (&false.into(), &"difference".into()));
        assert_eq!((&object["difference"]["expected_id"], &object["difference"]["id"]), (&().into(), &1.into()));
    }

    /// A back end that differs ends the case, and those before it agreed.
    #[test]
    fn the_first_back_end_that_differs_is_told() {
        let (case, ..) = draw(3);
        let backend = |name| Backend { name, device: Device::Cpu, work: usize::MAX };
        let difference = Difference { query: 1, place: 2, expected: (Some(3), None), found: (None, None) };
        let check = |backend: &Backend| if backend.name == "b" { Err(difference.into()) } else { Ok(()) };
        let compared = on_each(&case, &["a", "b", "c"].map(backend), check).unwrap();
        assert_eq!(compared, (vec!["a"], Some(("b", difference))));
        let refused = on_each(&case, &[backend("a")], |_| Err(Defect::Other("no".into()))).unwrap_err();
        assert_eq!(refused.to_string(), "a: no");
    }

    #[test]
    fn cases_cover_their_range() {
        let mut seen = std::collections::HashSet::new();
        let mut keys = std::collections::HashSet::new();
        let (mut past_n, mut no_queries, mut emulated) = (0, 0, 0);
        for seed in 0..600 {
            let (case, ..) = draw(seed);
            assert!(case.dim >= 1 && case.k >= 1);
            let types = if case.task == Task::Search { &mut seen } else { &mut keys };
            types.insert((case.element, case.metric));
            past_n += usize::from(case.k > case.n && case.n > 0);
            no_queries += usize::from(case.queries == 0);
            emulated += usize::from(case.n * case.queries * case.dim <= EMULATOR_WORK);
        }
        assert_eq!(seen.len(), ElementType::ALL.len() * Metric::OF_NUMBERS.len() + 1, "bytes can hold bits");
        assert_eq!(keys.len(), KeyType::ALL.len() * 2);
        assert!(past_n > 10 && no_queries > 10, "{past_n} {no_queries}");
        assert!((200..550).contains(&emulated), "{emulated}");
    }
}
