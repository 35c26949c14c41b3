//! Tests of indexes that train themselves, and of retraining. The reference is an index that the caller trains, and an
//! exact index before that.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use test_random::Random;

use super::{Encoding, IvfIndex, IvfIndexBuilder};
use crate::watch_tests::stopping;
use crate::{Device, Element, Error, FlatIndex, IndexWriter, Metric, Placement, SearchOptions, Watch, recall};

const DIM: usize = 4;
const LISTS: usize = 6;
/// Number of vectors with which the indexes train themselves.
const AT: usize = 90;

const ENCODINGS: [Encoding; 5] = [
    Encoding::Flat,
    Encoding::F16,
    Encoding::Scalar8,
    Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: false },
    Encoding::Pq { sub_quantizers: 2, bits: 4, rotate: true },
];

fn rows<T: Element>(random: &mut Random, count: usize, from: f32) -> Vec<T> {
    (0..count * DIM).map(|_| T::from_f32(from + random.below(60) as f32)).collect()
}

fn builder<T: Element>(encoding: Encoding, metric: Metric, placement: &Placement) -> IvfIndexBuilder<T> {
    IvfIndex::<T>::builder(DIM, LISTS).encoding(encoding).metric(metric).device(placement.clone())
}

/// An index that trains itself is exact before, and afterwards has the bytes of one that was trained with its vectors.
fn check_growth<T: Element>(encoding: Encoding, metric: Metric, placement: &str, random: &mut Random) {
    let (what, placement) = (format!("{encoding}, {metric}, {placement}"), placement.parse::<Placement>().unwrap());
    let all: Vec<T> = rows(random, AT + 40, 1.0);
    let ids: Vec<u64> = (0..AT as u64 + 40).map(|at| 5 * at + at % 3).collect();
    let mut index = builder::<T>(encoding, metric, &placement).train_at(AT).build().unwrap();
    let mut exact = FlatIndex::<T>::new(DIM, metric, Device::Cpu).unwrap();
    let part = |range: std::ops::Range<usize>| (&all[range.start * DIM..range.end * DIM], &ids[range]);
    let queries: Vec<T> = rows(random, 3, 1.0);
    // Some vectors are replaced and removed, and some come back.
    let (first, first_ids) = part(0..AT - 10);
    index.add_with_ids(first, first_ids).unwrap();
    index.upsert(part(3..5).0, &[ids[1], ids[2]]).unwrap();
    index.remove(&[ids[4], ids[9]]).unwrap();
    index.upsert(part(1..3).0, &[ids[1], ids[2]]).unwrap();
    index.add_with_ids(part(4..5).0, &[ids[4]]).unwrap();
    index.add_with_ids(part(9..10).0, &[ids[9]]).unwrap();
    exact.add_with_ids(first, first_ids).unwrap();
    let is_exact = |index: &IvfIndex<T>| {
        let even = exact.filter(|id| id % 2 == 0);
        for options in [SearchOptions::new(), SearchOptions::new().filter(&even), SearchOptions::new().probes(1)] {
            let (found, expected) =
                (index.search_with(&queries, 7, &options), exact.search_with(&queries, 7, &options));
            assert_eq!(found.unwrap(), expected.unwrap(), "{what}");
        }
        assert!(!index.is_trained() && index.centroids().is_empty() && index.drift().is_none());
        assert_eq!((index.len(), index.lists(), index.encoding()), (AT - 10, LISTS, encoding));
        assert_eq!((index.statistics().lists, index.ids()), (1, first_ids.to_vec()));
    };
    is_exact(&index);
    let probes = index.probes();
    assert_eq!((index.tune(&queries, 3, 0.5).unwrap(), index.probes()), ((1, 1.0), probes));
    let before = index.snapshot();
    let bytes = index.to_bytes().unwrap();
    let mut loaded = IvfIndex::<T>::from_bytes(&bytes, placement.clone(), None).unwrap();
    assert!(loaded.to_bytes().unwrap() == bytes);
    is_exact(&loaded);

    // The last vector before training, and then enough of them.
    for index in [&mut index, &mut loaded] {
        index.add_with_ids(part(AT - 10..AT - 1).0, part(AT - 10..AT - 1).1).unwrap();
        assert!(!index.is_trained());
        index.add_with_ids(part(AT - 1..AT + 20).0, part(AT - 1..AT + 20).1).unwrap();
        assert!(index.is_trained());
    }
    is_exact(&before);
    let mut trained = builder::<T>(encoding, metric, &placement).build().unwrap();
    let (given, given_ids) = part(0..AT + 20);
    trained.train(given).unwrap();
    trained.add_with_ids(given, given_ids).unwrap();
    assert_eq!(trained.to_bytes().unwrap(), index.to_bytes().unwrap(), "{what}");
    assert!(loaded.to_bytes().unwrap() == index.to_bytes().unwrap(), "{what}");
    let drift = index.drift().unwrap();
    assert!((0.99..1.01).contains(&drift), "{what}: {drift}");

    // Later vectors do not train it again, nor does an index that has become empty.
    let (centroids, more) = (index.centroids().to_vec(), part(AT + 20..AT + 40));
    index.add_with_ids(more.0, more.1).unwrap();
    trained.add_with_ids(more.0, more.1).unwrap();
    assert_eq!(index.search(&queries, 9).unwrap(), trained.search(&queries, 9).unwrap(), "{what}");
    index.clear();
    index.add_with_ids(given, given_ids).unwrap();
    assert_eq!(index.centroids(), centroids);
}

