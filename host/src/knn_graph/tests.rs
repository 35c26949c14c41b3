use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::io::IdMatrix;
use crate::ivf::Encoding;
use crate::{Device, FlatIndex, Input, IvfIndex, Metric, Neighbors, Progress, Stage, Watch};

const DIM: usize = 3;

/// Points of a grid, most of them several times.
fn points(rows: usize) -> Vec<f32> {
    let mut random = Random::new(7);
    (0..rows * DIM).map(|_| random.below(3) as f32).collect()
}

fn flat(base: &[f32], metric: Metric) -> FlatIndex<f32> {
    let mut index = FlatIndex::new(DIM, metric, Device::Cpu).unwrap();
    index.add(base).unwrap();
    index
}

fn ivf(base: &[f32], encoding: Encoding) -> IvfIndex<f32> {
    let mut index = IvfIndex::builder(DIM, 4).encoding(encoding).device(Device::Cpu).build().unwrap();
    index.train(base).unwrap();
    index.add(base).unwrap();
    index
}

/// The defect of a file that a call cannot use.
fn defect<T: std::fmt::Debug>(result: crate::Result<T>) -> FileDefect {
    match result {
        Err(Error::BadFile { defect, .. }) => defect,
        other => panic!("{other:?}"),
    }
}

/// The rows other than `row`, nearest first by squared distance, the lower first among equals. Exact: coordinates are
/// small integers.
fn others(base: &[f32], row: usize) -> Vec<(f32, u32)> {
    let of = |row: usize| &base[row * DIM..(row + 1) * DIM];
    let squared = |other: usize| of(row).iter().zip(of(other)).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
    let mut others: Vec<(f32, u32)> =
        (0..base.len() / DIM).filter(|&other| other != row).map(|other| (squared(other), other as u32)).collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    others
}

/// The result that [`KnnGraph::run`] should return.
fn expected(base: &[f32], k: usize) -> (Vec<u32>, Vec<f32>) {
    let (mut ids, mut distances) = (Vec::new(), Vec::new());
    for row in 0..base.len() / DIM {
        let others = others(base, row);
        ids.extend((0..k).map(|slot| others.get(slot).map_or(NO_NODE, |other| other.1)));
        distances.extend((0..k).map(|slot| others.get(slot).map_or(f32::INFINITY, |other| other.0)));
    }
    (ids, distances)
}

/// An index of the caller's, which does something with the results of each search: it gets their number, from 0.
pub(crate) struct Foreign<'a, F> {
    index: &'a FlatIndex<f32>,
    searches: AtomicUsize,
    then: F,
}

impl<'a, F: Fn(usize, Neighbors) -> crate::Result<Neighbors> + Sync> Foreign<'a, F> {
    pub(crate) fn new(index: &'a FlatIndex<f32>, then: F) -> Self {
        Self { index, searches: AtomicUsize::new(0), then }
    }
}

impl<F: Fn(usize, Neighbors) -> crate::Result<Neighbors> + Sync> KnnIndex<f32> for Foreign<'_, F> {
    fn len(&self) -> usize {
        self.index.len()
    }

    fn dim(&self) -> usize {
        self.index.dim()
    }

    fn metric(&self) -> Metric {
        self.index.metric()
    }

    fn greatest_id(&self) -> Option<u64> {
        KnnIndex::greatest_id(self.index)
    }

    fn nearest(&self, queries: &[f32], k: usize) -> crate::Result<Neighbors> {
        (self.then)(self.searches.fetch_add(1, Ordering::Relaxed), self.index.search(queries, k)?)
    }

    fn identity(&self) -> crate::Result<String> {
        KnnIndex::identity(self.index)
    }
}

/// An index whose searches fail after some.
fn failing(index: &FlatIndex<f32>, after: usize) -> impl KnnIndex<f32> {
    let error = || Error::Driver { call: "synchronize", device: 0, code: 700 };
    Foreign::new(index, move |search, found| if search < after { Ok(found) } else { Err(error()) })
}

/// A folder in which graphs are made, and one that was made without interruption.
struct Folder {
    folder: tempfile::TempDir,
    names: (&'static str, &'static str),
}

