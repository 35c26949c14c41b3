//! Search in a catalogue under a condition: product codes save memory, a filter leaves out what the user may not see,
//! and the original vectors put the candidates into the right order. The example measures the recall of each step by
//! exact search.
//!
//! ```sh
//! cargo run --release --example filter_and_refine
//! ```

use warpann::SearchOptions;
use warpann::ivf::{Encoding, IvfIndex, Refiner};

use warpann::recall;
use warpann::{Device, FlatIndex, Metric};

const DIM: usize = 64;
const ITEMS: usize = 20_000;
const QUERIES: usize = 200;
/// Number of neighbours that the user wants.
const K: usize = 10;
/// Number of candidates that the codes propose for each query.
const CANDIDATES: usize = 100;

/// `count` vectors around 100 centres. The same seed gives the same vectors.
fn vectors(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    // Knuth's linear congruential generator; the upper bits are good enough for an example.
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let centre = |number: usize, column: usize| ((number * 37 + column * 11) as f32).sin();
    let mut row = |number: usize| (0..DIM).map(|column| centre(number, column) + 0.8 * random()).collect::<Vec<f32>>();
    (0..count).flat_map(|i| row(i * 61 % 100)).collect()
}

/// The condition: an item that is in stock.
fn in_stock(id: u64) -> bool {
    id % 5 < 2
}

fn main() -> Result<(), warpann::Error> {
    let (items, queries) = (vectors(ITEMS, 1), vectors(QUERIES, 2));

    // 16 bytes for each vector instead of 256.
    let encoding = Encoding::Pq { sub_quantizers: 16, bits: 8, rotate: false };
    let mut index =
        IvfIndex::<f32>::builder(DIM, 128).encoding(encoding).device(Device::Auto).iterations(10).build()?;
    index.train(&items)?;
    index.add(&items)?;
    let bytes = index.statistics().code_bytes;
    println!("{ITEMS} items, {bytes} bytes for each instead of {}, on {}", 4 * DIM, index.device());

    let filter = index.filter(in_stock);
    println!("{} of them are in stock", filter.count_ones());
    let options = SearchOptions::new().probes(32).filter(&filter);
    let coded = index.search_with(&queries, K, &options)?;
    // The refiner reads the vectors of the candidates only, so the items may also be a mapped file.
    let refiner = Refiner::new(Metric::L2, DIM, &items)?;
    let (refined, _) = index.search_refined(&queries, K, &options.refine(CANDIDATES as f64 / K as f64), &refiner)?;
    assert!(refined.ids.iter().all(|&id| in_stock(id)), "the filter holds");

    // The truth: exact search among the items in stock. Their ids are the rows of the smaller base.
    let kept: Vec<u64> = (0..ITEMS as u64).filter(|&id| in_stock(id)).collect();
    let mut exact = FlatIndex::<f32>::new(DIM, Metric::L2, Device::Auto)?;
    for &id in &kept {
        exact.add(&items[id as usize * DIM..][..DIM])?;
    }
    let found = exact.search(&queries, K)?;
    let truth: Vec<u64> = found.ids.iter().map(|&row| kept[row as usize]).collect();

    let of_codes = recall(&coded.ids, K, &truth, K, K);
    let of_refined = recall(&refined.ids, K, &truth, K, K);
    println!("recall@{K} of the codes alone            {of_codes:.3}");
    println!("recall@{K} after refining {CANDIDATES} candidates  {of_refined:.3}");
    assert!(of_refined > 0.9 && of_refined > of_codes + 0.2, "refining restores what the codes lost");

    // Refined distances are those of exact search, to the bit.
    let (ids, distances) = refined.row(0);
    let same = truth[..K].iter().zip(&found.distances[..K]).filter(|(id, _)| ids.contains(id));
    for (id, distance) in same {
        let at = ids.iter().position(|other| other == id).expect("filtered above");
        assert_eq!(distances[at].to_bits(), distance.to_bits());
    }
    println!("query 0: {:?}", refined.found(0).take(3).collect::<Vec<_>>());
    Ok(())
}
