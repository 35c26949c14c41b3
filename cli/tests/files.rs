//! The files that commands of the program write: which are refused before any work, and what stands on the disk in the
//! end.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Folder, SAMPLE, json};
use warpann::io;

/// A folder with vectors, queries, ground truth, ids and an index.
fn files() -> Folder {
    let files = Folder::new();
    let values: Vec<f32> = (0..120).map(|i| ((i * 37) % 101) as f32).collect();
    io::write_vectors(files.path("base.fbin"), &values, 2).unwrap();
    io::write_vectors(files.path("base.npy"), &values, 2).unwrap();
    io::write_vectors(files.path("query.npy"), &values[..8], 2).unwrap();
    io::write_ids(files.path("gt.npy"), &[0, 1, 2, 3], 1).unwrap();
    io::write_ids(files.path("names.npy"), &(100..160).collect::<Vec<u64>>(), 1).unwrap();
    io::write_ids(files.path("thirty.npy"), &(0..30).collect::<Vec<u64>>(), 1).unwrap();
    files
}

/// Commands without their outputs.
const SEARCH: &str = "search --device cpu --k 1 --base @base.fbin --query @query.npy --gt @gt.npy";
const SHIFTED: &str = "shifted --device cpu --k 1 --base @base.npy --query @query.npy";
const KMEANS: &str = "kmeans --device cpu --centroids 2 --base @base.npy";
const BUILD: &str = "build --device cpu --lists 2 --base @base.npy --ids @names.npy --train @base.fbin";
const GRAPH: &str = "knn-graph --device cpu --k 2 --base @base.npy";

#[test]
fn an_output_that_is_another_file_of_the_command_is_refused() {
    let files = files();
    // As the same words.
    for line in [
        format!("{SEARCH} --out @s.npy --distances @s.npy"),
        format!("{SHIFTED} --out @s.npy --distances @s.npy"),
        format!("{GRAPH} --out @s.npy --distances @s.npy"),
    ] {
        assert!(files.refused(1, &line).contains("the same file"), "{line}");
    }
    // An input of every command.
    for line in [
        format!("{SEARCH} --distances @base.fbin"),
        format!("{SEARCH} --out @query.npy"),
        format!("{SEARCH} --out @gt.npy"),
        format!("{SHIFTED} --out @base.npy"),
        format!("{SHIFTED} --distances @query.npy"),
        format!("{KMEANS} --out @base.npy"),
        format!("{BUILD} --out @base.npy"),
        format!("{BUILD} --out @names.npy"),
        format!("{BUILD} --out @base.fbin"),
        format!("{GRAPH} --out @base.npy"),
        format!("{GRAPH} --out @g.ibin --distances @base.npy"),
    ] {
        assert!(files.refused(1, &line).contains("the same file"), "{line}");
    }
}

/// The same file by another path: relative, through a folder and back, through links, through a second name.
#[cfg(unix)]
#[test]
fn another_path_to_the_same_file_is_refused() {
    let files = files();
    std::fs::create_dir(files.path("sub")).unwrap();
    std::os::unix::fs::symlink("s.npy", files.path("soft.npy")).unwrap();
    std::os::unix::fs::symlink(files.path(""), files.path("folder")).unwrap();
    std::os::unix::fs::symlink("base.npy", files.path("base2.npy")).unwrap();
    std::fs::hard_link(files.path("base.npy"), files.path("hard.npy")).unwrap();
    for line in [
        format!("{SEARCH} --out @s.npy --distances @./s.npy"),
        format!("{SEARCH} --out @s.npy --distances @sub/../s.npy"),
        format!("{SEARCH} --out @s.npy --distances @soft.npy"),
        format!("{SEARCH} --out @folder/s.npy --distances @s.npy"),
        format!("{GRAPH} --out @s.npy --distances @./s.npy"),
        format!("{GRAPH} --out @s.npy --distances @soft.npy"),
        format!("{KMEANS} --out @base2.npy"),
        format!("{KMEANS} --out @hard.npy"),
        format!("{BUILD} --out @folder/base.npy"),
    ] {
        assert!(files.refused(1, &line).contains("the same file"), "{line}");
    }
}

#[test]
fn the_files_of_an_index_are_kept_apart() {
    let files = files();
    files.run(&format!("{BUILD} --out @x.npy"));
    std::fs::copy(files.path("x.npy"), files.path("curve.csv")).unwrap();
    std::fs::copy(files.path("x.npy"), files.path("g.ibin.part")).unwrap();
    for line in [
        "search --device cpu --k 1 --index @x.npy --query @query.npy --out @x.npy",
        "bench ivf --device cpu --index @curve.csv --base @base.npy --query @query.npy --repeat 1 --out @curve",
        // The name under which the graph grows.
        "knn-graph --device cpu --k 2 --base @base.npy --index @g.ibin.part --out @g.ibin",
    ] {
        assert!(files.refused(1, line).contains("the same file"), "{line}");
    }
}