impl Folder {
    fn new(ids: &'static str, distances: &'static str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), names: (ids, distances) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, graph: &KnnGraph, index: &impl KnnIndex<f32>, base: &[f32]) -> crate::Result<usize> {
        graph.write(index, base, self.path(self.names.0), Some(&self.path(self.names.1)), &Watch::none())
    }

    /// The finished files; there are no others.
    fn finished(&self) -> (Vec<u8>, Vec<u8>) {
        assert_eq!(fs::read_dir(self.folder.path()).unwrap().count(), 2);
        (fs::read(self.path(self.names.0)).unwrap(), fs::read(self.path(self.names.1)).unwrap())
    }

    /// The unfinished ones: journal, ids, distances.
    fn unfinished(&self) -> [PathBuf; 3] {
        let (ids, distances) = self.names;
        [format!("{ids}.journal"), format!("{ids}.part"), format!("{distances}.part")].map(|name| self.path(&name))
    }

    /// Contents of the unfinished files of a run when all batches of six rows are done: journal, ids, distances.
    fn all_but_names(&self, graph: &KnnGraph, index: &FlatIndex<f32>, base: &[f32]) -> [Vec<u8>; 3] {
        let mut last = None;
        let watch = Watch::new(|now: Progress| {
            last = (now.done == now.total).then(|| self.unfinished().map(|path| fs::read(path).unwrap()));
            ControlFlow::Continue(())
        });
        let (out, values) = (self.path(self.names.0), self.path(self.names.1));
        graph.clone().batch(6).write(index, base, out, Some(&values), &watch).unwrap();
        drop(watch);
        last.unwrap()
    }

    /// Stops after `batches` batches of `rows` rows, which leaves the unfinished files.
    fn interrupt(&self, graph: &KnnGraph, index: &FlatIndex<f32>, base: &[f32], rows: usize, batches: usize) {
        let graph = graph.clone().batch(rows).restart(true);
        let result = self.write(&graph, &failing(index, batches), base);
        assert!(matches!(result, Err(Error::Driver { code: 700, .. })), "{result:?}");
        assert!(self.unfinished().iter().all(|path| path.is_file()));
    }
}

#[test]
fn every_vector_has_its_nearest_others() {
    for rows in [0, 1, 2, 5, 70] {
        let base = points(rows);
        let index = flat(&base, Metric::L2);
        for k in [1, 2, 5, 68, 69, 70, 90] {
            let (ids, distances) = expected(&base, k);
            for batch in [None, Some(0), Some(1), Some(9), Some(usize::MAX)] {
                let graph = batch.map_or(KnnGraph::new(k), |rows| KnnGraph::new(k).batch(rows));
                let (graph, found) = graph.run(&index, &base).unwrap();
                assert_eq!((graph.len(), graph.k()), (rows, k));
                assert_eq!((graph.neighbors(), &found[..]), (&ids[..], &distances[..]), "{rows} rows, k = {k}");
                assert_eq!(graph.edges(), rows * k.min(rows.saturating_sub(1)));
            }
        }
    }
}

/// Four equal vectors: with k = 2, three results never hold the last one itself.
#[test]
fn a_vector_that_does_not_find_itself_drops_the_last() {
    let base = [1.0; 4 * DIM];
    let (graph, distances) = KnnGraph::new(2).run(&flat(&base, Metric::L2), &base).unwrap();
    assert_eq!(graph.neighbors(), [1, 2, 0, 2, 0, 1, 0, 1]);
    assert_eq!(distances, [0.0; 8]);
    // Codes know even less who is who.
    let base = points(40);
    let index = ivf(&base, Encoding::Pq { sub_quantizers: 1, bits: 4, rotate: false });
    let (graph, _) = KnnGraph::new(5).run(&index, &base).unwrap();
    for node in 0..40 {
        let mut row: Vec<u32> = graph.row(node).iter().copied().filter(|&other| other != NO_NODE).collect();
        let filled = row.len();
        row.sort_unstable();
        row.dedup();
        assert!(filled > 0 && row.len() == filled && !row.contains(&(node as u32)), "{node}: {row:?}");
    }
}

