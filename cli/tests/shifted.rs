//! `warpann shifted`, run as a user runs it.

mod common;

use common::{Folder, failure, json, warpann};
use serde_json::Value;
use warpann::io;

/// A strip of 40 triangles above the x axis as OBJ, its corners as vectors, and three points near it, in a separate
/// folder.
fn files() -> Folder {
    let files = Folder::new();
    let corners: Vec<[f32; 3]> = (0..42).map(|i| [(i / 2) as f32, (i % 2) as f32, 0.0]).collect();
    let vertices = corners.iter().map(|[x, y, z]| format!("v {x} {y} {z}\n"));
    let faces = (1..=40).map(|i| format!("f {i} {} {}\n", i + 1, i + 2));
    std::fs::write(files.path("strip.obj"), vertices.chain(faces).collect::<String>()).unwrap();
    std::fs::write(files.path("broken.ply"), b"ply\nformat ascii 1.0\nend_header\n").unwrap();
    io::write_vectors(files.path("corners.fbin"), corners.as_flattened(), 3).unwrap();
    io::write_vectors(files.path("near.fbin"), &[0.1f32, 0.2, 0.0, 7.9, 0.9, 0.3, 30.0, -5.0, 0.0], 3).unwrap();
    io::write_vectors(files.path("plane.fbin"), &[0.5f32; 4], 2).unwrap();
    io::write_vectors(files.path("wide.fbin"), &[0.5f32; 26], 13).unwrap();
    files
}

fn run(args: &[&str]) -> Value {
    json(&[&["shifted", "--device", "cpu", "--exact-sample", "100"], args].concat())
}

#[test]
fn a_mesh_and_its_corners_are_searched_alike() {
    let files = files();
    let [mesh, corners, near] = ["strip.obj", "corners.fbin", "near.fbin"].map(|name| files.text(name));
    let (ids, distances) = (files.text("ids.ibin"), files.text("distances.npy"));
    for from in [["--mesh", &mesh], ["--base", &corners]] {
        let written = ["--query", &near, "--k", "3", "--show", "1", "--out", &ids, "--distances", &distances];
        let report = run(&[&from[..], &written].concat());
        assert_eq!((&report["base"], &report["dim"], &report["shifts"]), (&42.into(), &3.into(), &5.into()));
        assert_eq!(report["quality"]["queries"], 3);
        assert_eq!(report["neighbours"][0][0][0], 0);
        let read = io::read_ids(&ids).unwrap();
        assert_eq!((read.rows, read.k), (3, 3));
        assert_eq!((read.row(0)[0], read.row(1)[0], read.row(2)[0]), (0, 17, 40));
        let read = io::read_vectors(&distances).unwrap();
        assert!((read.as_slice::<f32>().unwrap()[0] - 0.05).abs() < 1e-6);
    }
}

#[test]
fn boxes_of_triangles_are_searched_in_both_forms() {
    let files = files();
    let [mesh, near] = ["strip.obj", "near.fbin"].map(|name| files.text(name));
    for form in ["min-max", "min-extent"] {
        // A neighborhood of all: exact.
        let all = ["--mesh", &mesh, "--boxes", form, "--query", &near, "--k", "4", "--neighborhood", "40"];
        let report = run(&all);
        assert_eq!((&report["kind"], &report["base"], &report["dim"]), (&form.into(), &40.into(), &6.into()));
        let quality = &report["quality"];
        assert_eq!((&quality["recall"], &quality["epsilon_max"]), (&1.0.into(), &0.0.into()), "{quality}");
    }
    let args = ["shifted", "--device", "cpu", "--mesh", &mesh, "--self-join", "--k", "2", "--exact-sample", "9"];
    let (code, stdout, stderr) = warpann(&args);
    assert_eq!(code, 0, "{stderr}");
    for line in ["42 vertices, dimension 3", "42, k = 2, 5 shifted copies", "of 9 queries searched exactly", "epsilon"]
    {
        assert!(stdout.contains(line), "{stdout}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let files = files();
    let [mesh, corners, near, plane, wide, broken] =
        ["strip.obj", "corners.fbin", "near.fbin", "plane.fbin", "wide.fbin", "broken.ply"]
            .map(|name| files.text(name));
    let refused = |args: &[&str]| failure(1, &[&["shifted", "--device", "cpu"], args].concat());
    assert!(refused(&["--base", &corners, "--query", &plane]).contains("the index has 3, the vectors have 2"));
    assert!(refused(&["--base", &corners, "--query", &near, "--k", "0"]).contains("k = 0"));
    assert!(refused(&["--base", &wide, "--self-join"]).contains("13 dimensions for shifted sort; the limit is 12"));
    assert!(refused(&["--mesh", &broken, "--query", &near]).contains("the vertices do not have x, y and z"));
    assert!(refused(&["--mesh", &corners, "--query", &near]).contains("obj, ply"));
    assert!(refused(&["--base", &corners, "--query", &near, "--out", "ids.txt"]).contains("extension"));
    let wrong: [&[&str]; 5] = [
        &["--base", &corners],
        &["--query", &near],
        &["--base", &corners, "--query", &near, "--boxes", "min-max"],
        &["--mesh", &mesh, "--query", &near, "--boxes", "sphere"],
        &["--base", &corners, "--mesh", &mesh, "--query", &near],
    ];
    for args in wrong {
        failure(2, &[&["shifted"], args].concat());
    }
}
