//! `cargo xtask floors`: checks that imports point downwards, and that no code decides by one metric alone.
//!
//! Each crate has an ordered list of rooms, the lowest first. A room is a folder of modules, or a few of them. A room
//! may use itself and the rooms that stand before it in the list. Five rules:
//!
//! 1. No path leads to a room above. A path to a re-exported name leads to the module that the path names, and to the
//!    definition. The `pub use` of the crate root is exempt, because it is the public interface: a path through it
//!    leads to the definition alone.
//! 2. Files do not use each other in a circle, across rooms or inside of one. Inside of a room a path leads to the
//!    definition alone, and a `pub use` is no use: it is the interface of the room. [`HONEST`] has the circles that
//!    stay.
//! 3. No module inside a room is `pub(crate)` without need: if no file of another room uses it, it must be private or
//!    `pub(super)`. With this rule, Rust's own privacy keeps the inside of a room from the others.
//! 4. Each file belongs to a room, and each room of the list exists.
//! 5. Where a decision depends on the metric, a `match` names every metric ([`metrics`]). This one is checked in
//!    cli/src too, and so is rule 2, as in cuda_std/src.
//!
//! Code that is compiled for tests only may use everything. [`read`] lists what the check does not see.
//!
//! [`canary`] is a crate that breaks each rule. The command checks the canary first, and fails unless it finds every
//! violation.

mod canary;
mod metrics;
mod read;
mod resolve;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::Path;

use crate::shell::{self, Result};
use read::{ROOT, Sources, Tree};

/// A part of a crate that stands on one floor.
struct Room {
    name: &'static str,
    /// Files (`sort` is sort.rs) and folders below the crate's `src`. The longest that fits a file decides its room.
    holds: &'static [&'static str],
}

/// A room with the folder or file of the same name.
const fn room(holds: &'static [&'static str; 1]) -> Room {
    Room { name: holds[0], holds }
}

/// The library's rooms, the lowest first. The crate root stands above all.
const HOST: [Room; 24] = [
    Room {
        name: "bottom",
        holds: &[
            "serialised",
            "bitset",
            "filter",
            "ids",
            "search_options",
            "search_statistics",
            "names",
            "events",
            "element",
            "metric",
            "placement",
            "error",
            "neighbors",
            "validate",
            "parallel",
            "threads",
            "host_memory",
            "shared",
            "random",
            "simd",
            "vectors",
            "watch",
            "undo",
        ],
    },
    room(&["views"]),
    room(&["device"]),
    room(&["select"]),
    room(&["sort"]),
    room(&["product"]),
    room(&["search"]),
    room(&["io"]),
    Room { name: "index", holds: &["index", "versions"] },
    room(&["mesh"]),
    room(&["shards"]),
    room(&["flat"]),
    room(&["kmeans"]),
    room(&["generate"]),
    room(&["pq"]),
    room(&["ivf"]),
    room(&["knn_graph"]),
    room(&["graph"]),
    room(&["any_index"]),
    room(&["serving"]),
    room(&["shifted"]),
    room(&["distributed"]),
    room(&["internals"]),
    room(&["matrices"]),
];

/// The rooms of the device code, the lowest first.
const KERNELS: [Room; 12] = [
    Room { name: "crate root", holds: &["lib"] },
    room(&["select"]),
    room(&["sort"]),
    room(&["product"]),
    room(&["flat"]),
    room(&["kmeans"]),
    room(&["pq"]),
    room(&["ivf"]),
    room(&["graph"]),
    room(&["shifted"]),
    room(&["generate"]),
    room(&["read_ceiling"]),
];

/// The circles inside of rooms that stay: the folder of a crate, the files, and the reason.
const HONEST: [(&str, &[&str], &str); 0] = [];

/// The crates that are checked, with their rooms; those without are one room.
const CRATES: [(&str, &[Room]); 4] =
    [("host/src", &HOST), ("kernels-rs/src", &KERNELS), ("cli/src", &[]), ("cuda_std/src", &[])];