#[test]
fn an_index_that_looks_everywhere_is_exact() {
    let base = points(60);
    let mut index = ivf(&base, Encoding::Flat);
    index.set_probes(4).unwrap();
    let (ids, distances) = expected(&base, 7);
    let (graph, found) = KnnGraph::new(7).run(&index, &base).unwrap();
    assert_eq!((graph.neighbors(), &found[..]), (&ids[..], &distances[..]));
    let exact = flat(&base, Metric::L2);
    assert_eq!(graph.accuracy(&exact, &base, 10).unwrap(), 1.0);
    // The last of seven lost everywhere: six sevenths are there.
    let mut worse = ids;
    worse.iter_mut().skip(6).step_by(7).for_each(|id| *id = NO_NODE);
    let worse = Graph::of_rows(worse, 7);
    for sample in [1, 13, 60, 1000] {
        assert!((worse.accuracy(&exact, &base, sample).unwrap() - 6.0 / 7.0).abs() < 1e-12);
    }
    assert_eq!(worse.accuracy(&exact, &base, 0).unwrap(), 1.0);
    assert!(matches!(
        worse.accuracy(&flat(&base[DIM..], Metric::L2), &base, 5),
        Err(Error::WrongLength { what: "vectors of the base", expected: 60, actual: 59 })
    ));
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let base = points(6);
    let index = flat(&base, Metric::L2);
    let run = |k: usize, base: &[f32]| KnnGraph::new(k).run(&index, base).map(drop);
    assert!(matches!(run(0, &base), Err(Error::Zero { what: "k" })));
    assert!(matches!(run(1, &base[1..]), Err(Error::Ragged { what: "components", len: 17, size: 3 })));
    assert!(matches!(
        run(1, &base[DIM..]),
        Err(Error::WrongLength { what: "vectors of the base", expected: 6, actual: 5 })
    ));
    for k in [usize::MAX, usize::MAX / 8] {
        assert!(matches!(run(k, &base), Err(Error::ResultTooLarge { queries: 6, .. })));
    }
    let mut nan = base.clone();
    nan[4] = f32::NAN;
    assert!(matches!(run(1, &nan), Err(Error::NotFinite { input: Input::Base, row: 1, column: 1, .. })));
    // The row counts from the first of all, whatever the batches.
    (nan[4], nan[DIM * 5]) = (base[4], f32::INFINITY);
    let error = KnnGraph::new(1).batch(2).run(&index, &nan).unwrap_err();
    assert!(matches!(error, Error::NotFinite { input: Input::Base, row: 5, column: 0, .. }), "{error}");
    let untrained = IvfIndex::<f32>::builder(DIM, 2).device(Device::Cpu).build().unwrap();
    assert!(matches!(KnnGraph::new(1).run(&untrained, &[]).map(drop), Ok(())), "nothing to search");
    let mut named = ivf(&points(5), Encoding::Flat);
    named.add_with_ids(&base[..DIM], &[9]).unwrap();
    let refused = KnnGraph::new(1).run(&named, &base);
    assert!(matches!(refused, Err(Error::OutOfRange { what: "id in a graph of row numbers", value: 9, most: 5, .. })));
    let mut named = flat(&points(5), Metric::L2);
    named.add_with_ids(&base[..DIM], &[9]).unwrap();
    let refused = KnnGraph::new(1).run(&named, &base);
    assert!(matches!(refused, Err(Error::OutOfRange { what: "id in a graph of row numbers", value: 9, most: 5, .. })));

    let path = |name: &str| PathBuf::from(name);
    let check = |out: &str, distances: Option<&str>| KnnGraph::check_paths(path(out), distances.map(path).as_deref());
    check("g.ibin", Some("d.npy")).unwrap();
    assert_eq!(defect(check("g.ivecs", None)), FileDefect::UnknownExtension { known: "ibin, npy" });
    assert_eq!(defect(check("g.npy", Some("d.fvecs"))), FileDefect::UnknownExtension { known: "fbin, npy" });
    for same in ["g.npy", "./g.npy"] {
        assert!(matches!(defect(check("g.npy", Some(same))), FileDefect::SameFile { .. }), "{same}");
    }
}

#[test]
fn files_hold_what_a_run_returns() {
    for (rows, k) in [(0, 3), (1, 1), (30, 4)] {
        let base = points(rows);
        let index = flat(&base, Metric::L2);
        let (ids, distances) = expected(&base, k);
        for names in [("g.ibin", "d.fbin"), ("g.npy", "d.npy")] {
            let folder = Folder::new(names.0, names.1);
            let mut told = Vec::new();
            let (out, values) = (folder.path(names.0), folder.path(names.1));
            let graph = KnnGraph::new(k).batch(12);
            let watch = Watch::new(|now| {
                told.push((now.stage, now.done, now.total));
                ControlFlow::Continue(())
            });
            let resumed = graph.write(&index, &base, &out, Some(&values), &watch).unwrap();
            drop(watch);
            assert_eq!(resumed, 0);
            let steps = (0..=rows.div_ceil(12)).map(|step| (Stage::Searching, rows.min(12 * step) as u64, rows as u64));
            assert_eq!(told, steps.collect::<Vec<_>>());
            folder.finished();
            assert_eq!(Graph::read(&out).unwrap().neighbors(), ids);
            let read = io::read_vectors(&values).unwrap();
            assert_eq!((read.rows(), read.as_slice::<f32>()), (rows, Some(&distances[..])));
            // Ids alone are the same file.
            let alone = folder.path("alone").with_extension(out.extension().unwrap());
            graph.write(&index, &base, &alone, None, &Watch::none()).unwrap();
            assert_eq!(fs::read(&alone).unwrap(), fs::read(&out).unwrap());
        }
    }
}

