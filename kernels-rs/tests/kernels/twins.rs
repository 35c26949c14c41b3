//! The rows of nodes that are several ([`ExpandTwins`]), against a sort of all rows.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::graph::twins::ExpandTwins;

#[test]
fn rows_of_equal_vectors_are_merged_by_distance_and_number() {
    let mut random = Random::new(17);
    for turn in 0..300 {
        let (rows, queries) = (1 + random.below(120), 1 + turn % 3);
        // The node of each row is the first row of its group, and distances have few values.
        let (groups_of_rows, values) = (1 + random.below(rows), 1 + random.below(6));
        let group: Vec<usize> = (0..rows).map(|_| random.below(groups_of_rows)).collect();
        let node = |row: usize| group.iter().position(|&other| other == group[row]).unwrap_or(row);
        // Every query has other distances.
        let all: Vec<f32> = (0..queries * groups_of_rows).map(|_| random.below(values) as f32).collect();
        let distance = |query: usize, row: usize| all[query * groups_of_rows + group[row]];
        let filtered = turn % 2 == 0;
        let accepted: Vec<bool> = (0..rows).map(|_| !filtered || random.once_in(3)).collect();

        let mut places = vec![NO_ROW; rows];
        let mut members: Vec<u32> = Vec::new();
        for first in (0..rows).filter(|&row| node(row) == row) {
            let all: Vec<usize> = (0..rows).filter(|&row| node(row) == first).collect();
            if all.len() > 1 {
                all.iter().for_each(|&row| places[row] = members.len() as u32);
                members.push(all.len() as u32);
                members.extend(all.iter().map(|&row| row as u32));
            }
        }
        // A node is found if one of its rows is accepted.
        let found = |first: usize| (0..rows).any(|row| node(row) == first && accepted[row]);
        let nodes: Vec<usize> = (0..rows).filter(|&row| node(row) == row && found(row)).collect();
        let width = (nodes.len() + random.below(3)).max(1);
        let k = 1 + random.below(rows + 5);
        let sorted = |mut rows: Vec<usize>, query: usize| {
            rows.sort_by(|&a, &b| distance(query, a).total_cmp(&distance(query, b)).then(a.cmp(&b)));
            rows
        };
        let mut expected: Vec<(f32, u32)> = Vec::new();
        for query in 0..queries {
            let best = sorted((0..rows).filter(|&row| accepted[row]).collect(), query);
            expected.extend(best.iter().take(k).map(|&row| (distance(query, row), row as u32)));
            expected.resize((query + 1) * k, (f32::INFINITY, NO_ROW));
        }

        let mut distances = vec![f32::INFINITY; queries * width];
        let mut numbers = vec![NO_ROW; queries * width];
        for query in 0..queries {
            for (at, &node) in sorted(nodes.clone(), query).iter().enumerate() {
                (distances[query * width + at], numbers[query * width + at]) = (distance(query, node), node as u32);
            }
        }
        let mut bits = vec![0u32; rows.div_ceil(32)];
        accepted
            .iter()
            .enumerate()
            .filter(|(_, accepted)| **accepted)
            .for_each(|(row, _)| bits[row / 32] |= 1 << (row % 32));
        members.push(0);
        let at = [&numbers, &places, &members, &bits].map(|values| Buffer::from_slice(values));
        let (found_at, mut cursors) =
            (Buffer::from_slice(&distances), Buffer::from_slice(&vec![7u32; distances.len()]));
        let [mut keys, mut out] = [Buffer::<u32>::new_poisoned(queries * k), Buffer::new_poisoned(queries * k)];
        let launch = ExpandTwins {
            query_count: queries as u32,
            found: width as u32,
            distances: found_at.as_ptr(),
            nodes: at[0].as_ptr(),
            groups: at[1].as_ptr(),
            members: at[2].as_ptr(),
            filter: filtered.then(|| at[3].as_ptr()),
            cursors: cursors.as_mut_ptr(),
            worst: f32::INFINITY,
            k: k as u32,
            out_distances: keys.as_mut_ptr().cast(),
            out_rows: out.as_mut_ptr(),
        };
        // SAFETY: the buffers are as long as the fields say, and nodes are rows.
        unsafe { crate::launch(&ExpandTwins::KERNEL, launch.config(), launch) };
        let results: Vec<(f32, u32)> = keys.to_vec().into_iter().map(f32::from_bits).zip(out.to_vec()).collect();
        assert_eq!(results, expected, "{queries} queries, {rows} rows, {k} best, filter {filtered}");
    }
}