/// Checks the library, the device code, the program and what kernels may call.
pub fn run() -> Result<()> {
    canary::check_canary()?;
    let mut violations = Vec::new();
    for (folder, rooms) in CRATES {
        let sources = sources(&shell::root().join(folder))?;
        let honest: Vec<&[&str]> = HONEST.iter().filter(|(of, ..)| *of == folder).map(|&(_, files, _)| files).collect();
        let report = check(&sources, rooms, &honest)?;
        println!(
            "{folder}: {} files in {} rooms, {} paths: {} violations",
            report.files,
            rooms.len().max(1),
            report.paths,
            report.violations.len()
        );
        violations.extend(report.violations.iter().map(|violation| format!("{folder}/{violation}")));
    }
    println!("the canary was caught");
    if violations.is_empty() {
        return Ok(());
    }
    Err(format!("{} violations of the floors:\n  {}", violations.len(), violations.join("\n  ")).into())
}

/// The Rust files below `folder`.
fn sources(folder: &Path) -> Result<Sources> {
    let mut sources = Sources::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push((entry.path(), format!("{name}/")));
            } else if name.ends_with(".rs") {
                sources.insert(name, std::fs::read_to_string(entry.path())?);
            }
        }
    }
    Ok(sources)
}

/// The result of a check.
struct Report {
    /// Files outside of tests.
    files: usize,
    /// Paths that lead into the crate, outside of tests.
    paths: usize,
    violations: Vec<Violation>,
}

/// A broken rule, with paths of files below `src`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Violation {
    /// Rule 4: a file in no room.
    NoRoom { file: String },
    /// Rule 4: the list names something that does not exist.
    Absent { room: &'static str, holds: &'static str },
    /// A file that no module declaration reaches, so that nothing checks it.
    Unreached { file: String },
    /// A name that the crate root does not have. The reader has missed something.
    Unresolved { file: String, line: usize, path: String, why: String },
    /// Rule 1.
    Upwards { file: String, line: usize, path: String, from: &'static str, to: &'static str },
    /// Rule 2: the shortest circle of `size` files that all reach each other; through two rooms, or inside of one.
    Circle { files: Vec<String>, size: usize, room: Option<&'static str> },
    /// Rule 2: a circle that is listed as one that stays does not exist.
    NoCircle { files: String },
    /// Rule 3.
    NeedlesslyVisible { file: String, line: usize, module: String, room: &'static str },
    /// Rule 5.
    OneMetric { file: String, line: usize, how: &'static str },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::NoRoom { file } => {
                write!(f, "{file}: the file is in no room; move it into one, or add a room to xtask/src/floors.rs")
            }
            Violation::Absent { room, holds } => {
                write!(f, "{holds}: room {room} lists a module that does not exist; remove it from xtask/src/floors.rs")
            }
            Violation::Unreached { file } => {
                write!(f, "{file}: no module declaration reaches the file; declare it, or delete it")
            }
            Violation::Unresolved { file, line, path, why } => {
                write!(
                    f,
                    "{file}:{line}: {path}: {why}; correct the path, or make xtask/src/floors/read.rs see the name"
                )
            }
            Violation::Upwards { file, line, path, from, to } => write!(
                f,
                "{file}:{line}: {path}: room {from} uses room {to}, which is above it; move what both need below both rooms"
            ),
            Violation::Circle { files, size, room } => {
                let place = room.map_or("across rooms".to_owned(), |room| format!("inside of room {room}"));
                write!(
                    f,
                    "{}: the files use each other in a circle {place} ({size} files in all); move what they share below them",
                    files.join(" -> ")
                )
            }
            Violation::NoCircle { files } => {
                write!(f, "{files}: these files are no circle any more; remove it from HONEST in xtask/src/floors.rs")
            }
            Violation::NeedlesslyVisible { file, line, module, room } => write!(
                f,
                "{file}:{line}: pub(crate) mod {module}: no file outside of room {room} uses the module; make it private or pub(super)"
            ),
            Violation::OneMetric { file, line, how } => {
                write!(f, "{file}:{line}: {how}; a new metric would compile here: match, and name every metric")
            }
        }
    }
}