#[test]
fn a_run_goes_on_where_another_stopped() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3);
    for names in [("g.ibin", "d.npy"), ("g.npy", "d.fbin")] {
        let folder = Folder::new(names.0, names.1);
        folder.write(&graph, &index, &base).unwrap();
        let whole = folder.finished();
        for batches in 0..5 {
            folder.interrupt(&graph, &index, &base, 5, batches);
            let resumed = folder.write(&graph.clone().batch(4), &index, &base).unwrap();
            assert_eq!((resumed, folder.finished()), (5 * batches, whole.clone()));
        }
        // Between the last line and the names: nothing is left to do, not even a search.
        let mut last = None;
        let watch = Watch::new(|now: Progress| {
            last = (now.done == 23).then(|| folder.unfinished().map(|path| (fs::read(&path).unwrap(), path)));
            ControlFlow::Continue(())
        });
        let (out, values) = (folder.path(names.0), folder.path(names.1));
        graph.write(&index, &base, &out, Some(&values), &watch).unwrap();
        drop(watch);
        last.unwrap().into_iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
        assert_eq!(folder.write(&graph, &failing(&index, 0), &base).unwrap(), 23);
        assert_eq!(folder.finished(), whole);
        // Interrupted twice.
        folder.interrupt(&graph, &index, &base, 4, 2);
        let again = folder.write(&graph.clone().batch(7), &failing(&index, 1), &base);
        assert!(again.is_err());
        assert_eq!((folder.write(&graph, &index, &base).unwrap(), folder.finished()), (15, whole));
    }
}

/// Stopped while the files take their names: after none, the distances, and both; nothing is left to search.
#[test]
fn a_run_that_was_stopped_between_two_names_ends_without_a_search() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3);
    for names in [("g.ibin", "d.npy"), ("g.npy", "d.fbin")] {
        let folder = Folder::new(names.0, names.1);
        let [text, ..] = folder.all_but_names(&graph, &index, &base);
        let whole = folder.finished();
        let [journal, ids, distances] = folder.unfinished();
        // Files of an earlier run may stand under the names.
        for old in [false, true] {
            for named in 0..3 {
                fs::write(&journal, &text).unwrap();
                for (at, (part, name, bytes)) in
                    [(&distances, names.1, &whole.1), (&ids, names.0, &whole.0)].into_iter().enumerate()
                {
                    if at < named {
                        let _ = fs::remove_file(part);
                        fs::write(folder.path(name), bytes).unwrap();
                    } else {
                        fs::write(part, bytes).unwrap();
                        let _ = fs::remove_file(folder.path(name));
                        if old {
                            fs::write(folder.path(name), [7; 400]).unwrap();
                        }
                    }
                }
                let resumed = folder.write(&graph, &failing(&index, 0), &base).unwrap();
                assert_eq!((resumed, folder.finished()), (23, whole.clone()), "{names:?}, {named} named");
            }
        }
    }
}

/// A file under an output name is taken for the run's own only if every byte is.
#[test]
fn a_file_of_another_run_is_not_taken_for_a_finished_one() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3);
    let folder = Folder::new("g.npy", "d.fbin");
    let [text, ..] = folder.all_but_names(&graph, &index, &base);
    let whole = folder.finished();
    let [journal, ids, distances] = folder.unfinished();
    let (mut changed, mut header, mut longer) = (whole.1.clone(), whole.1.clone(), whole.1.clone());
    changed[100] ^= 1;
    header[0] ^= 1;
    longer.push(0);
    for bytes in [&changed, &header, &longer, &whole.1[..50].to_vec()] {
        fs::write(&journal, &text).unwrap();
        fs::write(&ids, &whole.0).unwrap();
        let _ = fs::remove_file(&distances);
        fs::write(folder.path("d.fbin"), bytes).unwrap();
        // Until the new file is whole, the old one stays.
        assert!(folder.write(&graph.clone().batch(6), &failing(&index, 1), &base).is_err());
        assert_eq!(&fs::read(folder.path("d.fbin")).unwrap(), bytes);
        assert_eq!((folder.write(&graph, &index, &base).unwrap(), folder.finished()), (6, whole.clone()));
    }
}

