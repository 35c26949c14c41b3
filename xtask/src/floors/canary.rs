//! A crate that breaks every rule of the floors. A check that does not find each violation is broken itself.

use super::{Room, check, room};
use crate::shell::Result;

const ROOMS: [Room; 3] = [room(&["low"]), room(&["high"]), room(&["gone"])];

/// The crate's files, path and text.
const FILES: [(&str, &str); 14] = [
    ("lib.rs", "mod low;\nmod high;\nmod lobby;\npub use high::Thing;"),
    (
        "low/mod.rs",
        "mod ring;\nmod by_group;\nmod by_root;\nmod nested;\nmod in_tests;\nmod metric;\nmod decides;\npub(crate) mod inside;\npub struct Own;",
    ),
    ("low/by_group.rs", "use crate::{\n    low::Own,\n    high::{self, open as open_it},\n};"),
    ("low/by_root.rs", "fn f() {\n    println!(\"{}\", crate::Thing::new());\n}"),
    ("low/nested.rs", "mod deep {\n    use super::super::super::high::Thing as Renamed;\n}"),
    ("low/in_tests.rs", "#[cfg(test)]\nmod tests {\n    use crate::high::{Thing, open};\n}"),
    ("low/inside.rs", ""),
    // `Self` is a metric here.
    (
        "low/metric.rs",
        "fn f(self) -> bool {\n    matches!(self, Self::L2)\n}\nfn g(self) -> bool {\n    match self {\n        Self::L2 => true,\n        \
         Self::Other | Self::Cosine => false,\n    }\n}",
    ),
    // Forbidden forms, then allowed ones.
    (
        "low/decides.rs",
        "fn f(m: Metric, n: u32) -> bool {
    m == Metric::L2
        || crate::low::Metric::Other != m
        || &m == &Metric::L2
        || matches!(m, x | Assign::L2)
        || if let (Metric::L2, 3) = (m, n) { true } else { false }
        || match m {
            Metric::L2 => true,
            _ => false,
        }
        || match (n, m) {
            (3, KernelMetric::L2) => { true }
            (_, other) => false,
        }
}
fn g(m: Metric, n: u32) -> bool {
    let m = Metric::L2;
    m == Metric::ALL[0]
        || matches!(f(Metric::L2), Ok(_))
        || match f(Metric::L2) { Ok(m) if m.f(Metric::L2) => true, _ => false }
        || match (n, m) {
            (3, Metric::L2 | Metric::Other) => { true }
            (_, Metric::Cosine) => match n { 3 => Metric::L2, _ => Metric::Other },
        }
}
#[cfg(test)]
mod tests {
    fn f(m: Metric) -> bool { m == Metric::L2 }
}",
    ),
    (
        "high/mod.rs",
        "use crate::low::Own;\npub struct Thing;\npub fn open() -> Own {\n    crate::low::by_group::f()\n}",
    ),
    // A circle inside of a room. The file above both, whose re-export a child uses, is not part of it.
    ("low/ring.rs", "mod first;\nmod second;\npub use self::second::Second;"),
    ("low/ring/first.rs", "use super::Second;\npub struct First;"),
    ("low/ring/second.rs", "use super::first::First;\npub struct Second;"),
    ("lobby.rs", ""),
];

/// The circles that are listed as ones that stay.
const HONEST: [&[&str]; 1] = [&["low/ring.rs", "low/ring/first.rs"]];

/// The violations that the check must report, and no others.
const VIOLATIONS: [&str; 18] = [
    "lobby.rs: the file is in no room; move it into one, or add a room to xtask/src/floors.rs",
    "gone: room gone lists a module that does not exist; remove it from xtask/src/floors.rs",
    "low/by_group.rs:3: crate::high: room low uses room high, which is above it; move what both need below both rooms",
    "low/by_group.rs:3: crate::high::open: room low uses room high, which is above it; move what both need below both rooms",
    "low/by_root.rs:2: crate::Thing::new: room low uses room high, which is above it; move what both need below both rooms",
    "low/nested.rs:2: super::super::super::high::Thing: room low uses room high, which is above it; move what both need \
     below both rooms",
    "high/mod.rs -> low/by_group.rs -> high/mod.rs: the files use each other in a circle across rooms (2 files in \
     all); move what they share below them",
    "low/ring/first.rs -> low/ring/second.rs -> low/ring/first.rs: the files use each other in a circle inside of room low (2 \
     files in all); move what they share below them",
    "low/ring.rs, low/ring/first.rs: these files are no circle any more; remove it from HONEST in xtask/src/floors.rs",
    "low/mod.rs:8: pub(crate) mod inside: no file outside of room low uses the module; make it private or pub(super)",
    "low/metric.rs:2: matches! one metric; a new metric would compile here: match, and name every metric",
    "low/decides.rs:2: compares with one metric; a new metric would compile here: match, and name every metric",
    "low/decides.rs:3: compares with one metric; a new metric would compile here: match, and name every metric",
    "low/decides.rs:4: compares with one metric; a new metric would compile here: match, and name every metric",
    "low/decides.rs:5: matches! one metric; a new metric would compile here: match, and name every metric",
    "low/decides.rs:6: takes one metric apart with let; a new metric would compile here: match, and name every metric",
    "low/decides.rs:7: has a wildcard for other metrics; a new metric would compile here: match, and name every metric",
    "low/decides.rs:11: has a wildcard for other metrics; a new metric would compile here: match, and name every metric",
];

/// Fails unless the check finds exactly the violations of the canary.
pub fn check_canary() -> Result<()> {
    let sources = FILES.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
    let found: Vec<String> = check(&sources, &ROOMS, &HONEST)?.violations.iter().map(ToString::to_string).collect();
    let missed: Vec<&str> =
        VIOLATIONS.into_iter().filter(|expected| !found.iter().any(|text| text == expected)).collect();
    let unexpected: Vec<&str> = found.iter().map(String::as_str).filter(|text| !VIOLATIONS.contains(text)).collect();
    if missed.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the check of the floors is broken.\nIn the canary it misses:\n  {}\nand it reports without cause:\n  {}",
        missed.join("\n  "),
        unexpected.join("\n  ")
    )
    .into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_canary_is_caught() {
        super::check_canary().unwrap();
    }
}