/// An output that cannot be written is the first error, even if the inputs do not exist.
#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_work() {
    let files = files();
    std::fs::create_dir(files.path("dir.npy")).unwrap();
    let long = format!("{}.npy", "n".repeat(300));
    let mut outs =
        vec!["@no/x.npy".to_owned(), "@dir.npy".to_owned(), format!("@{long}"), "@base.npy/x.npy".to_owned()];
    // Nobody, not even root, makes a file there.
    if cfg!(target_os = "linux") {
        outs.push("/proc/x.npy".to_owned());
    }
    for out in &outs {
        let name = Path::new(out.trim_start_matches('@')).file_name().unwrap().to_str().unwrap();
        for line in [
            format!("search --device cpu --base @absent.fbin --query @absent.npy --out {out}"),
            format!("search --device cpu --base @absent.fbin --query @absent.npy --distances {out}"),
            format!("search --device cpu --index @absent.fbin --query @absent.npy --out {out}"),
            format!("shifted --device cpu --base @absent.fbin --query @absent.npy --out {out}"),
            format!("shifted --device cpu --base @absent.fbin --query @absent.npy --distances {out}"),
            format!("kmeans --device cpu --centroids 2 --base @absent.fbin --out {out}"),
            format!("build --device cpu --lists 2 --base @absent.fbin --out {out}"),
            format!("knn-graph --device cpu --base @absent.fbin --out {out}"),
            format!("knn-graph --device cpu --base @absent.fbin --out @g.npy --distances {out}"),
        ] {
            let message = files.refused(1, &line);
            assert!(message.contains(&format!("{name}: ")) && !message.contains("absent"), "{line}: {message}");
        }
    }
    for stem in ["@no/x", "/proc/x"] {
        for line in [
            format!("bench kmeans --device cpu --centroids 2 --base @absent.fbin --repeat 1 --out {stem}"),
            format!("bench ivf --device cpu --base @absent.fbin --query @absent.npy --repeat 1 --out {stem}"),
        ] {
            let message = files.refused(1, &line);
            // The name of the option, not that of a file of the command.
            let name = files.args(stem).remove(0);
            assert!(message.starts_with(&format!("error: {name}: ")), "{line}: {message}");
        }
        let table = files.refused(1, &format!("bench select --device cpu --tune --out {stem}.csv"));
        assert!(table.starts_with(&format!("error: {}.csv: ", files.args(stem).remove(0))), "{table}");
    }
    // One of the files of a name cannot be written.
    std::fs::create_dir(files.path("y.svg")).unwrap();
    let message = files.refused(1, "bench ivf --device cpu --base @absent.fbin --query @absent.npy --out @y");
    assert!(message.contains("y.svg: ") && !message.contains("absent"), "{message}");
    // A folder does not stand in the way of files that begin with its name.
    std::fs::create_dir(files.path("k")).unwrap();
    files.run("bench kmeans --device cpu --centroids 2 --base @base.npy --repeat 1 --out @k");
    assert!(files.path("k.csv").is_file() && files.path("k.json").is_file());
}