/// Checks a crate against its rooms, or as one room without a list. `honest` has the circles inside of a room that
/// stay.
fn check(sources: &Sources, rooms: &[Room], honest: &[&[&str]]) -> Result<Report> {
    let tree = read::read(sources)?;
    let mut violations = absent(sources, rooms);
    violations.extend(tree.unreached.iter().map(|file| Violation::Unreached { file: file.clone() }));
    let placed: Vec<Option<usize>> = tree.files.iter().map(|file| floor(&file.path, rooms)).collect();
    for (file, floor) in tree.files.iter().zip(&placed) {
        if floor.is_none() && !file.test {
            violations.push(Violation::NoRoom { file: file.path.clone() });
        }
    }

    let name = |floor: usize| rooms.get(floor).map_or("crate root", |room| room.name);
    let mut graph = Graph { tree: &tree, floors: &placed, uses: BTreeMap::new() };
    let mut inside = Graph { tree: &tree, floors: &placed, uses: BTreeMap::new() };
    let mut used_by_others = BTreeSet::new();
    let mut reported = BTreeSet::new();
    let mut paths = 0;
    for reference in &tree.references {
        let (file, line, path) = (reference.file, reference.line, reference.path.join("::"));
        let target = match tree.target(reference) {
            Ok(Some(target)) if !tree.repeats_an_import(reference, &target) => target,
            Ok(_) => continue,
            Err(why) => {
                let file = tree.files[file].path.clone();
                violations.push(Violation::Unresolved { file, line, path, why });
                continue;
            }
        };
        // Tests count as users: a module that the tests of another room need cannot be private.
        let elsewhere = |module: &usize| placed[tree.modules[*module].file] != placed[file];
        used_by_others.extend(target.named.iter().copied().filter(elsewhere));
        if reference.test || file == ROOT && reference.reexport {
            continue;
        }
        paths += 1;
        let definition = tree.modules[target.definition].file;
        if !reference.reexport && definition != file && placed[definition] == placed[file] {
            inside.uses.entry(file).or_default().insert(definition);
        }
        let named = target.named.last().filter(|&&module| module != ROOT);
        for &module in named.into_iter().chain([&target.definition]) {
            let to = tree.modules[module].file;
            graph.uses.entry(file).or_default().insert(to);
            if let (Some(from), Some(floor)) = (placed[file], placed[to])
                && floor > from
                && reported.insert((file, floor, path.clone()))
            {
                let (file, path) = (tree.files[file].path.clone(), path.clone());
                violations.push(Violation::Upwards { file, line, path, from: name(from), to: name(floor) });
            }
        }
    }
    violations.extend(graph.circles_across());
    violations.extend(inside.circles_inside(honest, name));
    for (module, declared) in tree.modules.iter().enumerate() {
        // A module that the crate root declares lies in no room.
        if let Some(declared) = declared.crate_visible.as_ref().filter(|declared| declared.file != ROOT)
            && let Some(room) = placed[declared.file].filter(|_| !rooms.is_empty())
            && !used_by_others.contains(&module)
        {
            let (file, line, module) = (tree.files[declared.file].path.clone(), declared.line, declared.name.clone());
            violations.push(Violation::NeedlesslyVisible { file, line, module, room: name(room) });
        }
    }
    let of_tests = |path: &str| tree.files.iter().any(|file| file.path == path && file.test);
    for (file, (line, how)) in metrics::in_all(sources, of_tests)? {
        violations.push(Violation::OneMetric { file, line, how });
    }
    violations.sort();
    let files = tree.files.iter().filter(|file| !file.test).count();
    Ok(Report { files, paths, violations })
}