#[test]
fn an_index_trains_itself_and_is_exact_before() {
    let mut random = Random::new(3);
    for encoding in ENCODINGS {
        for metric in Metric::OF_NUMBERS {
            check_growth::<f32>(encoding, metric, "cpu", &mut random);
        }
        check_growth::<f32>(encoding, Metric::L2, "cpu+cpu", &mut random);
        check_growth::<f32>(encoding, Metric::L2, "emulator", &mut random);
        if encoding != Encoding::F16 {
            check_growth::<u8>(encoding, Metric::L2, "cpu", &mut random);
            check_growth::<half::bf16>(encoding, Metric::InnerProduct, "cpu", &mut random);
        }
    }
    check_growth::<u8>(Encoding::Flat, Metric::Cosine, "emulator", &mut random);
}

/// The other ways to bring vectors into an index.
#[test]
fn batches_merges_and_samples_train_an_index() {
    let mut random = Random::new(4);
    let cpu = Placement::from(Device::Cpu);
    let all: Vec<f32> = rows(&mut random, 200, 0.0);
    let grown = |count: usize| {
        let mut index = builder::<f32>(Encoding::Scalar8, Metric::L2, &cpu).train_at(AT).build().unwrap();
        index.add_batches(all[..count * DIM].chunks(17 * DIM)).unwrap();
        index
    };
    let index = grown(200);
    assert!(index.is_trained() && index.ids() == (0..200).collect::<Vec<_>>());
    // 102 vectors are the first whole batches.
    let mut expected = builder::<f32>(Encoding::Scalar8, Metric::L2, &cpu).build().unwrap();
    expected.train(&all[..102 * DIM]).unwrap();
    expected.add(&all).unwrap();
    assert!(index.to_bytes().unwrap() == expected.to_bytes().unwrap());

    let waiting = |ids: std::ops::Range<u64>| {
        let mut index = builder::<f32>(Encoding::Scalar8, Metric::L2, &cpu).train_at(AT).build().unwrap();
        let rows = &all[ids.start as usize * DIM..ids.end as usize * DIM];
        index.add_with_ids(rows, &ids.collect::<Vec<_>>()).unwrap();
        index
    };
    let (mut merged, other) = (waiting(0..60), waiting(60..120));
    assert!(matches!(merged.merge(&waiting(50..60)), Err(Error::DuplicateId { id: 50 })));
    merged.merge(&waiting(150..160)).unwrap();
    assert!(!merged.is_trained());
    merged.merge(&other).unwrap();
    assert!(merged.is_trained() && merged.len() == 130 && !other.is_trained());
    // Whole vectors go into any lists, but codes do not become whole vectors.
    merged.merge(&waiting(120..150)).unwrap();
    assert_eq!(merged.ids(), (0..160).collect::<Vec<_>>());
    assert!(matches!(waiting(160..170).merge(&merged), Err(Error::Incompatible { what: "training" })));
    let mut other_lists = IvfIndex::<f32>::builder(DIM, 7).encoding(Encoding::Scalar8).train_at(AT).build().unwrap();
    assert!(matches!(other_lists.merge(&waiting(0..9)), Err(Error::Incompatible { what: "number of lists" })));

    // A caller may train an index that has no vectors yet.
    let mut sampled = waiting(0..0);
    sampled.train(&all).unwrap();
    assert!(sampled.is_trained());
    let mut held = waiting(0..LISTS as u64 - 1);
    assert!(matches!(held.train(&all), Err(Error::NotEmpty { len: 5 })));
    assert!(matches!(held.retrain(), Err(Error::TooFewTrainingVectors { have: 5, need: LISTS })));
    held.add(&all[..DIM]).unwrap();
    held.retrain().unwrap();
    assert!(held.is_trained());
    let few = builder::<f32>(Encoding::Flat, Metric::L2, &cpu).train_at(LISTS - 1).build();
    assert!(matches!(few, Err(Error::TooFewTrainingVectors { have: 5, need: LISTS })));
    let mut chosen = builder::<f32>(Encoding::Flat, Metric::L2, &cpu).train_at(0).build().unwrap();
    chosen.add(&rows::<f32>(&mut random, 39 * LISTS - 1, 0.0)).unwrap();
    assert!(!chosen.is_trained());
    chosen.add(&rows::<f32>(&mut random, 1, 0.0)).unwrap();
    assert!(chosen.is_trained());
}

