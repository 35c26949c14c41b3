//! Insertion on the emulated device and on the CPU: the same graphs to the bit, and the image in device memory has
//! them.

use super::*;
use crate::Device;
use crate::knn_graph::NO_NODE;
use crate::random::Random;

/// Small whole numbers around one of three centres, with many equal distances and some equal vectors.
fn vectors<T: Element>(random: &mut Random, count: usize, dim: usize, scale: f32) -> Vec<T> {
    let one = |random: &mut Random| {
        let centre = random.below(3) as f32 * 20.0;
        (0..dim).map(|_| T::from_f32((centre + random.below(12) as f32) * scale)).collect::<Vec<T>>()
    };
    (0..count).flat_map(|_| one(random)).collect()
}

/// Fails unless the image of the device is there and has the graph and the codes of the host.
fn check_image<T: Element>(index: &GraphIndex<T>, case: &str) {
    let vectors = &index.kind;
    let (links, resident) = (vectors.links().unwrap(), vectors.flat.resident_rows().unwrap());
    let image = vectors.made.device_links.downloaded(&resident).unwrap().unwrap_or_else(|| panic!("{case}: no image"));
    assert!(image.edges == links.edges(), "{case}: edges");
    assert!(image.parents == links.parents(), "{case}: parents");
    let entrance = links.entrance();
    let entry = [entrance.listed(), entrance.pivots(), entrance.ends()];
    assert!(image.entry.each_ref().map(|array| &array[..]) == entry, "{case}: start nodes");
    let codes = vectors.walk_distances().codes.map_or(&[][..], |_| vectors.walk_distances().fast.rows().bytes());
    let (dim, stride) = (vectors.dim(), vectors.dim().next_multiple_of(16));
    let rows = image.codes.chunks_exact(stride).map(|row| &row[..dim]);
    assert!(codes.is_empty() || rows.eq(codes.chunks_exact(dim)), "{case}: codes");
}

/// Fails unless both indexes have the same rows, codes, graph and table of nodes in host memory.
fn check_same<T: Element>(a: &GraphIndex<T>, b: &GraphIndex<T>, case: &str) {
    assert!(a.kind.links() == b.kind.links(), "{case}: graphs");
    assert!(a.kind.rows() == b.kind.rows(), "{case}: rows");
    let codes =
        |index: &GraphIndex<T>| index.kind.codes().map(|codes| (codes.rows().to_vec(), codes.of_rows().outside));
    assert!(codes(a) == codes(b), "{case}: codes");
    assert!(a.kind.made.nodes == b.kind.made.nodes, "{case}: tables of nodes");
}

/// Random changes of an index on the CPU and of one on the emulator. Each has a graph after each change, and the graphs
/// are equal.
fn check_changes<T: Element>(seed: u64, metric: Metric) {
    let random = &mut Random::new(seed);
    let (dim, degree) = ([3, 8, 17, 32][random.below(4)], [4, 8, 9, 33][random.below(4)]);
    let case = format!("seed {seed}, {} {metric}, {dim} components, degree {degree}", T::TYPE.name());
    let count = 120 + random.below(180);
    let base = vectors::<T>(random, count, dim, 1.0);
    // The third index is a snapshot of itself before each change, as those that an `IndexWriter` publishes.
    let mut all = [Device::Cpu, Device::Emulator, Device::Emulator].map(|device| {
        let builder = GraphIndex::<T>::builder(dim).metric(metric).device(device).exact_ratio(0);
        let mut index = builder.degree(degree).build().unwrap();
        index.add(&base).unwrap();
        index
    });
    let mut snapshots = Vec::new();
    for step in 0..4 {
        let (most, scale) = ([3, 40, 110][random.below(3)], [1.0, 1.0, 2.5, 0.5][random.below(4)]);
        let (ids, count) = (all[0].ids(), 1 + random.below(most));
        // Vectors elsewhere, and such as are there.
        let new = vectors::<T>(random, count, dim, scale);
        let old: Vec<u64> = random.sample(ids.len(), count.min(ids.len() / 5)).iter().map(|&at| ids[at]).collect();
        let kind = random.below(5);
        let mut next = all[2].snapshot();
        for index in all[..2].iter_mut().chain([&mut next]) {
            match kind {
                0 => index.add(&new).unwrap(),
                1 => assert_eq!(index.upsert(&new[..old.len() * dim], &old).unwrap(), old.len()),
                2 => {
                    let next = ids[ids.len() - 1] + 1;
                    let ids: Vec<u64> = old.iter().copied().chain(next..).take(count).collect();
                    assert_eq!(index.upsert(&new, &ids).unwrap(), old.len());
                }
                3 => index.remove(&old[..old.len().min(9)]).unwrap(),
                // So many that the rows move, and edges to them are replaced.
                _ => index.remove(&ids.iter().copied().step_by(3).collect::<Vec<u64>>()).unwrap(),
            }
        }
        let case = format!("{case}, step {step}, change {kind} of {count}");
        all[2] = next;
        let [cpu, emulated, versioned] = &all;
        let graph = |index: &GraphIndex<T>| index.kind.links().unwrap_or_else(|| panic!("{case}: no graph")).clone();
        assert!(graph(cpu) == graph(emulated), "{case}");
        check_same(versioned, emulated, &case);
        // The next change copies the image that snapshots have.
        if random.below(2) == 0 {
            snapshots.push((emulated.snapshot(), graph(emulated)));
        }
        // A new graph has no image until a search brings one, and a removal that moved rows leaves none.
        if kind < 3 && emulated.kind.links().unwrap().inserted() > 0 {
            check_image(emulated, &case);
            check_image(versioned, &case);
        }
        let queries = &new[..dim];
        assert!(cpu.search(queries, 3).unwrap() == emulated.search(queries, 3).unwrap(), "{case}");
        check_image(emulated, &case);
    }
    for (snapshot, graph) in &snapshots {
        assert!(snapshot.kind.links() == Some(graph), "{case}");
        snapshot.search(&base[..dim], 3).unwrap();
        check_image(snapshot, &case);
    }
}

