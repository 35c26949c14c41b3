//! Search among embeddings that candle computes.
//!
//! ```sh
//! cd examples/candle
//! cargo run
//! cargo run --release --features cuda      # the embeddings never leave the GPU; needs a CUDA toolkit
//! ```
//!
//! `Model` stands for a language model: a text becomes counts of its words, and a random projection of the counts,
//! divided by its norm, is the embedding. The example needs no download, and everything after the embeddings is as in a
//! program with a real model. Without the feature `cuda` the library reads the embeddings in the memory of candle's
//! tensors on the CPU.

#[cfg(feature = "cuda")]
mod gpu;

use std::error::Error;

use candle_core::{Device, Result, Tensor};

/// Number of different counters of words.
const WORDS: usize = 2048;
/// Number of components of an embedding.
const DIM: usize = 256;
/// Number of texts that are found for a question.
const K: usize = 3;

const SUBJECTS: [&str; 8] = ["cat", "dog", "child", "student", "cook", "nurse", "singer", "robot"];
const ACTIONS: [&str; 8] = ["sleeps", "sings", "reads", "waits", "laughs", "runs", "plays chess", "drinks tea"];
const PLACES: [&str; 6] = ["in garden", "on sofa", "at station", "in kitchen", "on roof", "under bridge"];

/// Questions, and the text that has most of their words.
const QUESTIONS: [(&str, &str); 3] = [
    ("which robot plays chess on a roof", "robot plays chess on roof"),
    ("a nurse drinks tea at the station", "nurse drinks tea at station"),
    ("the dog sleeps under the bridge", "dog sleeps under bridge"),
];

/// A hash of some bytes (FNV-1a, with the bits of the result mixed).
fn hash(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(2_166_136_261u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    let mixed = (hash ^ (hash >> 15)).wrapping_mul(0x2c1b_3c6d);
    mixed ^ (mixed >> 13)
}

/// Makes embeddings: see the top of this file.
struct Model {
    device: Device,
    /// Words × components, of ±1.
    projection: Tensor,
}

impl Model {
    fn new(device: Device) -> Result<Self> {
        let sign = |at: usize| if hash(&at.to_le_bytes()) & 1 == 0 { 1f32 } else { -1.0 };
        let projection = Tensor::from_vec((0..WORDS * DIM).map(sign).collect(), (WORDS, DIM), &device)?;
        Ok(Self { device, projection })
    }

    /// The embeddings of some texts: texts × components, each of norm 1.
    fn embed(&self, texts: &[&str]) -> Result<Tensor> {
        let mut counts = vec![0f32; texts.len() * WORDS];
        for (counts, text) in counts.chunks_exact_mut(WORDS).zip(texts) {
            text.split_whitespace().for_each(|word| counts[hash(word.as_bytes()) as usize % WORDS] += 1.0);
        }
        let projected = Tensor::from_vec(counts, (texts.len(), WORDS), &self.device)?.matmul(&self.projection)?;
        projected.broadcast_div(&projected.sqr()?.sum_keepdim(1)?.sqrt()?)
    }
}

/// The ids and similarities of the texts nearest to each question, best first.
struct Found {
    ids: Vec<u64>,
    similarities: Vec<f32>,
}

/// Embeddings on the CPU, where the library reads the memory of the tensors.
#[cfg(not(feature = "cuda"))]
mod cpu {
    use candle_core::{Storage, Tensor, bail};
    use warpann::{FlatIndex, Metric};

    use super::{DIM, Error, Found, K};

    pub fn device() -> candle_core::Result<candle_core::Device> {
        Ok(candle_core::Device::Cpu)
    }

    /// Calls `read` with the components of a tensor, row after row.
    fn components<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> R) -> candle_core::Result<R> {
        let (storage, layout) = tensor.storage_and_layout();
        let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            bail!("the tensor does not lie on the CPU row after row")
        };
        Ok(read(&storage.as_slice()?[start..end]))
    }

    /// Searches for the [`K`] texts nearest to each question.
    pub fn search(texts: &Tensor, questions: &Tensor) -> Result<Found, Box<dyn Error>> {
        let mut index = FlatIndex::<f32>::new(DIM, Metric::Cosine, warpann::Device::Cpu)?;
        components(texts, |texts| index.add(texts))??;
        let found = components(questions, |questions| index.search(questions, K))??;
        Ok(Found { ids: found.ids, similarities: found.distances })
    }
}

#[cfg(not(feature = "cuda"))]
use cpu as place;
#[cfg(feature = "cuda")]
use gpu as place;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut texts = Vec::new();
    for subject in SUBJECTS {
        for action in ACTIONS {
            texts.extend(PLACES.map(|place| format!("{subject} {action} {place}")));
        }
    }
    let model = Model::new(place::device()?)?;
    let base = model.embed(&texts.iter().map(String::as_str).collect::<Vec<_>>())?;
    let questions = model.embed(&QUESTIONS.map(|(question, _)| question))?;
    let found = place::search(&base, &questions)?;

    for (at, (question, expected)) in QUESTIONS.iter().enumerate() {
        println!("\n{question}?");
        let slots = at * K..(at + 1) * K;
        for (&id, similarity) in found.ids[slots.clone()].iter().zip(&found.similarities[slots]) {
            println!("  {similarity:.3}  {id:>4}  {}", texts[id as usize]);
        }
        assert_eq!(texts[found.ids[at * K] as usize], *expected);
    }
    // The product of all embeddings in candle has the same best similarities.
    let (all, _) = questions.matmul(&base.t()?)?.sort_last_dim(false)?;
    let best = all.narrow(1, 0, K)?.flatten_all()?.to_vec1::<f32>()?;
    assert!(best.iter().zip(&found.similarities).all(|(a, b)| (a - b).abs() < 1e-5), "{best:?}");
    println!("\ncandle's product of {} embeddings has the same {} similarities", texts.len(), best.len());
    Ok(())
}
