//! The methods that every kind of index has, each on every kind.

use super::*;
use crate::ivf::Encoding;
use crate::{Device, FlatIndex, GraphIndex, IvfIndex};
use test_random::Random;

const DIM: usize = 3;

fn vectors(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count * DIM).map(|_| random.signed_unit()).collect()
}

fn ivf(encoding: Encoding, base: &[f32]) -> IvfIndex<f32> {
    let mut index = IvfIndex::<f32>::builder(DIM, 40).encoding(encoding).device(Device::Cpu).build().unwrap();
    index.train(base).unwrap();
    index
}

#[test]
fn one_query_is_not_mistaken_for_two() {
    fn check<K: Kind<Element = f32>>(mut index: Index<K>) {
        index.add(&vectors(300, 1)).unwrap();
        let (query, options) = (vectors(1, 2), SearchOptions::new());
        let found = index.search_one(&query, 4, &options).unwrap();
        assert_eq!(found, index.search_with(&query, 4, &options).unwrap());
        for wrong in [0, DIM - 1, DIM + 1, 2 * DIM] {
            let result = index.search_one(&vec![0.5; wrong], 4, &options);
            assert!(
                matches!(result, Err(Error::WrongDimension { expected: DIM, actual }) if actual == wrong),
                "{result:?}"
            );
        }
    }
    check(FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap());
    check(ivf(Encoding::Flat, &vectors(300, 1)));
    check(GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(0).build().unwrap());
}

#[test]
fn many_vectors_come_back_as_single_ones_do() {
    fn check<K: Kind<Element = f32>>(mut index: Index<K>, exact: bool) {
        let base = vectors(300, 1);
        let ids: Vec<u64> = (0..300).map(|at| 7 * at + 5).collect();
        index.add_with_ids(&base, &ids).unwrap();
        assert_eq!(index.greatest_id(), Some(7 * 299 + 5));
        let some = [ids[299], ids[0], ids[7], ids[0]];
        let mut all = vec![f32::NAN; 4 * DIM];
        index.reconstruct_into(&some, &mut all).unwrap();
        for (&id, vector) in some.iter().zip(all.chunks(DIM)) {
            assert_eq!(index.reconstruct(id).unwrap(), vector);
            let row = (id as usize - 5) / 7 * DIM;
            assert!(!exact || vector == &base[row..row + DIM]);
        }
        let wrong = index.reconstruct_into(&some, &mut all[1..]);
        assert!(matches!(wrong, Err(Error::WrongLength { what: "components", expected: 12, actual: 11 })));
        assert!(matches!(index.reconstruct_into(&[6], &mut all[..DIM]), Err(Error::UnknownId { id: 6, len: 300 })));
        index.clear();
        assert_eq!(index.greatest_id(), None);
    }
    check(FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap(), true);
    check(ivf(Encoding::Flat, &vectors(300, 1)), true);
    check(ivf(Encoding::Scalar8, &vectors(300, 1)), false);
    check(GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(0).build().unwrap(), true);
}

/// Each query is a stored vector. It must not count as a neighbour that was found.
#[test]
fn a_stored_query_does_not_flatter_its_recall() {
    const K: usize = 4;
    fn check<I: Kind<Element = f32>>(
        mut index: Index<I>,
        effort: impl Fn(usize) -> SearchOptions<'static>,
        most: usize,
    ) {
        let base = vectors(2_000, 3);
        index.add(&base).unwrap();
        let queries = &base[..100 * DIM];
        let all = index.search_with(queries, K + 1, &effort(most)).unwrap();
        // The recall of the other neighbours. Query q is vector q, unless an equal code comes first.
        let others = |found: &Neighbors| -> Vec<u64> {
            let rows = found.rows().enumerate();
            rows.flat_map(|(query, (ids, _))| {
                let own = ids
                    .iter()
                    .position(|&id| index.reconstruct(id).unwrap() == index.reconstruct(query as u64).unwrap());
                let left_out = own.unwrap_or(K);
                ids.iter().enumerate().filter(move |&(at, _)| at != left_out).map(|(_, &id)| id).collect::<Vec<_>>()
            })
            .collect()
        };
        let truth = others(&all);
        let at = |number: usize| {
            let found = index.search_with(queries, K + 1, &effort(number)).unwrap();
            (recall(&others(&found), K, &truth, K, K), recall(&found.ids, K + 1, &all.ids, K + 1, K + 1))
        };
        let (without, with) = at(1);
        assert!(without < with, "{without} {with}");
        let target = 0.9;
        let expected = (1..=most).find(|&number| at(number).0 >= target).unwrap();
        let reached = at(expected).0;
        let (found, recall) = index.tune(queries, K, target).unwrap();
        assert_eq!((found, recall), (expected, reached));
    }
    let base = vectors(2_000, 3);
    let probes = |probes| SearchOptions::new().probes(probes);
    check(ivf(Encoding::Flat, &base), probes, 40);
    check(ivf(Encoding::Scalar8, &base), probes, 40);
    check(ivf(Encoding::Pq { sub_quantizers: 3, bits: 8, rotate: false }, &base), probes, 40);
    let mut flat = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Cpu).unwrap();
    flat.add(&base).unwrap();
    assert_eq!(flat.tune(&base[..30], 5, 0.9).unwrap(), (1, 1.0));
}