/// Two runs never write the same file, whatever becomes of the journal's name.
#[test]
fn a_run_whose_journal_was_removed_or_replaced_still_has_its_files() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3).batch(6);
    for replace in [false, true] {
        let folder = Folder::new("g.npy", "d.fbin");
        folder.write(&graph, &index, &base).unwrap();
        let whole = folder.finished();
        let (out, values) = (folder.path("g.npy"), folder.path("d.fbin"));
        let journal = &folder.unfinished()[0];
        let mut second = None;
        let watch = Watch::new(|now: Progress| {
            if now.done == 12 {
                fs::remove_file(journal).unwrap();
                if replace {
                    fs::write(journal, "").unwrap();
                }
                second = Some(folder.write(&graph, &index, &base));
            }
            ControlFlow::Continue(())
        });
        let first = graph.write(&index, &base, &out, Some(&values), &watch);
        drop(watch);
        let busy = |source: &std::io::Error| source.kind() == std::io::ErrorKind::WouldBlock;
        assert!(matches!(&second, Some(Err(Error::Io { source, .. })) if busy(source)), "{second:?}");
        assert_eq!(first.unwrap(), 0);
        assert_eq!((fs::read(&out).unwrap(), fs::read(&values).unwrap()), whole);
        // The journal that is there now is not the first run's to remove; the next run takes it.
        assert_eq!((folder.write(&graph, &index, &base).unwrap(), folder.finished()), (0, whole));
    }
}

/// A part that was replaced is another run's: it must not get the name.
#[test]
fn a_part_that_was_replaced_does_not_get_the_name() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3).batch(6);
    let folder = Folder::new("g.npy", "d.fbin");
    let (out, values) = (folder.path("g.npy"), folder.path("d.fbin"));
    let part = &folder.unfinished()[1];
    let watch = Watch::new(|now: Progress| {
        if now.done == 12 {
            fs::remove_file(part).unwrap();
            fs::write(part, "another run's").unwrap();
        }
        ControlFlow::Continue(())
    });
    let result = graph.write(&index, &base, &out, Some(&values), &watch);
    assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    assert!(!out.exists());
    assert_eq!(fs::read(part).unwrap(), b"another run's");
}

#[test]
fn damage_costs_the_batches_from_there_on_and_no_more() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3);
    let folder = Folder::new("g.ibin", "d.npy");
    folder.write(&graph, &index, &base).unwrap();
    let whole = folder.finished();
    folder.interrupt(&graph, &index, &base, 6, 3);
    let files = folder.unfinished();
    let kept = files.clone().map(|path| fs::read(path).unwrap());
    let head = kept[0].iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let starts: Vec<usize> =
        (0..kept[0].len()).filter(|&at| at >= head && kept[0][at - 1] == b'\n').chain([kept[0].len()]).collect();
    assert_eq!(starts.len(), 4, "three batches");

    let resume = |file: usize, bytes: Option<&[u8]>| {
        files.iter().zip(&kept).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        match bytes {
            Some(bytes) => fs::write(&files[file], bytes).unwrap(),
            None => fs::remove_file(&files[file]).unwrap(),
        }
        folder.write(&graph, &index, &base)
    };
    // The journal, cut anywhere: complete lines count.
    for len in (0..head).step_by(9).chain(head..=kept[0].len()) {
        let result = resume(0, Some(&kept[0][..len]));
        if len > 0 && len < head {
            assert!(
                matches!(result, Err(Error::BadFile { defect: FileDefect::BadHeader(_), .. })),
                "{len}: {result:?}"
            );
            continue;
        }
        let lines = starts.iter().filter(|&&start| start > head && start <= len).count();
        assert_eq!((result.unwrap(), folder.finished()), (6 * lines, whole.clone()), "{len} bytes");
    }
    // A changed byte: lines before it count. Not all that changes is read alike: a line feed cuts a line in two.
    for at in (0..kept[0].len()).step_by(7) {
        for change in [1, 0x20, b'\n' ^ kept[0][at]].into_iter().filter(|&change| change != 0) {
            let mut bytes = kept[0].clone();
            bytes[at] ^= change;
            let result = resume(0, Some(&bytes));
            if at < head {
                assert!(
                    matches!(result, Err(Error::BadFile { defect: FileDefect::BadHeader(_), .. })),
                    "{at}: {result:?}"
                );
            } else {
                let lines = starts.iter().filter(|&&start| start > head && start <= at).count();
                assert_eq!((result.unwrap(), folder.finished()), (6 * lines, whole.clone()), "byte {at}");
            }
        }
    }
    // Lines in another order, and one twice.
    let line = |number: usize| &kept[0][starts[number]..starts[number + 1]];
    for (lines, rows) in [([0, 2, 1], 6), ([1, 0, 2], 0), ([0, 0, 1], 6)] {
        let journal = [&kept[0][..head], line(lines[0]), line(lines[1]), line(lines[2])].concat();
        assert_eq!((resume(0, Some(&journal)).unwrap(), folder.finished()), (rows, whole.clone()));
    }
    // Rows: changed, cut off, in excess, gone.
    for file in [1, 2] {
        let bytes = &kept[file];
        let header = bytes.len() - 18 * 12;
        for row in (0..18).step_by(5).chain([17]) {
            let mut changed = bytes.clone();
            changed[header + row * 12 + 5] ^= 0x40;
            assert_eq!((resume(file, Some(&changed)).unwrap(), folder.finished()), (row / 6 * 6, whole.clone()));
            assert_eq!(resume(file, Some(&bytes[..header + row * 12 + 11])).unwrap(), row / 6 * 6);
            assert_eq!(folder.finished(), whole);
        }
        let more = [&bytes[..], &[7; 100]].concat();
        assert_eq!((resume(file, Some(&more)).unwrap(), folder.finished()), (18, whole.clone()));
        // The header is written anew.
        let mut changed = bytes.clone();
        changed[0] ^= 1;
        assert_eq!((resume(file, Some(&changed)).unwrap(), folder.finished()), (18, whole.clone()));
        assert_eq!((resume(file, None).unwrap(), folder.finished()), (0, whole.clone()));
    }
}