/// A training inside of a change that fails, is cancelled or panics leaves the index as it was, each time.
#[test]
fn a_training_that_ends_early_changes_nothing() {
    let mut random = Random::new(5);
    let cpu = Placement::from(Device::Cpu);
    let all: Vec<f32> = rows(&mut random, 2 * AT, 0.0);
    for encoding in [Encoding::Flat, ENCODINGS[3]] {
        let mut index = builder::<f32>(encoding, Metric::L2, &cpu).train_at(AT).build().unwrap();
        index.add(&all[..(AT - 1) * DIM]).unwrap();
        let bytes = index.to_bytes().unwrap();
        let mut stopped = 0;
        for (stop, panics) in (0..).flat_map(|stop| [(stop, false), (stop, true)]) {
            let mut calls = 0;
            let watch = stopping(stop, panics, &mut calls);
            let row = &all[..DIM];
            let added = catch_unwind(AssertUnwindSafe(|| match index.is_trained() {
                false => index.add_watched(row, None, &watch),
                true => index.retrain_watched(&watch),
            }));
            drop(watch);
            match added {
                Ok(Ok(())) => break,
                Ok(Err(error)) => assert!(!panics && matches!(error, Error::Cancelled), "{error}"),
                Err(_) => assert!(panics),
            }
            stopped += 1;
            assert!(index.to_bytes().unwrap() == bytes && !index.is_trained(), "{encoding}, {stop}");
        }
        assert!(index.is_trained() && stopped > 10, "{encoding}: {stopped}");
        let bytes = index.to_bytes().unwrap();
        let watch = Watch::new(|_| ControlFlow::Break(()));
        assert!(matches!(index.retrain_watched(&watch), Err(Error::Cancelled)));
        assert!(index.to_bytes().unwrap() == bytes);
    }
    // An encoding that cannot hold a vector says so when it gets it, and again.
    let mut halves = builder::<f32>(Encoding::F16, Metric::L2, &cpu).train_at(AT).build().unwrap();
    halves.add(&all[..(AT - 1) * DIM]).unwrap();
    halves.upsert(&[1e30; DIM], &[7]).unwrap();
    for _ in 0..2 {
        assert!(matches!(halves.add(&all[..DIM]), Err(Error::DoesNotFit { .. })));
        assert_eq!((halves.len(), halves.is_trained()), (AT - 1, false));
    }
    halves.upsert(&all[..DIM], &[7]).unwrap();
    halves.add(&all[..DIM]).unwrap();
    assert!(halves.is_trained());
    let mut untrained = builder::<f32>(Encoding::Flat, Metric::L2, &cpu).build().unwrap();
    assert!(matches!(untrained.retrain(), Err(Error::NotTrained { call: "retrain" })));
}

