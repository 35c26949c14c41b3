//! Starts the program with index files and talks to it over HTTP. The library itself gives the expected results.

#![cfg(unix)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::Agent;
use warpann::{AnyIndex, Device, FlatIndex, GraphIndex, IvfIndex, Metric, NONE, Neighbors, SearchOptions};

const DIM: usize = 8;
const ROWS: usize = 600;
const K: usize = 10;
const BYTES: &str = "application/octet-stream";
/// The longest time that a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Vectors that depend on the seed (xorshift), with components from −1 to 1.
fn vectors(rows: usize, dim: usize, seed: u64) -> Vec<f32> {
    let mut state = seed * 2 + 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..rows * dim + 16).map(next).skip(16).collect()
}

fn flat(rows: usize, dim: usize, seed: u64) -> AnyIndex<f32> {
    let mut index = FlatIndex::<f32>::new(dim, Metric::L2, Device::Cpu).unwrap();
    index.add(&vectors(rows, dim, seed)).unwrap();
    index.into()
}

/// Waits for something that must happen.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The program, with a folder for its files.
struct Server {
    child: Child,
    address: String,
    folder: TempDir,
    agent: Agent,
}

impl Server {
    fn start(index: &AnyIndex<f32>, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        index.save(&path).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_warpann-server"))
            .arg(&path)
            .args(["--listen", "127.0.0.1:0", "--device", "cpu"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect(&line).to_owned();
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Self { child, address, folder, agent: config.build().into() }
    }

    fn index_path(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    /// Status, version (if the header has one) and body of a POST request.
    fn post(&self, page: &str, content_type: &str, body: &[u8]) -> (u16, Option<u64>, Vec<u8>) {
        let request = self.agent.post(format!("http://{}{page}", self.address)).content_type(content_type);
        let mut response = request.send(body).unwrap_or_else(|error| panic!("{page}: {error}"));
        let version = response.headers().get("x-index-version").map(|text| text.to_str().unwrap().parse().unwrap());
        (response.status().as_u16(), version, response.body_mut().read_to_vec().unwrap())
    }

    fn get(&self, page: &str) -> (u16, String) {
        let mut response = self.agent.get(format!("http://{}{page}", self.address)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// The value of a metric, by its name with labels.
    fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    /// A search as JSON: ids, distances and version.
    fn search(&self, body: &Value) -> (Vec<u64>, Vec<f32>, u64) {
        let (status, _, body) = self.post("/search", "application/json", body.to_string().as_bytes());
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Answer>(&body).map(|answer| (answer.ids, answer.distances, answer.version)).unwrap()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for the end of the program, which must be a success.
    fn ends_well(&mut self) {
        let mut status = None;
        until("the end of the program", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}: {}", self.stderr());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(serde::Deserialize)]
struct Answer {
    ids: Vec<u64>,
    distances: Vec<f32>,
    version: u64,
}

fn bytes_of(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The ids and distances of a binary answer.
fn decoded(bytes: &[u8], k: usize) -> (Vec<u64>, Vec<f32>) {
    assert_eq!(bytes.len(), 12 * k);
    let (ids, distances) = bytes.split_at(8 * k);
    let ids = ids.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
    (ids, distances.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

/// The bits of a result, in which every test compares.
fn bits(distances: &[f32]) -> Vec<u32> {
    distances.iter().map(|value| value.to_bits()).collect()
}

fn same(found: (&[u64], &[f32]), expected: &Neighbors) -> bool {
    found.0 == expected.ids && bits(found.1) == bits(&expected.distances)
}

#[test]
fn both_bodies_have_the_results_of_the_library() {
    let base = vectors(ROWS, DIM, 1);
    let mut ivf = IvfIndex::<f32>::builder(DIM, 12).device(Device::Cpu).build().unwrap();
    ivf.train(&base).unwrap();
    ivf.add(&base).unwrap();
    let mut graph = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(0).build().unwrap();
    graph.add(&base).unwrap();
    let settings = [(None, None), (Some(1), None), (Some(5), None), (None, Some(12)), (None, Some(usize::MAX))];
    for (kind, index) in [("flat", flat(ROWS, DIM, 1)), ("ivf", ivf.into()), ("graph", graph.into())] {
        let mut server = Server::start(&index, &[]);
        let index = AnyIndex::<f32>::load(server.index_path(), Device::Cpu, None).unwrap();
        let health: Value = serde_json::from_str(&server.get("/health").1).unwrap();
        let facts =
            json!([health["status"], health["kind"], health["vectors"], health["dimension"], health["version"]]);
        assert_eq!(facts, json!(["ok", kind, ROWS, DIM, 0]));
        for query in vectors(6, DIM, 2).chunks(DIM) {
            for (probes, beam) in settings {
                let options = SearchOptions::new().probes(probes).beam(beam);
                let expected = index.search_with(query, K, &options).unwrap();

                let mut body = json!({ "vector": query, "k": K, "deadline_ms": u64::MAX });
                let mut page = format!("/search?k={K}");
                for (name, value) in [("probes", probes), ("beam", beam)] {
                    if let Some(value) = value {
                        body[name] = value.into();
                        page += &format!("&{name}={value}");
                    }
                }
                let (ids, distances, version) = server.search(&body);
                assert!(same((&ids, &distances), &expected) && version == 0, "{kind} {body}");
                let (status, version, bytes) = server.post(&page, BYTES, &bytes_of(query));
                let (ids, distances) = decoded(&bytes, K);
                assert!(same((&ids, &distances), &expected) && (status, version) == (200, Some(0)), "{kind} {page}");
            }
        }
        server.signal("-INT");
        server.ends_well();
    }
}

/// JSON leaves out the neighbours that do not exist; bytes have all k places.
#[test]
fn an_index_with_less_than_k_vectors() {
    let index = flat(3, DIM, 1);
    let server = Server::start(&index, &[]);
    let query = vectors(1, DIM, 2);
    let expected = index.search(&query, 5).unwrap();
    let (ids, distances, _) = server.search(&json!({ "vector": query, "k": 5 }));
    assert_eq!((&ids[..], bits(&distances)), (&expected.ids[..3], bits(&expected.distances[..3])));
    let (ids, distances) = decoded(&server.post("/search?k=5", BYTES, &bytes_of(&query)).2, 5);
    assert!(same((&ids, &distances), &expected) && ids[3..] == [NONE; 2]);
}

#[test]
fn many_clients_at_once() {
    const THREADS: u64 = 16;
    const EACH: usize = 60;
    let index = flat(ROWS, DIM, 1);
    let server = Server::start(&index, &[]);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (server, index) = (&server, &index);
            scope.spawn(move || {
                for (turn, query) in vectors(EACH, DIM, 10 + number).chunks(DIM).enumerate() {
                    let k = 1 + turn % 7;
                    let expected = index.search(query, k).unwrap();
                    let (ids, distances) = if turn % 2 == 0 {
                        let (ids, distances, _) = server.search(&json!({ "vector": query, "k": k }));
                        (ids, distances)
                    } else {
                        decoded(&server.post(&format!("/search?k={k}"), BYTES, &bytes_of(query)).2, k)
                    };
                    assert!(same((&ids, &distances), &expected));
                }
            });
        }
    });
    let all = (THREADS as usize * EACH) as f64;
    assert_eq!(server.metric(r#"warpann_search_requests_total{result="answered",reason=""}"#), all);
    assert_eq!(server.metric("warpann_search_duration_seconds_count"), all);
    assert_eq!(server.metric(r#"warpann_search_duration_seconds_bucket{le="+Inf"}"#), all);
    assert!(server.metric("warpann_search_duration_seconds_sum") > 0.0);
    // The batcher counts a moment after the answer.
    until("all are counted", || server.metric("warpann_batcher_answered_total") == all);
    let searches = server.metric("warpann_batcher_searches_total");
    assert!((1.0..=all).contains(&searches), "{searches}");
    let none = ["warpann_search_in_flight", "warpann_batcher_waiting", "warpann_batcher_full_total"];
    assert_eq!(none.map(|name| server.metric(name)), [0.0; 3]);
}

#[test]
fn bad_requests_are_refused_and_the_server_goes_on() {
    let index = flat(ROWS, DIM, 1);
    let server = Server::start(&index, &["--max-k", "50"]);
    let query = vectors(1, DIM, 2);
    let bytes = bytes_of(&query);
    let (json, no_number) = ("application/json", bytes_of(&[f32::NAN; DIM]));
    let text = |value: Value| value.to_string().into_bytes();
    let bad: [(&str, &str, Vec<u8>, u16, &str); 17] = [
        ("/search", json, text(json!({ "vector": [0.5, 1.0] })), 400, "wrong dimension: the index has 8"),
        ("/search", json, text(json!({ "vector": query, "k": 0 })), 400, "k = 0"),
        ("/search", json, text(json!({ "vector": query, "k": 51 })), 400, "the largest k of this server is 50"),
        ("/search", json, text(json!({ "vector": query, "k": -1 })), 400, "invalid value"),
        ("/search", json, text(json!({ "vector": query, "probs": 4 })), 400, "unknown field `probs`"),
        ("/search", json, text(json!({ "k": 3 })), 400, "missing field `vector`"),
        ("/search", json, text(json!({ "vector": [1e39, 0, 0, 0, 0, 0, 0, 0] })), 400, ""),
        ("/search", json, text(json!({ "vector": ["a"] })), 400, "expected f32"),
        ("/search", json, b"{\"vector\": [1, 2".to_vec(), 400, "EOF"),
        ("/search", json, vec![0xff; 40], 400, ""),
        ("/search", "text/plain", text(json!({ "vector": query })), 415, "content type 'text/plain'"),
        ("/search?k=3", BYTES, bytes[1..].to_vec(), 400, "31 bytes are no whole number"),
        ("/search?k=3", BYTES, bytes[4..].to_vec(), 400, "wrong dimension"),
        ("/search?k=3", BYTES, no_number, 400, "not finite"),
        ("/search?k=many", BYTES, bytes.clone(), 400, "invalid digit"),
        ("/search?k=3&deadline_ms=0", BYTES, bytes.clone(), 504, "deadline"),
        ("/elsewhere", json, Vec::new(), 404, "no such page"),
    ];
    for (page, content_type, body, expected, message) in bad {
        let (status, _, answer) = server.post(page, content_type, &body);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let (error, body) = (answer["error"].as_str().unwrap(), String::from_utf8_lossy(&body));
        assert!(status == expected && error.contains(message), "{page} {body:.200}: {status} {error}");
    }
    // The first byte beyond the limit is the last that this client sends. With bytes that nobody reads the system would
    // reset the connection, and the client might miss the answer.
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("POST /search HTTP/1.1\r\nhost: here\r\ncontent-type: {json}\r\ncontent-length: 100000\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[b' '; 64 * DIM + 4096 + 1]).unwrap();
    let mut status = String::new();
    BufReader::new(stream).read_line(&mut status).unwrap();
    assert_eq!(status, "HTTP/1.1 413 Payload Too Large\r\n");

    let (ids, distances, _) = server.search(&json!({ "vector": query }));
    assert!(same((&ids, &distances), &index.search(&query, 10).unwrap()), "10 is the k of a request without one");
    let count = |labels: &str| server.metric(&format!("warpann_search_requests_total{{{labels}}}"));
    // All but the late one and the other page. A wrong method is none of the searches.
    assert_eq!(count(r#"result="bad_request",reason="""#), 16.0);
    assert_eq!(server.get("/search").0, 405);
    assert_eq!(count(r#"result="bad_request",reason="""#), 16.0);
    assert_eq!(count(r#"result="refused",reason="deadline""#), 1.0);
    assert_eq!(count(r#"result="answered",reason="""#), 1.0);
}

#[test]
fn a_full_queue_is_503() {
    let server = Server::start(&flat(ROWS, DIM, 1), &["--waiting", "0"]);
    let (status, _, body) = server.post("/search", BYTES, &bytes_of(&[0.5; DIM]));
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &body), (503, &json!({ "error": "the request was refused: 0 requests wait already" })));
    assert_eq!(server.metric(r#"warpann_search_requests_total{result="refused",reason="full"}"#), 1.0);
    assert_eq!(server.metric("warpann_batcher_full_total"), 1.0);
}

/// While threads search, the file is replaced by a good one, by a damaged one, by one of another dimension, removed,
/// and replaced by a good one again.
#[test]
fn a_replaced_file_is_published_and_a_bad_one_is_not() {
    let versions = [1, 2, 3].map(|seed| flat(ROWS, DIM, seed));
    let server = Server::start(&versions[0], &[]);
    let path = server.index_path();
    let queries = vectors(20, DIM, 9);
    let expected = versions.each_ref().map(|index| {
        let search = |query| index.search(query, K).unwrap();
        queries.chunks(DIM).map(search).collect::<Vec<_>>()
    });
    let ok = r#"warpann_index_reloads_total{result="ok"}"#;
    let failed = r#"warpann_index_reloads_total{result="failed"}"#;
    let (done, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    /// Ends the threads also if the test fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _ends = Ends(&done);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut last = 0;
                for (at, query) in queries.chunks(DIM).enumerate().cycle() {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let (ids, distances, least) = server.search(&json!({ "vector": query, "k": K }));
                    let is_right = |expected: &Vec<Neighbors>| same((&ids, &distances), &expected[at]);
                    let version = expected.iter().position(is_right).expect("the answer is of a version");
                    assert!(version >= least as usize && version >= last, "no version after a later one");
                    last = version;
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let is_version = |version: usize| {
            for (query, expected) in queries.chunks(DIM).zip(&expected[version]) {
                let (ids, distances, number) = server.search(&json!({ "vector": query, "k": K }));
                assert!(same((&ids, &distances), expected) && number == version as u64);
            }
            // The threads search as well.
            let before = answers.load(Ordering::Relaxed);
            until("more answers", || answers.load(Ordering::Relaxed) >= before + 20);
        };
        is_version(0);
        versions[1].save(&path).unwrap();
        until("version 1", || server.metric(ok) == 1.0);
        is_version(1);

        let mut damaged = versions[2].to_bytes().unwrap();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        let bad_files: [(&str, &dyn Fn()); 4] = [
            ("checksum", &|| fs::write(&path, &damaged).unwrap()),
            ("", &|| fs::write(&path, &damaged[..middle]).unwrap()),
            ("its dimension is 9; this server has 8", &|| flat(ROWS, DIM + 1, 3).save(&path).unwrap()),
            ("No such file", &|| fs::remove_file(&path).unwrap()),
        ];
        for (count, (message, replace)) in bad_files.into_iter().enumerate() {
            replace();
            until("the refusal of a bad file", || server.metric(failed) == (count + 1) as f64);
            assert_eq!(server.metric("warpann_index_stale"), 1.0);
            until("the message", || {
                let stderr = server.stderr();
                let lines: Vec<_> =
                    stderr.lines().filter(|line| line.starts_with("the index of version 1 stays")).collect();
                lines.len() == count + 1 && lines[count].contains(message)
            });
            is_version(1);
        }

        versions[2].save(&path).unwrap();
        until("version 2", || server.metric(ok) == 2.0);
        is_version(2);
        assert_eq!((server.metric("warpann_index_stale"), server.metric("warpann_index_version")), (0.0, 2.0));
    });
    assert_eq!(server.metric(r#"warpann_search_requests_total{result="bad_request",reason=""}"#), 0.0);
    assert_eq!(server.metric(r#"warpann_search_requests_total{result="failed",reason=""}"#), 0.0);
}

/// Requests whose bodies have arrived in part are in flight when the signal comes. Each gets its answer.
#[test]
fn the_server_stops_after_its_last_answer() {
    let index = flat(ROWS, DIM, 1);
    let mut server = Server::start(&index, &[]);
    let queries = vectors(32, DIM, 5);
    let begun: Vec<_> = queries
        .chunks(DIM)
        .map(|query| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = format!(
                "POST /search?k={K} HTTP/1.1\r\nhost: {}\r\ncontent-type: {BYTES}\r\ncontent-length: {}\r\n\r\n",
                server.address,
                4 * DIM
            );
            stream.write_all(head.as_bytes()).unwrap();
            let (first, rest) = query.split_at(DIM / 2);
            stream.write_all(&bytes_of(first)).unwrap();
            (stream, query, rest)
        })
        .collect();
    until("all requests have begun", || server.metric("warpann_search_in_flight") == begun.len() as f64);

    server.signal("-TERM");
    until("new connections are refused", || TcpStream::connect(&server.address).is_err());
    assert!(server.child.try_wait().unwrap().is_none(), "requests are in flight");
    for (mut stream, query, rest) in begun {
        stream.write_all(&bytes_of(rest)).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&answer));
        let body = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let (ids, distances) = decoded(&answer[body..], K);
        assert!(same((&ids, &distances), &index.search(query, K).unwrap()));
    }
    server.ends_well();
}

/// A client that leaves is counted, and no other one notices.
#[test]
fn a_client_that_leaves_is_counted() {
    let server = Server::start(&flat(ROWS, DIM, 1), &[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!("POST /search HTTP/1.1\r\nhost: here\r\ncontent-type: {BYTES}\r\ncontent-length: 32\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    until("the request has begun", || server.metric("warpann_search_in_flight") == 1.0);
    drop(stream);
    until("the request has ended", || server.metric("warpann_search_in_flight") == 0.0);
    let count =
        |result: &str| server.metric(&format!("warpann_search_requests_total{{result=\"{result}\",reason=\"\"}}"));
    // It depends on the time whether the server sees a body that ends too early or a connection that is gone.
    assert_eq!(count("cancelled") + count("bad_request"), 1.0);
    server.search(&json!({ "vector": vec![0.5; DIM] }));
}

/// A file or arguments that cannot be used end the program with a message.
#[test]
fn a_bad_start_is_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let run = |arguments: &[&str], path: Option<&Path>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpann-server"));
        let output = command.args(arguments).args(path).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&[], Some(&path)).contains("No such file"));
    fs::write(&path, "no index").unwrap();
    assert!(run(&[], Some(&path)).starts_with("warpann-server: "));
    for (arguments, message) in [
        (&[][..], "an index file is needed"),
        (&["--max-k"], "--max-k has no value"),
        (&["--max-k", "x"], "--max-k x: invalid digit"),
        (&["--depth", "1"], "--depth is unknown"),
        (&["--device", "tpu"], "--device tpu: "),
        (&["a", "b"], "not two"),
    ] {
        let stderr = run(arguments, None);
        assert!(stderr.contains(message) && stderr.contains("usage: warpann-server"), "{stderr}");
    }
    flat(3, DIM, 1).save(&path).unwrap();
    assert!(run(&["--listen", "256.0.0.1:1"], Some(&path)).contains("256.0.0.1:1: "));
}
