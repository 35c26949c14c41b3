//! The JSON of every command against docs/warpann.schema.json, and docs/JSON.md against the schema.

mod common;
#[path = "common/schema.rs"]
mod schema;

use std::collections::BTreeSet;

use common::{SAMPLE, command_lines, piped, warpann, words};
use serde_json::{Value, json};
use warpann::io;

const PAGE: &str = include_str!("../../docs/JSON.md");

/// The forms of the schema that need a GPU or MPI. Unit tests of the program and cli/tests/mpi.rs check them.
const ELSEWHERE: [&str; 3] = ["bench_select_gpu", "bench_select_tune", "build_mpi"];

/// Command lines that must succeed, in an order in which later ones read the files of earlier ones. Words with `@` are
/// files of a folder.
const LINES: &[&str] = &[
    "info",
    "info --kernels",
    "build --device cpu --base @base.fbin --lists 4 --iterations 2 --out @x.ivf",
    "build --device cpu --base @base.fbin --lists 4 --iterations 2 --kind ivf-pq --bits 4 --out @pq.ivf",
    "info --index @x.ivf",
    "search --device cpu --base @base.fbin --query @query.npy --k 2 --gt @gt.npy --show 2",
    "search --device cpu --index @x.ivf --query @query.npy --k 2 --gt @gt.npy --show 2",
    "search --device cpu --base @base.fbin --query @query.npy",
    "search --device cpu --index @x.ivf --query @query.npy --k 2 --filter @gt.npy --refine @base.fbin --within 900",
    "search --device cpu --index @x.ivf --query @query.npy --radius 9 --exclude @gt.npy --show 2 --out @r.csv",
    "search --device cpu --index @x.ivf --query @query.npy --radius inf",
    "add --device cpu --index @x.ivf --base @query.npy --out @more.ivf",
    "remove --index @more.ivf --ids @added.npy",
    "build --device cpu --base @query.npy --train @base.fbin --ids @added.npy --lists 4 --iterations 2 --out @other.ivf",
    "merge --index @more.ivf @other.ivf --out @both.ivf",
    "build --device cpu --kind graph --degree 8 --exact-ratio 0 --base @base.fbin --out @x.graph",
    "build --device cpu --kind graph --base @query.npy --ids @added.npy --out @other.graph",
    "build --device cpu --kind graph --edges @edges.npy --base @query.npy --out @given.graph",
    "build --device cpu --kind graph --neighbours @edges.npy --base @query.npy --out @near.graph",
    "info --index @x.graph",
    "search --device cpu --index @x.graph --query @query.npy --k 2 --gt @gt.npy --show 2 --beam 20 --filter @gt.npy --within 900",
    "search --device cpu --index @x.graph --query @query.npy --radius 9 --exclude @gt.npy --show 2 --out @r.csv",
    "add --device cpu --index @x.graph --base @query.npy --out @more.graph",
    "remove --index @more.graph --ids @added.npy",
    "merge --index @more.graph @other.graph --out @both.graph",
    "tune --device cpu --index @x.graph --query @query.npy --k 2 --target-recall 0.5",
    "tune --device cpu --index @x.ivf --query @query.npy --k 2 --target-recall 0.5 --out @tuned.ivf",
    "knn-graph --device cpu --base @base.fbin --k 3 --index @x.graph --beam 30 --out @i.ibin",
    "convert --in @base.fbin --element f16 --out @half.npy",
    "convert --in @gt.npy --out @gt.ivecs",
    "shifted --device cpu --base @base.fbin --query @query.npy --k 2 --exact-sample 4 --show 2",
    "shifted --device cpu --base @base.fbin --self-join --k 2",
    "kmeans --device cpu --base @base.fbin --centroids 3 --iterations 2 --out @c.npy",
    "knn-graph --device cpu --base @base.fbin --k 40 --out @g.ibin",
    "knn-graph --device cpu --base @base.fbin --k 3 --index @x.ivf --probes 4 --out @h.ibin",
    "components --graph @g.ibin",
    "path --graph @g.ibin --base @base.fbin --from 3 --to 3",
    "path --graph @g.ibin --base @base.fbin --from 0 --to 1",
    "verify --cases 3 --seed 4 --device cpu",
    "verify --repeat 20 --threads 2 --seed 1 --device cpu",
    "bench select --device cpu --rows 2 --cols 50 --k 5 --repeat 2",
    "bench select --device cpu --rows 2 --cols 50 --k 1 --repeat 1",
    "bench exact --device cpu --n 50 --dim 4 --queries 5 --repeat 1",
    "bench ivf --device cpu --base @base.fbin --query @query.npy --lists 4 --k 1,10 --probes 1,4 --repeat 1 --out @flat",
    "bench ivf --device cpu --base @base.fbin --query @query.npy --index @pq.ivf --target-recall 0.1 --repeat 1 --out @pq",
    "bench graph --device cpu --base @base.fbin --query @query.npy --degree 8 --exact-ratio 0 --k 1,10 --beams 16,32 --repeat 1 --out @graph",
    "bench graph --device cpu --gt @gt.npy --query @query.npy --index @x.graph --k 2 --beams 16 --target-recall 0.5 --repeat 1",
    "bench kmeans --device cpu --base @base.fbin --centroids 3 --iterations 2 --repeat 1 --out @k",
    "bench kmeans --device cpu --base @base.fbin --centroids 3 --iterations 0 --repeat 1",
    "bench serve --device cpu --base @base.fbin --query @query.npy --k 1,3 --filters 2 --quick --out @served",
    "bench serve --device cpu --index @x.ivf --query @query.npy --probes 2 --upserts 3 --change-threads 1 --load @x.graph --quick --senders 1 --workers 1",
    "bench serve --device cpu --base @base.fbin --query @query.npy --k 1,3 --filters 2 --load @x.graph --soak 0.05",
    "bench serve --device cpu --index @x.ivf --query @query.npy --upserts 3 --soak 0.02",
    "bench start-up --device cpu --n 50",
    "chart @flat.json @pq.json @graph.json --out @both",
    "completions bash",
    "man",
    "man @pages",
];