/// Whether a file is the module `holds` or lies in its folder.
fn is_in(file: &str, holds: &str) -> bool {
    file.strip_prefix(holds).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The index of the room of a file: beyond the list for the crate root, if no room lists it.
fn floor(file: &str, rooms: &[Room]) -> Option<usize> {
    let all = rooms.iter().enumerate().flat_map(|(floor, room)| room.holds.iter().map(move |holds| (holds, floor)));
    let fitting = all.filter(|(holds, _)| is_in(file, holds)).max_by_key(|(holds, _)| holds.len());
    fitting.map(|(_, floor)| floor).or((rooms.is_empty() || file == "lib.rs").then_some(rooms.len()))
}

/// The modules of the list that do not exist.
fn absent(sources: &Sources, rooms: &[Room]) -> Vec<Violation> {
    let all = rooms.iter().flat_map(|room| room.holds.iter().map(|&holds| (room.name, holds)));
    all.filter(|(_, holds)| !sources.keys().any(|file| is_in(file, holds)))
        .map(|(room, holds)| Violation::Absent { room, holds })
        .collect()
}

/// Which file uses which.
struct Graph<'a> {
    tree: &'a Tree,
    floors: &'a [Option<usize>],
    uses: BTreeMap<usize, BTreeSet<usize>>,
}

