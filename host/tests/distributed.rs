//! Ranks that are threads, against one index of everything.

use std::sync::mpsc::{Receiver, Sender, channel};

use warpann::distributed::{Ranks, Sharded, agree, merge_parts, share};
use warpann::ivf::Encoding;
use warpann::{Device, Error, FlatIndex, IvfIndex, Metric, NONE, Neighbors, Result, SearchOptions};

/// A way to send bytes, and a way to receive them.
type Link = (Sender<Vec<u8>>, Receiver<Vec<u8>>);

/// A rank among threads: what rank 0 sends to each, and each to rank 0.
struct Thread {
    rank: usize,
    count: usize,
    /// At rank 0 one for each other rank, else only rank 0's.
    links: Vec<Link>,
}

impl Ranks for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Vec<u8> {
        if self.rank > 0 {
            return self.links[0].1.recv().unwrap();
        }
        self.links.iter().for_each(|(to, _)| to.send(bytes.clone()).unwrap());
        bytes
    }

    fn gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if self.rank > 0 {
            self.links[0].0.send(bytes).unwrap();
            return Vec::new();
        }
        std::iter::once(bytes).chain(self.links.iter().map(|(_, from)| from.recv().unwrap())).collect()
    }
}

/// The results of `work` at `count` ranks, in the order of the ranks.
fn at_ranks<V: Send>(count: usize, work: impl Fn(&Thread) -> V + Sync) -> Vec<V> {
    let mut root = Thread { rank: 0, count, links: Vec::new() };
    let mut ranks = Vec::new();
    for rank in 1..count {
        let ((to, there), (back, from)) = (channel(), channel());
        root.links.push((to, from));
        ranks.push(Thread { rank, count, links: vec![(back, there)] });
    }
    ranks.insert(0, root);
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || work(&rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Small integers: many distances are equal, so that ids decide.
fn vectors(rows: usize, dim: usize, step: usize) -> Vec<f32> {
    (0..rows * dim).map(|i| ((i * step + i / dim * 5) % 7) as f32).collect()
}

/// Rank 0's results equal `one`'s to the bit; the other ranks have none.
fn check(found: Vec<Result<Option<Neighbors>>>, one: &Neighbors) {
    for (rank, found) in found.into_iter().enumerate() {
        match (rank, found.unwrap()) {
            (0, Some(found)) => {
                assert_eq!(found, *one);
                let bits = |found: &Neighbors| found.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(one));
            }
            (0, None) => panic!("rank 0 has the results"),
            (rank, found) => assert!(found.is_none(), "rank {rank} has results"),
        }
    }
}

#[test]
fn shares_are_contiguous_and_complete() {
    for (rows, count) in [(0, 3), (2, 5), (7, 3), (10, 1), (usize::MAX, 3)] {
        let shares = at_ranks(count, |ranks| share(rows, ranks));
        assert_eq!((shares[0].start, shares[count - 1].end), (0, rows));
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
        let lengths = || shares.iter().map(|share| share.len());
        assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
    }
}

#[test]
fn flat_shards_answer_as_one_index() {
    let (base, queries, dim) = (vectors(41, 3, 2), vectors(6, 3, 3), 3);
    for metric in Metric::OF_NUMBERS {
        let builder = || FlatIndex::<f32>::builder(dim).metric(metric).device(Device::Cpu);
        let mut one = builder().build().unwrap();
        one.add(&base).unwrap();
        // More neighbours than a shard has vectors, than the base has, and more ranks than it has vectors.
        for (count, k) in [(1, 5), (3, 5), (4, 20), (4, 50), (50, 4)] {
            let found = at_ranks(count, |ranks| {
                let sharded = Sharded::<_, FlatIndex<f32>>::build(ranks, builder(), &base)?;
                assert_eq!(sharded.len(), 41);
                sharded.search(&queries, k)
            });
            check(found, &one.search(&queries, k).unwrap());
        }
    }
}

#[test]
fn inverted_file_shards_answer_as_one_index_and_survive_their_files() {
    let (base, queries, dim) = (vectors(300, 4, 2), vectors(9, 4, 3), 4);
    let ids: Vec<u64> = (0..300).map(|row| (1 << 40) - 3 * row).collect();
    let pq = Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: true };
    for (encoding, metric, ids) in
        [(Encoding::Flat, Metric::L2, None), (pq, Metric::L2, Some(&ids[..])), (pq, Metric::Cosine, None)]
    {
        let builder = || IvfIndex::<f32>::builder(dim, 7).encoding(encoding).metric(metric).device(Device::Cpu);
        let mut one = builder().build().unwrap();
        one.train(&base).unwrap();
        match ids {
            Some(ids) => one.add_with_ids(&base, ids).unwrap(),
            None => one.add(&base).unwrap(),
        }
        // Two thirds of the vectors: in the probed lists a shard has fewer than k of them for some queries.
        let accepts = |id: u64| !id.is_multiple_of(3);
        let filtered = SearchOptions::new().probes(2).filter_by(&accepts).widen(false);
        let found = at_ranks(3, |ranks| {
            let sharded = Sharded::<_, IvfIndex<f32>>::build(ranks, builder(), &base, ids, None)?;
            sharded.search(&queries, 30, &filtered)
        });
        check(found, &one.search_with(&queries, 30, &filtered).unwrap());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index.ivf");
        let options = SearchOptions::new().probes(3);
        let expected = one.search_with(&queries, 12, &options).unwrap();
        let found = at_ranks(3, |ranks| {
            let sharded = Sharded::<_, IvfIndex<f32>>::build(ranks, builder(), &base, ids, None)?;
            sharded.save(&path)?;
            sharded.search(&queries, 12, &options)
        });
        check(found, &expected);
        let found = at_ranks(3, |ranks| {
            let sharded = Sharded::<_, IvfIndex<f32>>::load(ranks, &path, Device::Cpu, None)?;
            assert_eq!(sharded.len(), 300);
            sharded.search(&queries, 12, &options)
        });
        check(found, &expected);

        // Saved by three, opened by two.
        let opened =
            at_ranks(2, |ranks| Sharded::<_, IvfIndex<f32>>::load(ranks, &path, Device::Cpu, None).map(|_| ()));
        assert!(opened.iter().all(|opened| matches!(opened, Err(Error::Io { .. }))), "{opened:?}");
        // A part of another index.
        let mut other = builder().seed(9).build().unwrap();
        other.train(&base[..200 * dim]).unwrap();
        other.save(folder.path().join("index.ivf.1-of-3")).unwrap();
        let opened =
            at_ranks(3, |ranks| Sharded::<_, IvfIndex<f32>>::load(ranks, &path, Device::Cpu, None).map(|_| ()));
        assert!(matches!(opened[1], Err(Error::Incompatible { .. })), "{opened:?}");
        for other in [0, 2] {
            assert!(matches!(opened[other], Err(Error::RankFailed { rank: 1, .. })), "{opened:?}");
        }
    }
}