/// Vectors that come from elsewhere later fill few lists. Statistics tell, and retraining beside readers mends it.
#[test]
fn retraining_follows_vectors_that_have_moved() {
    let mut random = Random::new(6);
    for encoding in ENCODINGS {
        let on_emulator = matches!(encoding, Encoding::Flat | Encoding::Pq { rotate: false, .. });
        for placement in ["cpu", "emulator"].into_iter().take(1 + usize::from(on_emulator)) {
            let (what, placement) = (format!("{encoding}, {placement}"), placement.parse::<Placement>().unwrap());
            let many = if what.ends_with("cpu") { 3_000 } else { 600 };
            let (old, new): (Vec<f32>, Vec<f32>) = (rows(&mut random, 300, 0.0), rows(&mut random, many, 500.0));
            let mut index = builder::<f32>(encoding, Metric::L2, &placement).train_at(200).build().unwrap();
            index.add(&old).unwrap();
            let calm = index.statistics().imbalance;
            let ids: Vec<u64> = (0..many as u64).map(|at| 1_000 + 3 * at).collect();
            index.add_with_ids(&new, &ids).unwrap();
            let queries = &new[..40 * DIM];
            let moved = (index.drift().unwrap(), index.statistics().imbalance);
            // Codes stand for vectors near to their centroids, wherever the vectors are.
            let beyond = index.statistics().clamped_vectors;
            let has_moved = if matches!(encoding, Encoding::Flat | Encoding::F16) {
                moved.0 > 10.0
            } else {
                moved.0 > 1.5 && beyond == many as u64
            };
            assert!(has_moved && moved.1 > 2.0 * calm, "{what}: {moved:?}, {calm}, {beyond}");

            let mut writer = IndexWriter::new(index);
            let before = writer.current();
            let found = before.search(queries, 5).unwrap();
            writer.change(|index| index.retrain()).unwrap();
            let after = writer.current();
            assert_eq!(before.search(queries, 5).unwrap(), found, "{what}: the former version has changed");
            let now = (after.drift().unwrap(), after.statistics().imbalance);
            assert!((0.8..1.2).contains(&now.0) && now.1 < moved.1, "{what}: {now:?} after {moved:?}");
            assert_eq!(after.ids(), before.ids());

            let all: Vec<f32> = [old, new.clone()].concat();
            let mut exact = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
            exact.add_with_ids(&all, &after.ids()).unwrap();
            let truth = exact.search(queries, 10).unwrap();
            let of = |index: &IvfIndex<f32>| {
                let found = index.search_with(queries, 10, &SearchOptions::new().probes(LISTS)).unwrap();
                recall(&found.ids, 10, &truth.ids, 10, 10)
            };
            // The codes of vectors far from the training stood for others, and new codes of those can be no better.
            let floor = if encoding == Encoding::Flat { 1.0 } else { of(&before) - 0.1 };
            assert!(of(&after) >= floor, "{what}: {} after {}", of(&after), of(&before));
            if encoding == Encoding::Flat {
                let mut fresh = builder::<f32>(encoding, Metric::L2, &placement).build().unwrap();
                fresh.train(&all).unwrap();
                fresh.add_with_ids(&all, &after.ids()).unwrap();
                assert!(after.to_bytes().unwrap() == fresh.to_bytes().unwrap());
            }
        }
    }
}

/// Headers that no saved index has are refused.
#[test]
fn damaged_headers_of_waiting_indexes_are_refused() {
    let cpu = Placement::from(Device::Cpu);
    let mut index = builder::<f32>(ENCODINGS[3], Metric::L2, &cpu).train_at(AT).build().unwrap();
    index.add(&rows::<f32>(&mut Random::new(7), 20, 0.0)).unwrap();
    let bytes = index.to_bytes().unwrap();
    for (at, value) in
        [(236, 0u32), (236, 5), (236, 20), (240, 1.0f32.to_bits()), (240, f32::NAN.to_bits()), (240, 1 << 31), (244, 1)]
    {
        let mut damaged = bytes.clone();
        damaged[at..at + 4].copy_from_slice(&value.to_le_bytes());
        super::mend_index_bytes(&mut damaged);
        let loaded = IvfIndex::<f32>::from_bytes(&damaged, Device::Cpu, None);
        assert!(matches!(loaded, Err(Error::BadFile { .. })), "byte {at}: {value}");
    }
    assert!(FlatIndex::<f32>::from_bytes(&bytes, Device::Cpu, None).is_err());
}
