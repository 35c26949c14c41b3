//! Recall of walks where vectors and queries are not those for which codes were fitted, and where vectors are equal or
//! nearly so.

use super::tests::recall;
use super::*;
use crate::random::Random;
use crate::{Device, SearchOptions};

const K: usize = 10;

/// Sums of twelve uniform numbers: nearly normal, with mean 0 and variance 1.
fn normal(random: &mut Random, count: usize) -> Vec<f32> {
    let one = |random: &mut Random| (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    (0..count).map(|_| one(random) as f32).collect()
}

fn index(dim: usize, metric: Metric) -> GraphIndex<f32> {
    GraphIndex::builder(dim).metric(metric).device(Device::Cpu).exact_ratio(0).build().unwrap()
}

fn of(metric: Metric, dim: usize, rows: &[f32]) -> GraphIndex<f32> {
    let mut index = index(dim, metric);
    index.add(rows).unwrap();
    index
}

/// The recall of the k best, with the default beam or another.
fn recall_at(index: &GraphIndex<f32>, queries: &[f32], k: usize, beam: Option<usize>) -> f64 {
    let options = beam.map_or(SearchOptions::new(), |beam| SearchOptions::new().beam(beam));
    recall(&index.search_with(queries, k, &options).unwrap(), &index.exact().search(queries, k).unwrap())
}

fn moved(vectors: &[f32], scale: f32, shift: f32) -> Vec<f32> {
    vectors.iter().map(|x| x * scale + shift).collect()
}

/// Queries of another size or at another place find as much as those like the vectors.
#[test]
fn queries_may_lie_anywhere() {
    let mut random = Random::new(1);
    let (base, queries) = (normal(&mut random, 4_000 * 8), normal(&mut random, 40 * 8));
    for metric in Metric::OF_NUMBERS {
        let index = of(metric, 8, &base);
        assert!(index.statistics().codes, "{metric}");
        for scale in [1e-30, 1e-3, 0.1, 1.0, 10.0, 1e4, 1e18] {
            if matches!(metric, Metric::L2) && scale > 1e17 {
                continue;
            }
            let found = recall_at(&index, &moved(&queries, scale, 0.0), K, None);
            assert!(found >= 0.98, "{metric}, queries times {scale}: {found}");
        }
        for (component, far) in [(0, 10.0), (3, 30.0), (7, -1e4)] {
            let mut queries = queries.clone();
            queries.chunks_exact_mut(8).for_each(|query| query[component] += far);
            let found = recall_at(&index, &queries, K, None);
            assert!(found >= 0.98, "{metric}, component {component} plus {far}: {found}");
        }
    }
}

/// Vectors that are added elsewhere are found, whether codes were fitted again or not, and after a file.
#[test]
fn vectors_may_come_from_anywhere() {
    const DIM: usize = 16;
    let mut random = Random::new(2);
    let base = normal(&mut random, 3_000 * DIM);
    for metric in Metric::OF_NUMBERS {
        // With codes, and without.
        let before = [true, false].map(|codes| {
            let builder = GraphIndex::<f32>::builder(DIM).metric(metric).device(Device::Cpu).exact_ratio(0);
            let mut index = builder.codes(codes).build().unwrap();
            index.add(&base).unwrap();
            index
        });
        for (count, scale, shift) in
            [(200, 1.0, 10.0), (1_000, 1.0, 10.0), (300, 1.0, 3.0), (300, 0.01, 0.5), (200, 100.0, 0.0)]
        {
            let case = format!("{metric}: {count} vectors, times {scale} plus {shift}");
            let more = moved(&normal(&mut random, count * DIM), scale, shift);
            let queries = moved(&normal(&mut random, 40 * DIM), scale, shift);
            let (first, second) = more.split_at(count / 2 * DIM);
            let [index, plain] = before.each_ref().map(|before| {
                let mut index = before.snapshot();
                index.add(first).unwrap();
                let mut other = of(metric, DIM, &[]);
                let ids: Vec<u64> = (0..second.len() / DIM).map(|at| 1_000_000 + at as u64).collect();
                other.add_with_ids(second, &ids).unwrap();
                index.merge(&other).unwrap();
                index
            });
            // With codes, an index finds about as much as the one whose walks go by vectors.
            let loaded = GraphIndex::<f32>::from_bytes(&index.to_bytes().unwrap(), Device::Cpu, None).unwrap();
            for queries in [&queries[..], &more[..40 * DIM], &base[..40 * DIM]] {
                let [plain, found, loaded] = [&plain, &index, &loaded].map(|index| recall_at(index, queries, K, None));
                assert!(
                    found >= plain - 0.02 && loaded >= plain - 0.02,
                    "{case}: {found}, loaded {loaded}, by vectors {plain}, {:?}",
                    index.statistics()
                );
                assert!(plain >= 0.95 || matches!(metric, Metric::InnerProduct), "{case}: {plain}");
            }
        }
    }
}

/// A window that slides over vectors whose mean moves.
#[test]
fn a_window_may_slide() {
    const DIM: usize = 16;
    let mut random = Random::new(3);
    let mut index = of(Metric::L2, DIM, &normal(&mut random, 3_000 * DIM));
    for step in 1..=16u64 {
        index.add(&moved(&normal(&mut random, 250 * DIM), 1.0, 0.5 * step as f32)).unwrap();
        index.remove(&(250 * (step - 1)..250 * step).collect::<Vec<u64>>()).unwrap();
        if step % 4 == 0 {
            let queries = moved(&normal(&mut random, 40 * DIM), 1.0, 0.5 * step as f32);
            let found = recall_at(&index, &queries, K, None);
            assert!(found >= 0.95, "step {step}: {found}, {:?}", index.statistics());
        }
    }
    index.compact().unwrap();
    let queries = moved(&normal(&mut random, 40 * DIM), 1.0, 8.0);
    let found = recall_at(&index, &queries, K, None);
    assert!(found >= 0.95, "compacted: {found}");
}

/// Rows in turn from far classes, and a class that no sample has.
#[test]
fn classes_may_come_in_any_order() {
    let mut random = Random::new(4);
    let centres: Vec<f32> = normal(&mut random, 10 * 8).iter().map(|x| 20.0 * x).collect();
    let rows: Vec<f32> = normal(&mut random, 5_120 * 8)
        .chunks_exact(8)
        .enumerate()
        .flat_map(|(row, vector)| vector.iter().zip(&centres[row % 10 * 8..]).map(|(x, c)| x + c).collect::<Vec<f32>>())
        .collect();
    let index = of(Metric::L2, 8, &rows);
    assert!(recall_at(&index, &rows[8..41 * 8], K, None) >= 0.98);

    for metric in [Metric::L2, Metric::InnerProduct] {
        let mut rows = normal(&mut random, 5_000 * 8);
        rows[..100 * 8].iter_mut().for_each(|x| *x += 30.0);
        let index = of(metric, 8, &rows);
        for queries in [&rows[..40 * 8], &rows[200 * 8..240 * 8]] {
            let found = recall_at(&index, queries, K, None);
            assert!(found >= 0.98, "{metric}: {found}");
        }
    }
}

/// Groups of vectors that codes cannot tell apart.
#[test]
fn near_duplicates_are_ranked_by_their_vectors() {
    const DIM: usize = 16;
    let mut random = Random::new(5);
    for size in [8, 32, 100] {
        let centres = normal(&mut random, 3_200 / size * DIM);
        let near = |centre: &[f32]| -> Vec<f32> {
            (0..size)
                .flat_map(|_| centre.iter().map(|c| c + 1e-4 * (random.unit() as f32 - 0.5)).collect::<Vec<f32>>())
                .collect()
        };
        let rows: Vec<f32> = centres.chunks_exact(DIM).flat_map(near).collect();
        let index = of(Metric::L2, DIM, &rows);
        let queries = &rows[17 * DIM..77 * DIM];
        for (k, beam) in [(1, 16), (1, 64), (10, 64), (10, 150)] {
            let found = recall_at(&index, queries, k, Some(beam));
            assert!(found >= 0.95, "groups of {size}, {k} best, beam {beam}: {found}");
        }
    }
}

/// Many equal vectors hide no others, and all of them are found. A wider beam finds no less.
#[test]
fn equal_vectors_are_in_nobodys_way() {
    const DIM: usize = 32;
    let mut random = Random::new(6);
    let others = normal(&mut random, 4_000 * DIM);
    for (equal, codes, at_once) in [(5, true, true), (300, true, true), (1_500, false, true), (1_500, true, false)] {
        let builder = GraphIndex::<f32>::builder(DIM).device(Device::Cpu).exact_ratio(0).codes(codes);
        let mut index = builder.build().unwrap();
        let zeros = vec![0.0; equal * DIM];
        if at_once {
            index.add(&[&zeros[..], &others].concat()).unwrap();
        } else {
            index.add(&others).unwrap();
            index.add(&zeros).unwrap();
        }
        assert_eq!(index.statistics().equal, equal as u64 - 1);
        let queries = &others[..60 * DIM];
        let mut before = 0.0;
        for beam in [16, 32, 64, 150, 400] {
            let found = recall_at(&index, queries, 1, Some(beam));
            assert!(found >= before, "{equal} equal, beam {beam}: {found} after {before}");
            before = found;
        }
        assert!(before >= 0.98 && recall_at(&index, queries, 1, Some(64)) >= 0.95, "{equal} equal: {before}");
        // All of them, the lowest ids first, and no other before them.
        let nearest = index.search(&zeros[..DIM], equal.min(100)).unwrap();
        assert_eq!(nearest, index.exact().search(&zeros[..DIM], equal.min(100)).unwrap());
        // Half of them go, the node among them.
        let first = if at_once { 0 } else { 4_000 };
        index.remove(&(first..first + equal as u64 / 2).collect::<Vec<u64>>()).unwrap();
        let filter = index.filter(|id| id % 3 == 0);
        let options = SearchOptions::new().filter(&filter);
        let found = index.search_with(&zeros[..DIM], 5, &options).unwrap();
        assert_eq!(found, index.exact().search_with(&zeros[..DIM], 5, &options).unwrap());
        assert!(recall_at(&index, queries, 1, Some(64)) >= 0.95);
        let loaded = GraphIndex::<f32>::from_bytes(&index.to_bytes().unwrap(), Device::Cpu, None).unwrap();
        assert_eq!(loaded.search(&zeros[..DIM], 5).unwrap(), index.search(&zeros[..DIM], 5).unwrap());
    }
}

/// Short and long vectors have angles like others.
#[test]
fn cosine_walks_have_norms_of_every_size() {
    let mut random = Random::new(7);
    let (base, queries) = (normal(&mut random, 2_000 * 16), normal(&mut random, 30 * 16));
    for codes in [true, false] {
        for size in [1.0, 1e19, 1e-25, 1e-38] {
            let builder = GraphIndex::<f32>::builder(16).metric(Metric::Cosine).device(Device::Cpu).exact_ratio(0);
            let mut index = builder.codes(codes).build().unwrap();
            index.add(&moved(&base, size, 0.0)).unwrap();
            for of_query in [1.0, size] {
                let found = recall_at(&index, &moved(&queries, of_query, 0.0), K, None);
                assert!(found >= 0.97, "codes {codes}, vectors times {size}, queries times {of_query}: {found}");
            }
        }
    }
}

/// Rows that were removed leave nothing behind, wherever the vectors are.
#[test]
fn an_index_can_be_emptied_and_filled_again() {
    let placements: [Placement; 4] =
        [Device::Cpu.into(), "cpu,cpu".parse().unwrap(), "cpu+cpu".parse().unwrap(), Device::Emulator.into()];
    for placement in placements {
        let vectors = |from: f32| -> Vec<f32> { (0..300).map(|at| from + (at as f32 * 0.37).sin()).collect() };
        let (old, new) = (vectors(1000.0), vectors(0.0));
        let ids: Vec<u64> = (0..150).collect();
        for way in 0..4 {
            let builder = GraphIndex::<f32>::builder(2).device(placement.clone()).exact_ratio(0);
            let mut index = builder.build().unwrap();
            index.add(&old).unwrap();
            let before = index.snapshot();
            index.remove(&ids).unwrap();
            match way {
                0 => index.add_with_ids(&new, &ids).unwrap(),
                1 => drop(index.upsert(&new, &ids).unwrap()),
                2 => {
                    let mut other = of(Metric::L2, 2, &[]);
                    other.add_with_ids(&new, &ids).unwrap();
                    index.merge(&other).unwrap();
                }
                _ => {
                    let watch = crate::Watch::new(|_| std::ops::ControlFlow::Continue(()));
                    index.add_watched(&new, Some(&ids), &watch).unwrap();
                }
            }
            let found = index.search(&new[..40], 1).unwrap();
            assert_eq!((&found.ids[..], &found.distances[..]), (&ids[..20], &[0.0; 20][..]), "{placement} {way}");
            assert_eq!(before.search(&old[..40], 1).unwrap().ids, ids[..20]);
        }
    }
}

/// The emulated device walks as the CPU does, also where codes cannot tell and where rows are equal.
#[test]
fn devices_doubt_the_same_queries() {
    let mut random = Random::new(8);
    for metric in Metric::OF_NUMBERS {
        let mut rows = normal(&mut random, 300 * 8);
        rows[..40 * 8].fill(0.0);
        rows[60 * 8..64 * 8].fill(1.0);
        rows[100 * 8..140 * 8].iter_mut().enumerate().for_each(|(at, x)| *x = 2.0 + (at / 8) as f32 * 1e-5);
        let far = moved(&normal(&mut random, 60 * 8), 1.0, 5.0);
        let mut queries = normal(&mut random, 4 * 8);
        queries.extend_from_slice(&moved(&queries.clone(), 30.0, 0.0));
        queries.extend([&rows[..8], &rows[60 * 8..61 * 8], &rows[105 * 8..107 * 8], &far[..16]].concat());
        let made = |device: Device| {
            let mut index =
                GraphIndex::<f32>::builder(8).metric(metric).device(device).exact_ratio(0).degree(8).build().unwrap();
            index.add(&rows).unwrap();
            index.add(&far[..20 * 8]).unwrap();
            index.remove(&[0, 7, 62]).unwrap();
            index
        };
        let [cpu, emulated] = [Device::Cpu, Device::Emulator].map(made);
        assert_eq!(cpu.to_bytes().unwrap(), emulated.to_bytes().unwrap(), "{metric}");
        let filter = cpu.filter(|id| id % 5 != 1);
        for (k, beam) in [(1, 16), (10, 24), (70, 100)] {
            let options = SearchOptions::new().beam(beam);
            for options in [options, options.filter(&filter)] {
                let expected = cpu.search_with(&queries, k, &options).unwrap();
                assert_eq!(emulated.search_with(&queries, k, &options).unwrap(), expected, "{metric} {k} {beam}");
            }
        }
    }
}
