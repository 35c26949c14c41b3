//! The rows of nodes that are several ([`ExpandTwins`]), against a sort of all rows.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::NO_ROW;
use warpann_kernels::proximity::twins::ExpandTwins;

#[test]
fn rows_of_equal_vectors_are_merged_by_distance_and_number() {
    let mut random = Random::new(17);
    for turn in 0..300 {
        let rows = 1 + random.below(120);
        // The node of each row is the first row of its group, and distances have few values.
        let (groups_of_rows, values) = (1 + random.below(rows), 1 + random.below(6));
        let group: Vec<usize> = (0..rows).map(|_| random.below(groups_of_rows)).collect();
        let node = |row: usize| group.iter().position(|&other| other == group[row]).unwrap_or(row);
        let distance: Vec<f32> = (0..groups_of_rows).map(|_| random.below(values) as f32).collect();
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
        let mut nodes: Vec<usize> = (0..rows).filter(|&row| node(row) == row && found(row)).collect();
        nodes.sort_by(|&a, &b| distance[group[a]].total_cmp(&distance[group[b]]).then(a.cmp(&b)));
        let width = nodes.len() + random.below(3);
        let k = 1 + random.below(rows + 5);
        let mut expected: Vec<usize> = (0..rows).filter(|&row| accepted[row]).collect();
        expected.sort_by(|&a, &b| distance[group[a]].total_cmp(&distance[group[b]]).then(a.cmp(&b)));

        let mut distances = vec![f32::INFINITY; width.max(1)];
        let mut numbers = vec![NO_ROW; width.max(1)];
        for (at, &node) in nodes.iter().enumerate() {
            (distances[at], numbers[at]) = (distance[group[node]], node as u32);
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
        let (mut keys, mut out) = (Buffer::from_slice(&vec![0.0f32; k]), Buffer::from_slice(&vec![0u32; k]));
        let launch = ExpandTwins {
            query_count: 1,
            found: distances.len() as u32,
            distances: found_at.as_ptr(),
            nodes: at[0].as_ptr(),
            groups: at[1].as_ptr(),
            members: at[2].as_ptr(),
            filter: filtered.then(|| at[3].as_ptr()),
            cursors: cursors.as_mut_ptr(),
            worst: f32::INFINITY,
            k: k as u32,
            out_distances: keys.as_mut_ptr(),
            out_rows: out.as_mut_ptr(),
        };
        // SAFETY: the buffers are as long as the fields say, and nodes are rows.
        unsafe { crate::launch(&ExpandTwins::KERNEL, launch.config(), launch) };
        let of =
            |slot: usize| expected.get(slot).map_or((f32::INFINITY, NO_ROW), |&row| (distance[group[row]], row as u32));
        let results: Vec<(f32, u32)> = keys.to_vec().into_iter().zip(out.to_vec()).collect();
        assert_eq!(results, (0..k).map(of).collect::<Vec<_>>(), "{rows} rows, {k} best, filter {filtered}");
    }
}