/// The largest id of an index is known before the search.
#[test]
fn ids_that_a_format_cannot_hold_are_refused_before_the_work() {
    let files = files();
    let wide: Vec<u64> = (0..60).map(|i| (1 << 31) + i).collect();
    io::write_ids(files.path("names.npy"), &wide, 1).unwrap();
    files.run(&format!("{BUILD} --out @x.ivf"));
    let search = "search --device cpu --k 1 --probes 2 --index @x.ivf --query @query.npy --out";
    let message = files.refused(1, &format!("{search} @i.ivecs"));
    assert!(message.contains("id 2147483707 exceeds 2147483647"), "{message}");
    for name in ["i.ibin", "i.npy"] {
        files.run(&format!("{search} @{name}"));
        let ids = io::read_ids(files.path(name)).unwrap().ids;
        assert!(ids.len() == 4 && ids.iter().all(|id| wide.contains(id)), "{ids:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_output_behind_a_link_is_written_where_the_link_leads() {
    let files = files();
    std::fs::create_dir(files.path("there")).unwrap();
    for name in ["old.npy", "new.npy", "g.npy", "c.npy", "x.ivf"] {
        std::os::unix::fs::symlink(Path::new("there").join(name), files.path(name)).unwrap();
    }
    std::fs::write(files.path("there/old.npy"), "old").unwrap();
    files.run(&format!("{SEARCH} --out @old.npy --distances @new.npy"));
    files.run(&format!("{KMEANS} --out @c.npy"));
    files.run(&format!("{BUILD} --out @x.ivf"));
    files.run(&format!("{GRAPH} --out @g.npy"));
    for name in ["old.npy", "new.npy", "g.npy", "c.npy", "x.ivf"] {
        let link = std::fs::symlink_metadata(files.path(name)).unwrap();
        assert!(link.is_symlink(), "{name} was replaced");
    }
    let there: Vec<_> = std::fs::read_dir(files.path("there")).unwrap().collect();
    assert_eq!(there.len(), 5, "{there:?}");
    assert_eq!(io::read_ids(files.path("there/old.npy")).unwrap().ids, [0, 1, 2, 3]);
    assert_eq!(io::read_ids(files.path("there/g.npy")).unwrap().rows, 60);
}

/// A pipe stays one, and its reader gets the file.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_or_device_is_written_and_stays() {
    use std::os::unix::fs::FileTypeExt;

    let files = files();
    files.run(&format!("{SEARCH} --out @i.npy --distances @d.npy"));
    let (pipe, index) = (files.path("pipe.npy"), files.path("index.pipe"));
    for path in [&pipe, &index] {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let reader = |path: PathBuf| std::thread::spawn(move || std::fs::read(path).unwrap());
    let (read, read_index) = (reader(pipe.clone()), reader(index.clone()));
    std::os::unix::fs::symlink("/dev/null", files.path("null.npy")).unwrap();
    let (mut ended, out) = (false, files.args(&format!("{SEARCH} --out @pipe.npy --distances @null.npy")));
    let out = Command::new(env!("CARGO_BIN_EXE_warpann")).args(out).status().unwrap();
    ended |= out.success();
    files.run(&format!("{BUILD} --out @index.pipe"));
    files.run(&format!("{BUILD} --out @index.ivf"));
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo(), "the pipe was replaced");
    assert!(std::fs::metadata(&index).unwrap().file_type().is_fifo(), "the pipe was replaced");
    assert!(ended && std::fs::symlink_metadata(files.path("null.npy")).unwrap().is_symlink());
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert!(read.join().unwrap() == std::fs::read(files.path("i.npy")).unwrap());
    assert!(read_index.join().unwrap() == std::fs::read(files.path("index.ivf")).unwrap());
    // Two outputs may go to the null device, but not to one pipe.
    files.run(&format!("{SEARCH} --out @null.npy --distances @null.npy"));
    assert!(files.refused(1, &format!("{SEARCH} --out @pipe.npy --distances @pipe.npy")).contains("the same file"));
    // A graph grows in files that a later run can read.
    assert!(files.refused(1, &format!("{GRAPH} --out @pipe.npy")).contains("regular file"));
}

/// Killed while it writes, by the limit on a file's size: the next run takes the temporary file over or removes it.
#[cfg(target_os = "linux")]
#[test]
fn temporary_files_of_killed_runs_do_not_pile_up() {
    let files = files();
    let out = files.path("ids.npy");
    let search = |limit: &str| {
        let (base, query) = (format!("{SAMPLE}/sample_base.bvecs"), format!("{SAMPLE}/sample_query.bvecs"));
        Command::new("sh")
            .args(["-c", &format!("ulimit -f {limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_warpann")])
            .args(["search", "--device", "cpu", "--k", "40", "--base", &base, "--query", &query, "--out"])
            .arg(&out)
            .output()
            .unwrap()
            .status
    };
    let before = files.names().len();
    for _ in 0..3 {
        // 200 queries of 40 ids are 64,000 bytes; 16 blocks are at most 16,384.
        assert_eq!(search("16").code(), None, "not killed");
        assert!(files.names().len() <= before + 1, "{:?}", files.names());
    }
    assert_eq!(files.names().len(), before + 1, "a killed run leaves its temporary file");
    assert!(search("unlimited").success());
    assert_eq!(files.names().len(), before + 1, "{:?}", files.names());
    assert_eq!(io::read_ids(&out).unwrap().rows, 200);
}

/// Searches give the same results on files that are read and on files that are mapped.
#[test]
fn files_are_read_or_mapped_as_asked() {
    let files = files();
    files.run(&format!("{BUILD} --out @x.ivf"));
    let show = |line: &str| {
        let args = files.args(line);
        let mut report = json(&args);
        report["neighbours"].take()
    };
    for line in [
        "search --device cpu --k 3 --show 4 --query @query.npy --base @base.fbin",
        "search --device cpu --k 3 \
         --show 4 --query @query.npy --index @x.ivf",
    ] {
        let expected = show(line);
        assert_eq!(expected.as_array().map(Vec::len), Some(4));
        for open in ["auto", "read", "map"] {
            assert_eq!(show(&format!("{line} --map {open}")), expected);
        }
    }
    for open in ["read", "map"] {
        files.run(&format!("{KMEANS} --map {open} --out @c.npy"));
        files.run(
            &format!("{BUILD} --map {open} --rows 30 --out @y.ivf --ids @thirty.npy").replace("--ids @names.npy", ""),
        );
    }
}
