//! `cargo xtask demo`: a search in real data that is read from two files.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::shell::{self, Result, cargo};

const SAMPLE: &str = "tests/data/sift-sample";
const SHOWN: usize = 3;

pub fn run(k: usize, device: &str) -> Result<()> {
    shell::run(&mut build())?;
    let program = shell::target_dir().join("debug/warpann");
    let file = |name: &str| shell::root().join(SAMPLE).join(name);
    let mut search = Command::new(&program);
    search.arg("search").arg("--base").arg(file("sample_base.bvecs"));
    search.arg("--query").arg(file("sample_query.bvecs")).arg("--gt").arg(file("sample_gt.ivecs"));
    search.args(["--k", &k.to_string(), "--device", device, "--show", &SHOWN.to_string(), "--json"]);
    eprintln!("$ {}", relative(&shell::shown(&search)));
    let answer: Value = serde_json::from_str(&shell::output(&mut search)?)?;
    print!("{}", page(&answer)?);
    match answer["recall"]["by_id"].as_f64() {
        Some(1.0) => Ok(()),
        Some(recall) => Err(format!("recall is {recall}; exact search must have 1.0").into()),
        None => Err("the program reported no recall".into()),
    }
}

/// The command that builds the program, with the features that the whole workspace gives dependencies:
/// `cargo test --workspace` then compiles none of this again.
pub fn build() -> Command {
    // xtask shares `unicode-ident` with the procedural macros. A build without it compiles that crate by another
    // profile, and the tests would compile all that depends on it again: 58 s of CPU. Windows does not replace a
    // program that runs.
    let same_graph: &[&str] = if cfg!(windows) { &[] } else { &["--bin", "xtask"] };
    let mut build = cargo();
    build.args(["build", "--workspace", "--bin", "warpann"]).args(same_graph);
    build
}

/// The text with paths below the repository's root made relative.
fn relative(text: &str) -> String {
    let root: &Path = &shell::root();
    text.replace(&format!("{}/", root.display()), "")
}

/// The output of the demo, made from the program's JSON.
fn page(answer: &Value) -> Result<String> {
    let text = |name: &str| answer[name].as_str().ok_or_else(|| format!("no {name} in the program's answer"));
    let number = |name: &str| answer[name].as_f64().ok_or_else(|| format!("no {name} in the program's answer"));
    let mut out = format!(
        "\n{} SIFT descriptors of photographs, {} queries from other photographs, {} dimensions ({})\n",
        number("base")?,
        number("queries")?,
        number("dim")?,
        text("element")?
    );
    for query in answer["neighbours"].as_array().into_iter().flatten() {
        let list = |name: &str| query[name].as_array().into_iter().flatten().take(5);
        out += &format!("  query {}: nearest", query["query"]);
        for (id, distance) in list("ids").zip(list("distances")) {
            out += &format!("  {id} (at {:.1})", distance.as_f64().unwrap_or(f64::NAN).sqrt());
        }
        out += "\n";
    }
    out += &format!(
        "device     {}\ntime       {:.2} ms for the search, {:.0} queries/s (development build)\nrecall@{}  {}\n",
        text("device")?,
        1e3 * number("search_seconds")?,
        number("queries_per_second")?,
        answer["recall"]["at"],
        answer["recall"]["by_id"]
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_what_the_program_found() {
        let answer = serde_json::json!({
            "device": "cpu, 2 threads", "element": "u8", "dim": 128, "base": 10000, "queries": 200, "k": 2,
            "search_seconds": 0.0125, "queries_per_second": 16000.4, "recall": {"at": 2, "by_id": 1.0},
            "neighbours": [{"query": 0, "ids": [8436, 8722], "distances": [43987.0, 58948.0]}],
        });
        let page = page(&answer).unwrap();
        for part in
            ["query 0: nearest  8436 (at 209.7)  8722 (at 242.8)", "cpu, 2 threads", "12.50 ms", "recall@2  1.0"]
        {
            assert!(page.contains(part), "{page}");
        }
        assert!(super::page(&Value::Null).is_err());
    }
}