#[test]
fn another_run_does_not_go_on() {
    let base = points(23);
    let index = flat(&base, Metric::L2);
    let graph = KnnGraph::new(3);
    let folder = Folder::new("g.ibin", "d.npy");
    folder.interrupt(&graph, &index, &base, 6, 2);
    let left = folder.unfinished().map(|path| fs::read(path).unwrap());
    let mut moved = base.clone();
    moved[40] += 1.0;
    let mut index_of_lists = ivf(&base, Encoding::Flat);
    let refused = |result: crate::Result<usize>, expected: &str| {
        assert!(matches!(defect(result), FileDefect::OtherRun { what, .. } if what == expected), "{expected}");
        assert_eq!(folder.unfinished().map(|path| fs::read(path).unwrap()), left);
    };
    refused(folder.write(&graph, &flat(&moved, Metric::L2), &moved), "base");
    refused(folder.write(&graph, &flat(&base[DIM..], Metric::L2), &base[DIM..]), "rows");
    refused(folder.write(&graph, &flat(&base, Metric::Cosine), &base), "metric");
    refused(folder.write(&KnnGraph::new(4), &index, &base), "k");
    refused(folder.write(&graph, &index_of_lists, &base), "index");
    refused(graph.write(&index, &base, folder.path("g.ibin"), None, &Watch::none()), "distances");
    refused(
        graph.write(&index, &base, folder.path("g.ibin"), Some(&folder.path("d.fbin")), &Watch::none()),
        "distances",
    );
    // Bytes that are the same numbers.
    let bytes: Vec<u8> = base.iter().map(|&x| x as u8).collect();
    let mut narrow = FlatIndex::<u8>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    narrow.add(&bytes).unwrap();
    refused(
        graph.write(&narrow, &bytes, folder.path("g.ibin"), Some(&folder.path("d.npy")), &Watch::none()),
        "element",
    );

    // At work elsewhere.
    let journal = fs::File::open(&folder.unfinished()[0]).unwrap();
    journal.lock().unwrap();
    let result = folder.write(&graph.clone().restart(true), &index, &base);
    let busy = |source: &std::io::Error| source.kind() == std::io::ErrorKind::WouldBlock;
    assert!(matches!(&result, Err(Error::Io { source, .. }) if busy(source)), "{result:?}");
    drop(journal);

    // After the lock is released, a run may restart.
    let restart = graph.clone().restart(true);
    assert_eq!(folder.write(&restart, &index_of_lists, &base).unwrap(), 0);
    assert_eq!(folder.finished().0.len(), 8 + 23 * 12);

    // Of the same lists, other numbers of probes and other vectors are other indexes.
    let stop = |index: &IvfIndex<f32>| index.identity().unwrap();
    let before = stop(&index_of_lists);
    assert_eq!(before, stop(&ivf(&base, Encoding::Flat)));
    index_of_lists.set_probes(3).unwrap();
    assert_ne!(before, stop(&index_of_lists));
    assert_ne!(before, stop(&ivf(&moved, Encoding::Flat)));
    let untrained = IvfIndex::<f32>::builder(DIM, 2).device(Device::Cpu).build().unwrap();
    assert!(matches!(untrained.identity(), Err(Error::NotTrained { .. })));
}

