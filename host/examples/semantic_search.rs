//! Semantic search over texts that change: an inverted file with ids of the program's choice, cosine similarity, and a
//! file on disk.
//!
//! ```sh
//! cargo run --release --example semantic_search
//! ```
//!
//! A program for real texts gets its vectors from a language model. Here the function `embed` stands in for the model,
//! so that the example needs no download: it counts the letter triples of a text. The ids are the keys of an imagined
//! table of texts.

use std::collections::HashMap;

use warpann::{Device, IvfIndex, Metric, SearchOptions};

/// Number of components of a vector.
const DIM: usize = 256;
/// Number of lists of the index: about the square root of the number of texts.
const LISTS: usize = 32;
/// Number of lists that a search reads.
const PROBES: usize = 8;

const SUBJECTS: [&str; 10] = [
    "a cat",
    "a dog",
    "the child",
    "an old man",
    "a student",
    "the cook",
    "a nurse",
    "a singer",
    "the baker",
    "a robot",
];
const VERBS: [&str; 10] = [
    "sleeps",
    "sings",
    "reads a book",
    "drinks tea",
    "waits",
    "eats bread",
    "writes a letter",
    "laughs",
    "plays chess",
    "runs",
];
const PLACES: [&str; 10] = [
    "in the garden",
    "on the sofa",
    "at the station",
    "in the kitchen",
    "on the roof",
    "in the library",
    "at the beach",
    "in the hospital",
    "on the train",
    "under the bridge",
];

/// Counts of the letter triples of a text. A hash gives each triple one of the components.
fn embed(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0; DIM];
    for triple in format!(" {text} ").as_bytes().windows(3) {
        let hash =
            triple.iter().fold(2_166_136_261u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
        counts[(hash >> 8) as usize % DIM] += 1.0;
    }
    counts
}

/// Searches for the three texts most like `query`, prints them, and returns their keys.
fn ask(index: &IvfIndex, texts: &HashMap<u64, String>, query: &str) -> Result<Vec<u64>, warpann::Error> {
    let found = index.search_with(&embed(query), 3, &SearchOptions::new().probes(PROBES))?;
    println!("\n{query}?");
    for (key, similarity) in found.found(0) {
        println!("  {similarity:.3}  {key:>5}  {}", texts[&key]);
    }
    Ok(found.ids)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 1000 texts, with keys that are neither consecutive nor from 0.
    let sentences = SUBJECTS
        .iter()
        .flat_map(|who| VERBS.iter().flat_map(move |does| PLACES.map(|at| format!("{who} {does} {at}"))));
    let mut texts: HashMap<u64, String> = sentences.enumerate().map(|(i, text)| (5000 + 7 * i as u64, text)).collect();
    let mut keys: Vec<u64> = texts.keys().copied().collect();
    keys.sort_unstable();
    let vectors: Vec<f32> = keys.iter().flat_map(|key| embed(&texts[key])).collect();

    // Training finds the centroids of the lists; it does not add the vectors.
    let mut index = IvfIndex::<f32>::builder(DIM, LISTS).metric(Metric::Cosine).device(Device::Auto).build()?;
    index.train(&vectors)?;
    index.add_with_ids(&vectors, &keys)?;
    println!("{} texts in {} lists on {}", index.len(), index.lists(), index.device());

    let query = "the cat is sleeping on the sofa";
    let before = ask(&index, &texts, query)?;
    assert_eq!(texts[&before[0]], "a cat sleeps on the sofa");

    // A text leaves, and another one comes. The index is searched as before; it needs no new training.
    index.remove(&[before[0]])?;
    let key = 99;
    texts.insert(key, "the cat is dreaming on the sofa".to_owned());
    index.add_with_ids(&embed(&texts[&key]), &[key])?;
    let after = ask(&index, &texts, query)?;
    assert!(after.contains(&key) && !after.contains(&before[0]), "a change shows in the next search");
    assert!(index.remove(&[before[0]]).is_err(), "the index no longer has the key");

    // The file holds the whole index, for any device.
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("texts.ivf");
    index.save(&file)?;
    let loaded = IvfIndex::<f32>::load(&file, Device::Cpu, None)?;
    println!("\nsaved {} bytes, loaded {} texts", std::fs::metadata(&file)?.len(), loaded.len());
    let queries: Vec<f32> = keys.iter().step_by(100).flat_map(|key| embed(&texts[key])).collect();
    assert_eq!(
        loaded.search_with(&queries, 10, &SearchOptions::new().probes(PROBES))?,
        index.search_with(&queries, 10, &SearchOptions::new().probes(PROBES))?,
        "the same bits, on any device"
    );
    Ok(())
}