#[test]
fn devices_insert_what_the_cpu_inserts() {
    for seed in 0..2 {
        Metric::OF_NUMBERS.into_iter().for_each(|metric| check_changes::<f32>(10 * seed + 1, metric));
        check_changes::<half::f16>(10 * seed + 2, Metric::Cosine);
        check_changes::<u8>(10 * seed + 3, Metric::L2);
        check_changes::<i8>(10 * seed + 4, Metric::InnerProduct);
        check_changes::<u8>(10 * seed + 5, Metric::Hamming);
    }
}

/// The device repairs edges itself, in several batches, and as the CPU does.
#[test]
fn devices_repair_what_the_cpu_repairs() {
    let random = &mut Random::new(7);
    let base = vectors::<f32>(random, 300, 8, 0.37);
    let mut index = GraphIndex::<f32>::builder(8).device(Device::Emulator).exact_ratio(0).degree(9).build().unwrap();
    index.add(&base).unwrap();
    let (vectors, links) = (&index.kind, index.kind.links().unwrap());
    let distance = vectors.walk_distances().fast;
    for kept in [2, 3, 7] {
        // Rows keep their vectors' place in memory here, so what moves is the numbers only.
        let mut moved: Vec<u32> = (0..links.len() as u32).collect();
        moved.iter_mut().filter(|row| **row % kept == 1).for_each(|row| *row = NO_NODE);
        let cpu = build::moved(links, &distance, &mut moved.clone(), links.len(), None).unwrap();
        let device = vectors.device_build(distance).unwrap().unwrap();
        assert!(device.can_repair());
        let twins = links.twins().moved(&mut moved);
        assert!(twins == *cpu.twins());
        let mut edges = vec![NO_NODE; links.edges().len()];
        device.repair((links.edges(), &moved, &moved), &mut edges).unwrap();
        assert!(edges == cpu.edges(), "{kept}");
    }
}

/// From the third version on, the arrays of the version before the last one are taken over, unless somebody has it.
#[test]
fn two_sets_of_arrays_take_turns() {
    let random = &mut Random::new(6);
    let base = vectors::<f32>(random, 400, 8, 0.37);
    let mut plain = GraphIndex::<f32>::builder(8).device(Device::Emulator).exact_ratio(0).degree(8).build().unwrap();
    plain.add(&base).unwrap();
    let mut writer = crate::IndexWriter::new(plain.snapshot());
    let places = |index: &GraphIndex<f32>| {
        let made = &index.kind.made;
        let codes = made.codes.as_ref().unwrap().rows();
        (made.copy.as_ptr(), codes.as_ptr(), made.links.as_ref().unwrap().edges().as_ptr())
    };
    let (mut seen, mut kept) = (Vec::new(), None);
    for version in 0..9 {
        let (new, ids) = (vectors::<f32>(random, 3, 8, 0.41), [7, 100 + version, 300]);
        plain.upsert(&new, &ids).unwrap();
        writer.change(|index| index.upsert(&new, &ids)).unwrap();
        let current = writer.current();
        check_same(&current, &plain, &format!("version {version}"));
        seen.push(places(&current));
        if version == 5 {
            kept = Some(current);
        }
    }
    // The first two have new arrays.
    assert!((2..=6).all(|version| seen[version] == seen[version - 2]), "{seen:?}");
    // Version 7 would take those of version 5.
    assert!(seen[7].0 != seen[5].0 && seen[7].1 != seen[5].1 && seen[7].2 != seen[5].2, "{seen:?}");
    assert_eq!(seen[8], seen[6]);
    let kept = kept.unwrap();
    assert_eq!(places(&kept), seen[5]);
}

/// The device does the work, and brings its image along: an upload by the next search would hide that it does not.
#[test]
fn insertion_changes_the_image_in_place_or_in_a_copy() {
    let random = &mut Random::new(5);
    let base = vectors::<f32>(random, 400, 8, 0.37);
    let mut index = GraphIndex::<f32>::builder(8).device(Device::Emulator).exact_ratio(0).degree(8).build().unwrap();
    index.add(&base).unwrap();
    index.search(&base[..8], 1).unwrap();
    check_image(&index, "uploaded");
    let before = index.snapshot();
    for (step, snapshot) in [Some(&before), None, None].into_iter().enumerate() {
        index.add(&vectors::<f32>(random, 20, 8, 0.41)).unwrap();
        check_image(&index, &format!("step {step}"));
        index.upsert(&vectors::<f32>(random, 3, 8, 0.39), &[5, 100, 410]).unwrap();
        check_image(&index, &format!("step {step}, replaced"));
        if let Some(snapshot) = snapshot {
            check_image(snapshot, "the snapshot");
        }
    }
}