#[test]
fn files_that_are_no_graphs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let defect = |name: &str| defect(Graph::read(path(name)));
    io::write_ids(path("past.npy"), &[1, 2, 0, 3, 1, NONE], 2).unwrap();
    assert_eq!(defect("past.npy"), FileDefect::NoSuchRow { row: 1, column: 1, id: 3, rows: 3 });
    io::write_ids(path("far.npy"), &[1, u64::from(u32::MAX)], 1).unwrap();
    assert_eq!(defect("far.npy"), FileDefect::NoSuchRow { row: 1, column: 0, id: u64::from(u32::MAX), rows: 2 });
    io::write_ids(path("good.ibin"), &[1, NONE, 0, 2, NONE, 1], 2).unwrap();
    let graph = Graph::read(path("good.ibin")).unwrap();
    assert_eq!((graph.len(), graph.edges(), graph.row(1)), (3, 4, &[0, 2][..]));
    let bytes = fs::read(path("good.ibin")).unwrap();
    for len in 0..bytes.len() {
        fs::write(path("cut.ibin"), &bytes[..len]).unwrap();
        assert!(matches!(defect("cut.ibin"), FileDefect::Truncated { .. }));
    }
    fs::write(path("long.ibin"), [&bytes[..], &[0]].concat()).unwrap();
    assert!(matches!(defect("long.ibin"), FileDefect::Oversized { .. } | FileDefect::Truncated { .. }));
    assert!(matches!(Graph::read(path("absent.ibin")), Err(Error::Io { .. })));
    assert!(matches!(defect("graph.txt"), FileDefect::UnknownExtension { .. }));
    let none = Graph::from_ids(&IdMatrix { rows: 0, k: 0, ids: Vec::new() }).unwrap();
    assert_eq!((none.len(), none.components().sizes.len()), (0, 0));
    assert!(matches!(none.path::<f32>(&[], 1, Metric::L2, 0, 0), Err(Error::UnknownId { id: 0, len: 0 })));
}

#[test]
fn ids_that_contradict_their_shape_are_refused() {
    let graph = |rows, k, ids: &[u64]| Graph::from_ids(&IdMatrix { rows, k, ids: ids.to_vec() });
    assert_eq!(graph(5, 2, &[1, 4]).unwrap_err(), FileDefect::WrongIdCount { rows: 5, k: 2, ids: 2 });
    assert_eq!(graph(2, 1, &[1, 0, 1]).unwrap_err(), FileDefect::WrongIdCount { rows: 2, k: 1, ids: 3 });
    assert_eq!(graph(5, 0, &[7]).unwrap_err(), FileDefect::WrongIdCount { rows: 5, k: 0, ids: 1 });
    assert_eq!(graph(5, 0, &[]).unwrap_err(), FileDefect::BadDimension(0));
    let most = usize::MAX as u64;
    assert_eq!(graph(usize::MAX, 2, &[]).unwrap_err(), FileDefect::WrongIdCount { rows: most, k: 2, ids: 0 });
    assert_eq!(graph(2, 1, &[1, 0]).unwrap().components().sizes, [2]);
}