#[test]
fn a_rank_that_fails_stops_all_and_the_next_call_works() {
    let base = vectors(20, 2, 3);
    let results = at_ranks(3, |ranks| {
        let builder = FlatIndex::<f32>::builder(2).device(Device::Cpu);
        let sharded = Sharded::<_, FlatIndex<f32>>::build(ranks, builder, &base).unwrap();
        let bad = [1.0, f32::NAN];
        let failed = sharded.search(if ranks.rank() == 2 { &bad } else { &base[..2] }, 1).map(|_| ());
        // Different numbers of queries.
        let unequal = sharded.search(&base[..2 * (1 + ranks.rank())], 1).map(|_| ());
        // Different numbers of queries and of neighbours, with results of the same size.
        let (queries, k) = if ranks.rank() == 1 { (2, 1) } else { (1, 2) };
        let other_shape = sharded.search(&base[..2 * queries], k).map(|_| ());
        let worked = sharded.search(&base[..2], 1).map(|found| found.map(|found| found.ids));
        (failed, unequal, other_shape, worked)
    });
    for (rank, (failed, unequal, other_shape, worked)) in results.into_iter().enumerate() {
        match failed {
            Err(Error::NotFinite { column: 1, .. }) if rank == 2 => {}
            Err(Error::RankFailed { rank: 2, reason }) if rank < 2 => {
                assert!(reason.contains("not finite"), "{reason}")
            }
            other => panic!("rank {rank}: {other:?}"),
        }
        for refused in [unequal, other_shape] {
            match refused {
                Err(Error::Incompatible { .. }) if rank == 0 => {}
                Err(Error::RankFailed { rank: 0, .. }) if rank > 0 => {}
                other => panic!("rank {rank}: {other:?}"),
            }
        }
        assert_eq!(worked.unwrap(), (rank == 0).then(|| vec![0]));
    }
    // Of several failures the lowest rank's is told.
    let outcomes = at_ranks(4, |ranks| {
        agree::<_, Error>(ranks, if ranks.rank() % 2 == 1 { Err(Error::Zero { what: "k" }) } else { Ok(()) })
    });
    assert!(
        matches!(outcomes[2], Err(Error::RankFailed { rank: 1, .. }))
            && matches!(outcomes[3], Err(Error::Zero { what: "k" }))
    );
}

#[test]
fn parts_are_merged_and_unequal_ones_refused() {
    let part = |k, ids: &[u64], distances: &[f32]| Neighbors { k, ids: ids.to_vec(), distances: distances.to_vec() };
    let near = part(2, &[4, 2, NONE, NONE], &[1.0, 2.0, f32::INFINITY, f32::INFINITY]);
    let far = part(2, &[3, 9, 7, NONE], &[1.0, 1.5, 0.5, f32::INFINITY]);
    let both = part(2, &[3, 4, 7, NONE], &[1.0, 1.0, 0.5, f32::INFINITY]);
    assert_eq!(merge_parts(Metric::L2, vec![near.clone(), far]).unwrap(), both);
    assert_eq!(merge_parts(Metric::L2, vec![near.clone()]).unwrap(), near);
    for unequal in [
        vec![],
        vec![near.clone(), part(1, &near.ids, &near.distances)],
        vec![near.clone(), part(2, &[1, 2], &[0.0, 0.0])],
        vec![near.clone(), part(2, &near.ids, &near.distances[..3])],
        vec![part(3, &near.ids, &near.distances)],
        vec![part(0, &near.ids, &near.distances)],
    ] {
        assert!(matches!(merge_parts(Metric::L2, unequal), Err(Error::Incompatible { .. })));
    }
}