/// Vectors, queries and true neighbours, in a separate folder.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let values: Vec<f32> = (0..240).map(|i| ((i * 37) % 101) as f32).collect();
    io::write_vectors(folder.path().join("base.fbin"), &values, 4).unwrap();
    io::write_vectors(folder.path().join("query.npy"), &values[..16], 4).unwrap();
    io::write_ids(folder.path().join("gt.npy"), &[0, 1, 1, 2, 2, 3, 3, 4], 2).unwrap();
    io::write_ids(folder.path().join("added.npy"), &[60, 61, 62, 63], 1).unwrap();
    io::write_ids(folder.path().join("edges.npy"), &[1, 2, 3, 0, 0, 2, 3, 1, 0, 1, 3, 2, 0, 1, 2, 3], 4).unwrap();
    folder
}

/// The words of a line, with `--json`. Words with `@` are files of the folder.
fn json_words(folder: &tempfile::TempDir, line: &str) -> Vec<String> {
    [words(folder.path(), line), vec!["--json".to_owned()]].concat()
}

/// Runs a line with `--json`; returns exit code, object and standard error. Standard output must be one line of JSON.
fn run(folder: &tempfile::TempDir, line: &str) -> (i32, Value, String) {
    let (code, stdout, stderr) = warpann(&json_words(folder, line).iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(stdout.lines().count(), 1, "{line}: {stdout}");
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{line}: {error}: {stdout}")), stderr)
}

/// The names of the forms that an object fits.
fn forms(object: &Value) -> Vec<String> {
    let schema = schema::schema();
    let all = schema["$defs"].as_object().unwrap();
    let fits = |form: &Value| schema::differences(&schema, form, object, "$").is_empty();
    all.iter().filter(|(_, form)| fits(form)).map(|(name, _)| name.clone()).collect()
}

#[test]
fn every_command_prints_what_the_schema_says() {
    let folder = files();
    let (mut seen, mut commands) = (BTreeSet::new(), BTreeSet::new());
    for line in LINES {
        let (code, object, stderr) = run(&folder, line);
        assert_eq!((code, stderr.as_str()), (0, ""), "{line}: {object}");
        schema::check(&object);
        seen.extend(forms(&object));
        let command = object["command"].as_str().unwrap();
        assert!(line.starts_with(command), "{line}: {command}");
        commands.insert(command.to_owned());
    }
    for (name, command) in [
        ("flat.json", "bench ivf"),
        ("pq.json", "bench ivf"),
        ("graph.json", "bench graph"),
        ("k.json", "bench kmeans"),
    ] {
        let object: Value = serde_json::from_slice(&std::fs::read(folder.path().join(name)).unwrap()).unwrap();
        schema::check(&object);
        assert_eq!(object["command"], command);
    }
    // A new command or form needs a line.
    let all: BTreeSet<String> = command_lines().into_iter().map(|words| words.join(" ")).collect();
    assert_eq!(commands, all);
    let schema = schema::schema();
    let known = schema["$defs"].as_object().unwrap().keys().cloned();
    let known: BTreeSet<String> = known.filter(|name| name != "error" && !ELSEWHERE.contains(&name.as_str())).collect();
    assert_eq!(seen, known);
}

#[test]
fn a_failure_is_one_object_with_its_kind() {
    let folder = files();
    std::fs::write(folder.path().join("text.json"), "{}").unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    for (line, kind) in [
        ("info --index @base.fbin", "bad_file"),
        ("info --index @none.ivf", "io"),
        ("build --device cpu --base @base.fbin --lists 4 --out @no/x.ivf", "io"),
        ("build --device cpu --base @base.fbin --lists 4 --bits 4 --out @x.ivf", "invalid_input"),
        ("build --device cpu --base @base.fbin --degree 9 --out @x.ivf", "other_kind"),
        ("build --device cpu --kind graph --base @base.fbin --degree 3 --out @x.graph", "out_of_range"),
        ("tune --device cpu --index @none.ivf --query @query.npy --target-recall 0.5", "io"),
        ("build --device cpu --base @base.fbin --lists 400 --out @x.ivf", "too_few_training_vectors"),
        ("search --device cpu --base @base.fbin --query @query.npy --k 0", "zero"),
        ("search --device cpu --base @base.txt --query @query.npy", "bad_file unknown extension"),
        ("search --device gpu:9999 --base @base.fbin --query @query.npy", "no_device"),
        ("search --device cpu --base @base.fbin --query @query.npy --radius 1", "needs_index"),
        ("search --device cpu --base - --query @query.npy", "no_format"),
        ("add --device cpu --index @base.fbin --base @query.npy", "bad_file"),
        ("remove --index @none.ivf --ids @gt.npy", "io"),
        ("merge --index @base.fbin --out @y.ivf", "invalid_input"),
        ("convert --in @base.fbin --out @x.ivecs", "bad_file unknown extension"),
        ("shifted --device cpu --base @base.fbin --self-join --out @base.fbin", "bad_file unknown extension"),
        ("kmeans --device cpu --base @base.fbin --centroids 3 --out @base.fbin", "bad_file the same file"),
        ("knn-graph --device cpu --base @base.fbin --k 0 --out @g.ibin", "zero"),
        ("components --graph @none.ibin", "io"),
        ("path --graph @none.ibin --base @base.fbin --from 0 --to 1", "io"),
        ("verify --cases 1 --device gpu:9999", "no_device"),
        ("bench select --device cpu --tune", "invalid_input"),
        ("bench exact --device gpu:9999 --n 5", "no_device"),
        ("bench ivf --device cpu --base @base.fbin --query @query.npy --out @no/x", "io"),
        ("bench graph --device cpu --base @base.fbin --query @query.npy --degree 3", "out_of_range"),
        ("bench kmeans --device cpu --base @base.fbin --centroids 0", "zero"),
        ("bench start-up --device gpu:9999", "no_device"),
        ("chart @text.json --out @c", "invalid_input"),
        ("man @file/pages", "io"),
    ] {
        let (code, object, stderr) = run(&folder, line);
        schema::check(&object);
        assert_eq!(code, 1, "{line}: {object}");
        assert_eq!(forms(&object), ["error"], "{line}");
        let (found, message) =
            (object["error"]["kind"].as_str().unwrap(), object["error"]["message"].as_str().unwrap());
        let (kind, part) = kind.split_once(' ').unwrap_or((kind, ""));
        assert!(found == kind && message.contains(part), "{line}: {object}");
        assert!(line.starts_with(object["command"].as_str().unwrap()), "{line}: {object}");
        assert_eq!(stderr, format!("error: {message}\n"));
    }
}

/// With `-` as an output, standard output holds the data or nothing, and the object is the last line of standard error.
#[test]
fn the_object_is_not_among_the_data() {
    let folder = files();
    io::write_vectors(folder.path().join("other.npy"), &[1u8, 2, 3, 4], 4).unwrap();
    let run = |line: &str| {
        let (code, stdout, stderr) =
            piped(&json_words(&folder, line).iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let object: Value = serde_json::from_str(stderr.lines().last().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{line}: {error}: {stderr}"));
        schema::check(&object);
        assert!(line.starts_with(object["command"].as_str().unwrap()), "{line}: {object}");
        (code, stdout, stderr, object)
    };
    let search = "search --device cpu --base @base.fbin --query";
    for (line, lines) in [
        ("convert --in @base.fbin --out - --out-format fvecs".to_owned(), 1),
        ("convert --in @gt.npy --out - --out-format ibin".into(), 1),
        (format!("{search} @query.npy --out - --out-format csv"), 1),
        (format!("{search} @query.npy --distances - --out-format npy"), 1),
        // In front of the object stands a note on the different element types.
        (format!("{search} @other.npy --out - --out-format ibin"), 2),
        ("shifted --device cpu --base @base.fbin --self-join --distances - --out-format fbin".into(), 1),
        ("kmeans --device cpu --base @base.fbin --centroids 3 --iterations 2 --out - --out-format npy".into(), 1),
    ] {
        let (code, stdout, stderr, object) = run(&line);
        assert_eq!((code, stderr.lines().count()), (0, lines), "{line}: {stderr}");
        assert!(object.get("error").is_none() && !stdout.is_empty(), "{line}: {object}");
        assert!(!String::from_utf8_lossy(&stdout).contains("schema"), "{line}: {stdout:?}");
    }
    for (line, kind) in [
        ("convert --in @none.fbin --out - --out-format npy".to_owned(), "io"),
        ("convert --in @base.fbin --out -".into(), "no_format"),
        ("convert --in @base.fbin --out - --out-format csv".into(), "wrong_format"),
        (format!("{search} @none.npy --out - --out-format csv"), "io"),
        (format!("{search} @query.npy --distances - --out-format ibin"), "wrong_format"),
        ("shifted --device cpu --base @base.fbin --self-join --out -".into(), "no_format"),
        ("kmeans --device cpu --base @base.fbin --centroids 0 --out - --out-format npy".into(), "zero"),
    ] {
        let (code, stdout, stderr, object) = run(&line);
        assert_eq!((code, stdout.len(), object["error"]["kind"].as_str()), (1, 0, Some(kind)), "{line}: {stderr}");
        let message = object["error"]["message"].as_str().unwrap();
        assert!(stderr.starts_with(&format!("error: {message}\n")) && stderr.lines().count() == 2, "{line}: {stderr}");
    }
}

#[test]
fn a_wrong_command_line_is_one_object() {
    let folder = files();
    for (line, command, text) in [
        ("", None, "'warpann' requires a subcommand"),
        ("bogus", None, "unrecognized subcommand 'bogus'"),
        ("--bogus", None, "unexpected argument '--bogus'"),
        ("bench", Some("bench"), "'warpann bench' requires a subcommand"),
        ("bench --quiet ivf", Some("bench ivf"), "--query"),
        ("search --k many", Some("search"), "invalid value 'many' for '--k <K>'"),
        ("completions tcsh", Some("completions"), "invalid value 'tcsh'"),
    ] {
        let (code, object, _) = run(&folder, line);
        schema::check(&object);
        assert_eq!((code, object["error"]["kind"].as_str()), (2, Some("usage")), "{line}: {object}");
        assert_eq!(object["command"].as_str(), command, "{line}");
        assert!(object["error"]["message"].as_str().unwrap().contains(text), "{line}: {object}");
    }
    // Help is help.
    let (code, stdout, _) = warpann(&["search", "--json", "--help"]);
    assert!(code == 0 && stdout.contains("Usage: warpann search"), "{stdout}");
}

/// Every field of a real object is compared: without its property in the schema the object is refused.
#[test]
fn a_field_that_the_schema_lacks_is_refused() {
    /// The places of all properties in a schema.
    fn properties(schema: &Value, at: &str, all: &mut Vec<(String, String)>) {
        for (key, part) in schema.as_object().into_iter().flatten() {
            let at = format!("{at}/{key}");
            if key == "properties" {
                all.extend(part.as_object().unwrap().keys().map(|name| (at.clone(), name.clone())));
                for (name, property) in part.as_object().unwrap() {
                    properties(property, &format!("{at}/{name}"), all);
                }
            } else {
                properties(part, &at, all);
            }
        }
    }
    let folder = files();
    let (_, object, _) =
        run(&folder, "search --device cpu --base @base.fbin --query @query.npy --k 2 --gt @gt.npy --show 1");
    let schema = schema::schema();
    let mut all = Vec::new();
    properties(&schema["$defs"]["search"], "/$defs/search", &mut all);
    // All fields but those of an index and of its options.
    let printed = |name: &str| {
        !["index", "probes", "filtered", "candidates", "proof", "within", "lists", "beam", "exact_queries"]
            .contains(&name)
    };
    all.retain(|(_, name)| printed(name));
    assert_eq!(all.len(), 21, "{all:?}");
    for (at, name) in all {
        let mut less = schema.clone();
        less.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove(&name).unwrap();
        assert!(!schema::differences(&less, &less, &object, "$").is_empty(), "{at}/{name}");
    }
}

#[test]
fn the_checker_refuses_each_kind_of_difference() {
    let pair = json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": ["number", "null"]}], "minItems": 2, "maxItems": 2});
    let form = json!({
        "type": "object",
        "properties": {
            "schema": {"const": 1},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "pairs": {"type": "array", "items": pair},
        },
        "required": ["schema", "kind"],
        "additionalProperties": false,
    });
    let root = json!({"oneOf": [{"$ref": "#/$defs/form"}, {"type": "string"}], "$defs": {"form": form}});
    let fits = |value: Value| schema::differences(&root, &root, &value, "$").is_empty();
    assert!(fits(json!({"schema": 1, "kind": "a"})) && fits(json!("text")));
    assert!(fits(json!({"schema": 1, "kind": "b", "pairs": [[1, 2.5], [2, null]]})));
    for wrong in [
        json!(1),
        json!({"schema": 2, "kind": "a"}),
        json!({"schema": 1}),
        json!({"schema": 1, "kind": "c"}),
        json!({"schema": 1, "kind": 1}),
        json!({"schema": 1, "kind": "a", "more": 1}),
        json!({"schema": 1, "kind": "a", "pairs": [[1]]}),
        json!({"schema": 1, "kind": "a", "pairs": [[1, 2, 3]]}),
        json!({"schema": 1, "kind": "a", "pairs": [[1.5, 2]]}),
        json!({"schema": 1, "kind": "a", "pairs": {}}),
    ] {
        assert!(!fits(wrong.clone()), "{wrong}");
    }
    let both = json!({"oneOf": [{"type": "string"}, {"const": "a"}]});
    assert!(!schema::differences(&both, &both, &json!("a"), "$").is_empty());
}

/// The type of a property in the words of the page.
fn type_name(property: &Value) -> String {
    let names = &property["type"];
    let names = names.as_array().map_or_else(|| vec![names], |names| names.iter().collect());
    let name = |name: &Value| match (name.as_str().unwrap(), property["prefixItems"].as_array()) {
        ("array", Some(items)) => format!("pair of {}", items.iter().map(type_name).collect::<Vec<_>>().join(" and ")),
        ("array", None) => format!("list of {}", type_name(&property["items"])),
        (name, _) => name.to_owned(),
    };
    let text = names.into_iter().map(name).collect::<Vec<_>>().join(" or ");
    match property["enum"].as_array() {
        Some(values) => {
            format!("{text}: {}", values.iter().map(|value| value.as_str().unwrap()).collect::<Vec<_>>().join(", "))
        }
        None => text,
    }
}

/// The rows of the table of an object in the page.
fn rows(form: &Value, prefix: &str) -> Vec<String> {
    let mut all = Vec::new();
    let common = |name: &str| prefix.is_empty() && ["schema", "command"].contains(&name);
    for (name, property) in form["properties"].as_object().unwrap().iter().filter(|(name, _)| !common(name)) {
        let required = form["required"].as_array().unwrap().iter().any(|required| required == name);
        let optional = if required { "" } else { ", optional" };
        let meaning = property["description"].as_str().expect("every property has a description");
        all.push(format!("| `{prefix}{name}` | {}{optional} | {meaning} |", type_name(property)));
        let (mut inner, mut place) = (property, format!("{prefix}{name}"));
        while inner.get("items").is_some() {
            (inner, place) = (&inner["items"], place + "[]");
        }
        if inner.get("properties").is_some() {
            all.extend(rows(inner, &format!("{place}.")));
        }
    }
    all
}

#[test]
fn the_page_has_the_tables_of_the_schema() {
    let schema = schema::schema();
    let mut titles = BTreeSet::new();
    for (name, form) in schema["$defs"].as_object().unwrap() {
        let title = form["title"].as_str().unwrap();
        let heading = if name == "error" { "\n## Errors\n".to_owned() } else { format!("\n### {title}\n") };
        let section = PAGE.split(&heading).nth(1).unwrap_or_else(|| panic!("docs/JSON.md has no section {title}"));
        let section = section.split("\n#").next().unwrap();
        let table = section.lines().filter(|line| line.starts_with("| `"));
        // The section of errors has a table of kinds as well.
        let table: Vec<&str> = table.filter(|line| name != "error" || line.starts_with("| `error")).collect();
        let mut expected = rows(form, "");
        let sorted = |mut rows: Vec<String>| {
            rows.sort();
            rows
        };
        expected = sorted(expected);
        assert_eq!(
            sorted(table.into_iter().map(str::to_owned).collect()),
            expected,
            "the table of {title} in docs/JSON.md"
        );
        titles.insert(heading);
    }
    let headings = PAGE.lines().filter(|line| line.starts_with("### ")).count();
    assert_eq!(headings, titles.len() - 1, "docs/JSON.md has a section that the schema lacks");
}

#[test]
fn the_error_of_the_page_is_what_the_program_prints() {
    let (base, query) = (format!("{SAMPLE}/sample_base.bvecs"), format!("{SAMPLE}/sample_query.bvecs"));
    let (code, stdout, _) = warpann(&["search", "--base", &base, "--query", &query, "--k", "0", "--json"]);
    assert_eq!(code, 1);
    assert!(PAGE.contains(&format!("```json\n{stdout}```\n")), "{stdout}");
}
