//! The page of `chart --out NAME.html`, read as XML and by a browser.
//!
//! The test with the browser shows as ignored where there is no Chromium (Debian: `chromium-headless-shell`); with
//! `WARPANN_REQUIRE_CHROMIUM=1` it fails there.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use common::{failure, json, warpann};
use libtest_mimic::{Arguments, Failed, Trial};
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, from_str, json};
use tempfile::TempDir;

/// Names under which Chromium is installed.
const BROWSERS: [&str; 5] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"];

fn main() -> ExitCode {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let programs =
        BROWSERS.iter().flat_map(|name| std::env::split_paths(&folders).map(move |folder| folder.join(name)));
    let browser = programs.into_iter().find(|program| program.is_file());
    let required = std::env::var_os("WARPANN_REQUIRE_CHROMIUM").is_some_and(|value| value == "1");
    let (ignored, kind) = match browser {
        None if !required => (true, "needs Chromium"),
        _ => (false, ""),
    };
    let in_a_browser = move || {
        let browser = browser.ok_or_else(|| format!("none of {BROWSERS:?} is on the path"))?;
        a_browser_shows_texts_of_marks_and_sorts(&browser);
        Ok::<_, Failed>(())
    };
    let without = |test: fn()| {
        move || {
            test();
            Ok(())
        }
    };
    let trials = vec![
        Trial::test(
            "the_page_is_xml_and_its_table_has_the_points",
            without(the_page_is_xml_and_its_table_has_the_points),
        ),
        Trial::test("the_page_replaces_no_input", without(the_page_replaces_no_input)),
        Trial::test("a_browser_shows_texts_of_marks_and_sorts", in_a_browser)
            .with_ignored_flag(ignored)
            .with_kind(kind),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A point of a report.
fn point(effort: (&str, usize), batch: usize, recall: f64, rate: f64, p50: f64) -> Value {
    let mut point =
        json!({"k": 10, "batch": batch, "recall": recall, "queries_per_second": rate, "latency_p50_ms": p50});
    point[effort.0] = effort.1.into();
    point
}

/// Two reports in a folder. Each column orders their points differently.
struct Reports {
    folder: TempDir,
    reports: [Value; 2],
}

impl Reports {
    fn new() -> Self {
        let report = |command: &str, index: &str, device: &str, rows: Vec<Value>| json!({"schema": 1, "command": command, "index": index, "device": device, "rows": rows});
        let lists = [(1, 0.512_345_678_9, 90_000.4, 2.5), (4, 0.75, 20_000.0, 7.25), (16, 0.998, 1500.0, 60.125)];
        let lists = lists.map(|(probes, recall, rate, p50)| point(("probes", probes), 200, recall, rate, p50));
        let walks = [(16, 0.62, 9_000.0, 0.1), (128, 0.9, 40_000.6, 0.03)];
        let walks = walks.map(|(beam, recall, rate, p50)| point(("beam", beam), 200, recall, rate, p50));
        let reports = [
            report("bench ivf", "ivf-flat <16> \"lists\" & more", "cpu", lists.to_vec()),
            report("bench graph", "graph, degree 32", "gpu:0", walks.to_vec()),
        ];
        let folder = tempfile::tempdir().unwrap();
        for (name, report) in ["lists.json", "walks.json"].iter().zip(&reports) {
            std::fs::write(folder.path().join(name), report.to_string()).unwrap();
        }
        Self { folder, reports }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The page, as the program writes it.
    fn page(&self) -> String {
        let (out, lists, walks) = (self.path("report.html"), self.path("lists.json"), self.path("walks.json"));
        let report = json(&["chart", &lists, &walks, "--out", &out]);
        assert_eq!(report["files"], json!([out]));
        assert_eq!(report["curves"].as_array().unwrap().len(), 2);
        let mut written: Vec<_> =
            self.folder.path().read_dir().unwrap().map(|file| file.unwrap().file_name()).collect();
        written.sort();
        assert_eq!(written, ["lists.json", "report.html", "walks.json"]);
        std::fs::read_to_string(out).unwrap()
    }

    /// The rows of both reports, each with its report and its effort.
    fn rows(&self) -> impl Iterator<Item = (&Value, &Value, (&str, u64))> {
        self.reports.iter().flat_map(|report| {
            report["rows"].as_array().unwrap().iter().map(move |row| {
                let effort = ["probes", "beam"].into_iter().find_map(|name| Some((name, row[name].as_u64()?)));
                (report, row, effort.unwrap())
            })
        })
    }
}

fn the_page_is_xml_and_its_table_has_the_points() {
    let reports = Reports::new();
    let text = reports.page();
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let page = Document::parse_with_options(&text, options).unwrap();
    let all = |name: &'static str| page.descendants().filter(move |node| node.tag_name().name() == name);
    // Nothing that a browser would load.
    assert!(page.descendants().all(|node| ["src", "href"].iter().all(|name| !node.has_attribute(*name))));
    for style in all("style") {
        let style = style.text().unwrap();
        assert!(!style.contains("url(") && !style.contains("@import"), "{style}");
    }
    let heads: Vec<_> = all("th").map(|head| text_of(head)).collect();
    assert_eq!(heads, ["index", "k", "effort", "batch", "recall", "queries/s", "p50 ms", "best of all"]);
    let body = all("tbody").next().unwrap();
    let rows: Vec<Vec<Node>> =
        body.children().filter(Node::is_element).map(|row| row.children().filter(Node::is_element).collect()).collect();
    assert_eq!(rows.len(), 5);
    for (cells, (report, row, (_, effort))) in rows.iter().zip(reports.rows()) {
        assert_eq!(cells.len(), heads.len());
        let name = format!("{}, {}", report["index"].as_str().unwrap(), report["device"].as_str().unwrap());
        assert_eq!((text_of(cells[0]), cells[0].attribute("data-value")), (name.clone(), Some(&*name)));
        let number = |column: usize| cells[column].attribute("data-value").unwrap().parse::<f64>().unwrap();
        let of = |name: &str| row[name].as_f64().unwrap();
        let expected =
            [of("k"), effort as f64, of("batch"), of("recall"), of("queries_per_second"), of("latency_p50_ms")];
        assert_eq!([1, 2, 3, 4, 5, 6].map(number), expected);
        // The text is the number, rounded.
        for (column, within) in [(4, 5e-7), (5, 0.5), (6, 5e-4)] {
            assert!((text_of(cells[column]).parse::<f64>().unwrap() - number(column)).abs() <= within, "{cells:?}");
        }
        let beaten = reports.rows().any(|(_, other, _)| {
            let more = |name: &str| other[name].as_f64().unwrap() - of(name);
            let (recall, rate) = (more("recall"), more("queries_per_second"));
            recall >= 0.0 && rate >= 0.0 && recall + rate > 0.0
        });
        assert_eq!((text_of(cells[7]).as_str(), number(7)), if beaten { ("", 0.0) } else { ("yes", 1.0) });
    }
    assert!(all("svg").count() == 1 && all("title").count() > 5);
}

fn text_of(node: Node) -> String {
    node.descendants().filter_map(|node| if node.is_text() { node.text() } else { None }).collect()
}

fn the_page_replaces_no_input() {
    let reports = Reports::new();
    let input = reports.path("input.html");
    std::fs::rename(reports.path("lists.json"), &input).unwrap();
    let before = std::fs::read(&input).unwrap();
    failure(1, &["chart", &input, "--out", &input]);
    assert_eq!(std::fs::read(&input).unwrap(), before);
    let missing = reports.path("no/report.html");
    assert!(failure(1, &["chart", &input, "--out", &missing]).contains("no/report.html"));
    // The name of a chart may hold dots.
    let (code, text, _) = warpann(&["chart", &input, "--out", &reports.path("report.htm")]);
    assert!(code == 0 && text.contains("report.htm.svg, "), "{text}");
}

/// Asks for the text under each mark, and clicks on each column twice; the answers become the text of an element.
const QUESTIONS: &str = r#"<script>
const marks = Array.from(document.querySelectorAll("g.tt")).map(mark => {
    const box = mark.getBoundingClientRect();
    const under = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).closest("g.tt");
    return under ? under.querySelector("title").textContent : null;
});
const rows = () => Array.from(document.querySelectorAll("tbody tr")).map(row => row.cells[5].textContent);
const orders = Array.from(document.querySelectorAll("th")).map(head => [1, 2].map(() => {
    head.querySelector("button").click();
    return [head.getAttribute("aria-sort"), document.querySelectorAll("th[aria-sort]").length, rows()];
}));
const answers = document.createElement("pre");
answers.textContent = encodeURIComponent(JSON.stringify({ marks, orders }));
answers.id = "answers";
document.body.append(answers);
</script></body>"#;

fn a_browser_shows_texts_of_marks_and_sorts(browser: &Path) {
    let reports = Reports::new();
    let asked: PathBuf = reports.folder.path().join("asked.html");
    std::fs::write(&asked, reports.page().replace("</body>", QUESTIONS)).unwrap();
    // A profile in the folder, so that nothing stays on the machine. Root needs --no-sandbox.
    let profile = format!("--user-data-dir={}", reports.path("profile"));
    let options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,2000", &profile, "--dump-dom"];
    let output = Command::new(browser).args(options).arg(format!("file://{}", asked.display())).output().unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let answers = dom.split("<pre id=\"answers\">").nth(1).unwrap_or_else(|| panic!("{dom} {errors}"));
    let answers: Value = from_str(&decoded(answers.split('<').next().unwrap())).unwrap();

    let first = "ivf-flat <16> \"lists\" & more\ncpu\nprobes 1, k = 10, batch 200\nrecall 0.512346\n90000 queries/s\np50 2.500 ms";
    let last = "graph, degree 32\ngpu:0\nbeam 128, k = 10, batch 200\nrecall 0.900000\n40001 queries/s\np50 0.030 ms";
    let shown: Vec<&str> =
        answers["marks"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().trim()).collect();
    // A mark has two shapes with one text, and the upper one is in its middle.
    for (_, row, (name, effort)) in reports.rows() {
        let start = format!("{name} {effort}, k = 10, batch 200\nrecall {:.6}\n", row["recall"].as_f64().unwrap());
        assert_eq!(shown.iter().filter(|text| text.contains(&start)).count(), 2, "{start}: {shown:?}");
    }
    assert!(shown.len() == 2 * 5 && shown.contains(&first) && shown.contains(&last), "{shown:?}");

    // A first click sorts texts from the least and numbers from the greatest, a second one turns the order around, and
    // equal rows stay in their order.
    let mut rows: Vec<_> = reports.rows().collect();
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let best = |rate: f64| f64::from(u8::from([1500.0, 40_000.6, 90_000.4].contains(&rate)));
    let columns = answers["orders"].as_array().unwrap();
    assert_eq!(columns.len(), 8);
    for (column, clicks) in columns.iter().enumerate() {
        for (click, answer) in clicks.as_array().unwrap().iter().enumerate() {
            let ascending = (column == 0) == (click == 0);
            rows.sort_by(|(report, row, (_, effort)), (other_report, other_row, (_, other_effort))| {
                let of = |name: &str| number(row, name).total_cmp(&number(other_row, name));
                let rate = |row| best(number(row, "queries_per_second"));
                let order = match column {
                    0 => report["index"].as_str().cmp(&other_report["index"].as_str()),
                    2 => effort.cmp(other_effort),
                    7 => rate(row).total_cmp(&rate(other_row)),
                    _ => of(["", "k", "", "batch", "recall", "queries_per_second", "latency_p50_ms"][column]),
                };
                if ascending { order } else { order.reverse() }
            });
            let rates: Vec<_> =
                rows.iter().map(|(_, row, _)| format!("{:.0}", number(row, "queries_per_second"))).collect();
            let order = if ascending { "ascending" } else { "descending" };
            assert_eq!(*answer, json!([order, 1, rates]), "column {column}, click {click}");
        }
    }
}

/// The text that `encodeURIComponent` encoded.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