impl Graph<'_> {
    /// The sets of two files or more that all reach each other.
    fn components(&self) -> Vec<BTreeSet<usize>> {
        let reached: BTreeMap<usize, BTreeSet<usize>> =
            self.uses.keys().map(|&file| (file, self.paths_from(file).into_keys().collect())).collect();
        let reaches = |from: usize, to: usize| reached.get(&from).is_some_and(|files| files.contains(&to));
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        let mut components = Vec::new();
        for (&file, others) in &reached {
            if seen.contains(&file) {
                continue;
            }
            let component: BTreeSet<usize> = others.iter().copied().filter(|&other| reaches(other, file)).collect();
            seen.extend(&component);
            if component.len() > 1 {
                components.push(component);
            }
        }
        components
    }

    /// The shortest circle in a component that uses an arrow of those that `counts` accepts.
    fn shortest(&self, component: &BTreeSet<usize>, counts: impl Fn(usize, usize) -> bool) -> Option<Vec<String>> {
        let arrows = component.iter().flat_map(|&from| self.uses[&from].iter().map(move |&to| (from, to)));
        let counted = arrows.filter(|&(from, to)| component.contains(&to) && counts(from, to));
        let circles = counted.filter_map(|(from, to)| self.way(to, from)).map(|way| self.circle(&way));
        circles.min_by_key(|files| (files.len(), files.clone()))
    }

    /// A violation for each component that has files of more than one room.
    fn circles_across(&self) -> Vec<Violation> {
        let circle = |component: &BTreeSet<usize>| {
            // Each circle through two rooms has an arrow between rooms: the shortest way back closes it.
            let files = self.shortest(component, |from, to| self.floors[from] != self.floors[to])?;
            Some(Violation::Circle { files, size: component.len(), room: None })
        };
        self.components().iter().filter_map(circle).collect()
    }

    /// A violation for each component inside of a room, except those whose files are listed in `honest`, and for each
    /// list without a component.
    fn circles_inside(&self, honest: &[&[&str]], name: impl Fn(usize) -> &'static str) -> Vec<Violation> {
        let mut missing: Vec<BTreeSet<&str>> = honest.iter().map(|files| files.iter().copied().collect()).collect();
        let mut violations = Vec::new();
        for component in self.components() {
            let paths: BTreeSet<&str> = component.iter().map(|&file| self.tree.files[file].path.as_str()).collect();
            if let Some(at) = missing.iter().position(|files| *files == paths) {
                missing.swap_remove(at);
            } else if let Some(files) = self.shortest(&component, |_, _| true) {
                let room = component.first().and_then(|&file| self.floors[file]).map(&name);
                violations.push(Violation::Circle { files, size: component.len(), room });
            }
        }
        let files = missing.into_iter().map(|files| Vec::from_iter(files).join(", "));
        violations.extend(files.map(|files| Violation::NoCircle { files }));
        violations
    }

    /// The paths of files in a circle, from the first in the alphabet around to itself.
    fn circle(&self, way: &[usize]) -> Vec<String> {
        let mut paths: Vec<String> = way.iter().map(|&file| self.tree.files[file].path.clone()).collect();
        let first = (0..paths.len()).min_by_key(|&at| &paths[at]).unwrap_or(0);
        paths.rotate_left(first);
        paths.extend(paths.first().cloned());
        paths
    }

    /// The files that `from` reaches, each with the file before it on a shortest way. `from` is there if it is in a
    /// circle.
    fn paths_from(&self, from: usize) -> BTreeMap<usize, usize> {
        let mut before = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(file) = queue.pop_front() {
            for &to in self.uses.get(&file).into_iter().flatten() {
                before.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    file
                });
            }
        }
        before
    }

    /// A shortest way from one file to another, both included.
    fn way(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let before = self.paths_from(from);
        let mut way = vec![to];
        while way[way.len() - 1] != from {
            way.push(*before.get(&way[way.len() - 1])?);
        }
        way.reverse();
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMS: [Room; 3] = [room(&["low"]), Room { name: "middle", holds: &["middle", "high/odd"] }, room(&["high"])];

    fn violations(files: &[(&str, &str)]) -> Vec<String> {
        let sources = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        check(&sources, &ROOMS, &[]).unwrap().violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn imports_may_point_down_and_sideways_within_a_room() {
        let found = violations(&[
            ("lib.rs", "mod low; mod middle; mod high; pub use high::Thing; pub use low::Low;"),
            ("low.rs", "pub struct Low; #[cfg(test)] mod tests { use crate::high::Thing; }"),
            ("middle/mod.rs", "pub(crate) mod inner; use crate::{Low, low}; pub struct Middle;"),
            ("middle/inner.rs", "use super::Middle; use crate::low::Low; pub fn inner() {}"),
            ("high/mod.rs", "mod odd; pub struct Thing; fn f() { crate::middle::inner::inner(); odd::g() }"),
            ("high/odd.rs", "pub fn g() { crate::middle::inner::inner() }"),
        ]);
        assert_eq!(found, [] as [&str; 0]);
    }

    #[test]
    fn the_longest_fitting_entry_decides_a_files_room() {
        let floors = ["high/odd.rs", "high/odd/x.rs", "high/oddity.rs", "high.rs", "highest.rs", "lib.rs"]
            .map(|file| floor(file, &ROOMS));
        assert_eq!(floors, [Some(1), Some(1), Some(2), Some(2), None, Some(3)]);
    }

    #[test]
    fn the_crate_root_stands_above_all_unless_it_is_listed() {
        let files = [
            ("lib.rs", "mod low; mod middle; mod high; pub const OWN: u32 = high::HIGH;"),
            ("low.rs", "use crate::OWN;"),
            ("middle.rs", ""),
            ("high/mod.rs", "mod odd; pub const HIGH: u32 = 1;"),
            ("high/odd.rs", ""),
        ];
        let own = "low.rs:1: crate::OWN: room low uses room crate root, which is above it; move what both need below both rooms";
        assert_eq!(violations(&files), [own]);

        let listed = [Room { name: "root", holds: &["lib"] }, room(&["low"]), room(&["middle"]), room(&["high"])];
        let sources = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        let found: Vec<String> =
            check(&sources, &listed, &[]).unwrap().violations.iter().map(Violation::to_string).collect();
        let high =
            "lib.rs:1: high::HIGH: room root uses room high, which is above it; move what both need below both rooms";
        assert_eq!(found, [high]);
    }

    #[test]
    fn a_re_export_does_not_hide_where_a_name_comes_from() {
        let found = violations(&[
            ("lib.rs", "mod low; mod middle; mod high;"),
            ("low.rs", "use crate::middle::Low; pub struct Low;"),
            ("middle.rs", "pub use crate::high::Thing; pub use crate::low::Low;"),
            ("high/mod.rs", "mod odd; pub struct Thing;"),
            ("high/odd.rs", ""),
        ]);
        let expected = [
            "low.rs:1: crate::middle::Low: room low uses room middle, which is above it; move what both need below both rooms",
            "middle.rs:1: crate::high::Thing: room middle uses room high, which is above it; move what both need below both rooms",
            "low.rs -> middle.rs -> low.rs: the files use each other in a circle across rooms (2 files in all); move what they \
             share below them",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn every_name_and_file_is_accounted_for() {
        let found = violations(&[
            ("lib.rs", "mod low; mod other;"),
            ("low.rs", "use crate::Absent;"),
            ("other.rs", ""),
            ("high/odd.rs", ""),
        ]);
        let expected = [
            "other.rs: the file is in no room; move it into one, or add a room to xtask/src/floors.rs",
            "middle: room middle lists a module that does not exist; remove it from xtask/src/floors.rs",
            "high/odd.rs: no module declaration reaches the file; declare it, or delete it",
            "low.rs:1: crate::Absent: the crate root has no Absent; correct the path, or make xtask/src/floors/read.rs see \
             the name",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_shortest_circle_across_rooms_is_shown() {
        // low/a -> middle -> low/b -> low/a, and a longer way by way of high.
        let found = violations(&[
            ("lib.rs", "mod low; mod middle; mod high;"),
            ("low/mod.rs", "pub(crate) mod a; pub(crate) mod b;"),
            ("low/a.rs", "use crate::middle::M; use crate::high::H; use super::b::B; pub struct A;"),
            ("low/b.rs", "use super::a::A; pub struct B;"),
            ("middle.rs", "use crate::low::b::B; pub struct M;"),
            ("high/mod.rs", "mod odd; use odd::O; pub struct H;"),
            ("high/odd.rs", "use crate::low::b::B; pub struct O;"),
        ]);
        let circles: Vec<&String> = found.iter().filter(|text| text.contains("circle across")).collect();
        assert_eq!(circles.len(), 1);
        let expected =
            "low/a.rs -> middle.rs -> low/b.rs -> low/a.rs: the files use each other in a circle across rooms (5 files";
        assert!(circles[0].starts_with(expected), "{}", circles[0]);
    }

    /// Two files that use each other inside of a room, as a violation and as a circle that stays.
    #[test]
    fn a_circle_inside_a_room_is_shown_unless_it_is_listed() {
        let files = [
            ("lib.rs", "mod low; mod middle; mod high;"),
            ("low/mod.rs", "mod a; mod b; pub use a::A; fn f() { b::g() }"),
            ("low/a.rs", "use super::b::B; pub struct A;"),
            ("low/b.rs", "use super::A; pub struct B; #[cfg(test)] mod tests { use super::super::f; }"),
            ("middle.rs", ""),
            ("high/mod.rs", "mod odd;"),
            ("high/odd.rs", ""),
        ];
        let circle = "low/a.rs -> low/b.rs -> low/a.rs: the files use each other in a circle inside of room low (2 files in all); \
                      move what they share below them";
        assert_eq!(violations(&files), [circle]);
        let sources = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        let listed = check(&sources, &ROOMS, &[&["low/b.rs", "low/a.rs"]]).unwrap();
        assert_eq!(listed.violations, []);
    }

    /// A crate without a list of rooms is one room: only circles and metrics are checked.
    #[test]
    fn a_program_without_rooms_is_one_room() {
        let files = [
            (
                "main.rs",
                "mod a; mod b; #[cfg(test)] #[path = \"../tests/common.rs\"] mod common; fn main() { a::run() }",
            ),
            ("a.rs", "pub fn run() { crate::b::B; }"),
            (
                "b.rs",
                "#[macro_export] macro_rules! exported { () => {} } pub struct B; fn f() { crate::exported!(); crate::main() }",
            ),
        ];
        let sources = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        let found: Vec<String> =
            check(&sources, &[], &[]).unwrap().violations.iter().map(Violation::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("a.rs -> b.rs -> main.rs -> a.rs: the files use each other in a circle"),
            "{found:?}"
        );
    }

    #[test]
    fn the_device_code_keeps_its_floors() {
        let report = check(&sources(&shell::root().join("kernels-rs/src")).unwrap(), &KERNELS, &[]).unwrap();
        assert_eq!(report.violations, []);
        assert!(report.files > 20 && report.paths > 100, "{} files, {} paths", report.files, report.paths);
    }
}
