//! Lists of the rows of sets ([`ListRows`]), against the sets.

use cuda_std::emulator::Buffer;
use test_random::Random;
use warpann_kernels::flat::list_rows::ListRows;

#[test]
fn lists_have_the_rows_of_the_set_of_each_query() {
    let mut random = Random::new(23);
    for rows in [1, 31, 32, 33, 64, 255, 8191, 8192, 8193, 20_000] {
        let words = usize::div_ceil(rows, 32);
        // No row, few rows, as many as words, one less, most rows, all rows.
        let mut sets: Vec<Vec<u32>> = vec![Vec::new()];
        for share in [1, 2, 31, 500] {
            sets.push((0..rows as u32).filter(|_| random.below(share) == 0).collect());
        }
        sets.extend([words, words.saturating_sub(1)].map(|count| (0..count as u32).collect()));
        let (mut packed, mut places) = (Vec::new(), Vec::new());
        for set in &sets {
            places.push(packed.len() as u32);
            if set.len() < words {
                packed.extend_from_slice(set);
                continue;
            }
            let mut bits = vec![0; words];
            set.iter().for_each(|row| bits[*row as usize / 32] |= 1 << (row % 32));
            packed.extend(bits);
        }
        let of: Vec<usize> = (0..12).map(|_| random.below(sets.len())).collect();
        let starts: Vec<u32> = of.iter().map(|&set| places[set]).collect();
        let counts: Vec<u32> = of.iter().map(|&set| sets[set].len() as u32).collect();
        let stride = sets.iter().map(Vec::len).max().unwrap() + random.below(3);
        let [sets_at, starts, counts] = [&packed, &starts, &counts].map(|values| Buffer::from_slice(values));
        let mut lists = Buffer::from_slice(&vec![u32::MAX; of.len() * stride]);
        let launch = ListRows {
            query_count: of.len() as u32,
            sets: sets_at.as_ptr(),
            starts: starts.as_ptr(),
            counts: counts.as_ptr(),
            bit_words: words as u32,
            stride: stride as u32,
            rows: lists.as_mut_ptr(),
        };
        // SAFETY: the buffers are as long as the fields say.
        unsafe { crate::launch(&ListRows::KERNEL, launch.config(), launch) };
        for (list, set) in lists.to_vec().chunks(stride).zip(of) {
            let (listed, rest) = list.split_at(sets[set].len());
            assert!(listed == sets[set] && rest.iter().all(|&row| row == u32::MAX), "{rows} rows, set {set}");
        }
    }
}