#[test]
fn paths_that_do_not_exist_say_why() {
    // 0 → 1 ← 2, 3 → 4, 5 with an edge to itself.
    let graph = Graph::of_rows(vec![1, NO_NODE, 1, 4, NO_NODE, 5], 1);
    let components = graph.components();
    assert_eq!((components.sizes, components.of), (vec![3, 2, 1], vec![0, 0, 0, 1, 1, 2]));
    let base: Vec<f32> = (0..6).map(|x| x as f32).collect();
    let path = |from, to| graph.path(&base, 1, Metric::L2, from, to);
    assert_eq!(path(2, 0).unwrap(), Path { nodes: vec![2, 1, 0], largest: Some(1.0) });
    assert_eq!(path(5, 5).unwrap(), Path { nodes: vec![5], largest: None });
    let error = path(0, 4).unwrap_err();
    assert!(matches!(error, Error::NotConnected { from: 0, to: 4, from_size: 3, to_size: 2 }), "{error}");
    assert!(error.to_string().contains("have 3 and 2 nodes"));
    for (from, to) in [(6, 0), (0, 6), (u64::MAX, 0)] {
        assert!(matches!(path(from, to), Err(Error::UnknownId { len: 6, .. })));
    }
    let with = |base: &[f32], dim| graph.path(base, dim, Metric::L2, 0, 1).map(drop);
    assert!(matches!(with(&base, 0), Err(Error::Zero { what: "dimension" })));
    assert!(matches!(with(&base[1..], 2), Err(Error::Ragged { what: "components", len: 5, size: 2 })));
    assert!(matches!(
        with(&base[1..], 1),
        Err(Error::WrongLength { what: "vectors of the base", expected: 6, actual: 5 })
    ));
    assert!(matches!(with(&[f32::NAN; 6], 1), Err(Error::NotFinite { .. })));
}

/// Nodes of random graphs that paths are looked for in, exhaustively.
const NODES: usize = 7;

/// Every simple path from the end of `nodes` to `to`, as (largest cost, edges, nodes): the least is the one looked for.
fn best_path(
    costs: &[[Option<i64>; NODES]; NODES],
    nodes: &mut Vec<usize>,
    worst: i64,
    to: usize,
) -> Option<(i64, usize, Vec<usize>)> {
    let last = *nodes.last().unwrap();
    if last == to {
        return Some((worst, nodes.len(), nodes.clone()));
    }
    let mut best = None;
    for next in 0..NODES {
        if let Some(cost) = costs[last][next].filter(|_| !nodes.contains(&next)) {
            nodes.push(next);
            let found = best_path(costs, nodes, worst.max(cost), to);
            nodes.pop();
            best = [best, found].into_iter().flatten().min();
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn paths_are_the_best_of_all(
        places in proptest::collection::vec(0i64..6, NODES * 2),
        edges in proptest::collection::vec(0..NODES + 2, NODES * 2),
        similar: bool,
    ) {
        let base: Vec<f32> = places.iter().map(|&x| x as f32).collect();
        let neighbours: Vec<u32> = edges.iter().map(|&e| if e < NODES { e as u32 } else { NO_NODE }).collect();
        let graph = Graph::of_rows(neighbours, 2);
        let metric = if similar { Metric::InnerProduct } else { Metric::L2 };
        // Costs in whole numbers: larger is worse.
        let cost = |a: usize, b: usize| {
            let pairs = || (0..2).map(|axis| (places[2 * a + axis], places[2 * b + axis]));
            if similar { -pairs().map(|(x, y)| x * y).sum::<i64>() } else { pairs().map(|(x, y)| (x - y) * (x - y)).sum() }
        };
        let mut costs = [[None; NODES]; NODES];
        for (slot, &other) in edges.iter().enumerate().filter(|&(_, &other)| other < NODES) {
            let node = slot / 2;
            (costs[node][other], costs[other][node]) = (Some(cost(node, other)), Some(cost(node, other)));
        }
        let components = graph.components();
        prop_assert_eq!(components.sizes.iter().sum::<u64>(), NODES as u64);
        prop_assert!(components.sizes.is_sorted_by(|a, b| a >= b));
        for from in 0..NODES {
            for to in 0..NODES {
                let found = graph.path(&base, 2, metric, from as u64, to as u64);
                let expected = best_path(&costs, &mut vec![from], i64::MIN, to);
                prop_assert_eq!(components.of[from] == components.of[to], expected.is_some());
                match expected {
                    Some((worst, _, nodes)) => {
                        let found = found.unwrap();
                        prop_assert_eq!(found.nodes, nodes.iter().map(|&node| node as u64).collect::<Vec<_>>());
                        let worst = (from != to).then(|| if similar { -worst } else { worst } as f32);
                        prop_assert_eq!(found.largest, worst);
                    }
                    None => {
                        let size = |node: usize| components.sizes[components.of[node] as usize];
                        let sizes = (size(from), size(to));
                        let said = match found {
                            Err(Error::NotConnected { from_size, to_size, .. }) => Some((from_size, to_size)),
                            _ => None,
                        };
                        prop_assert_eq!(said, Some(sizes));
                    }
                }
            }
        }
    }
}
