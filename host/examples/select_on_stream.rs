//! k-selection as one step of a program that works on a GPU: keys and results are in device memory, and the work is put
//! on the program's CUDA stream.
//!
//! ```sh
//! cargo run --release --example select_on_stream --features cuda
//! ```
//!
//! The keys stand for the scores that a language model gives to each word of its vocabulary, and the program takes the
//! most likely words of each of several texts. On a machine without a GPU the example says so and ends: selection on a
//! stream has no other device.

use warpann::Device;
use warpann::cust::context::Context;
use warpann::cust::error::CudaError;
use warpann::cust::memory::{AsyncCopyDestination, DeviceBuffer};
use warpann::cust::stream::{Stream, StreamFlags};
use warpann::cust::{self, CudaFlags};
use warpann::select::device::{DeviceResults, DeviceRows, DeviceSelect};
use warpann::select::{Algorithm, Best, Rows, select_k};

const TEXTS: u32 = 64;
const WORDS: u32 = 50_000;
const K: u32 = 5;

/// The score of a word in a text. Many scores are equal, so the order of ties matters.
fn score(text: u32, word: u32) -> f32 {
    let mixed = (text * WORDS + word).wrapping_mul(2_654_435_761);
    (mixed >> 18) as f32 / 1024.0
}

/// Selects the most likely words of every text.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    match cust::init(CudaFlags::empty()) {
        Ok(()) => {}
        Err(CudaError::NoDevice) => {
            println!("this machine has no CUDA device or no driver: nothing was selected");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    // The primary context of the first GPU. warpann works in the same context.
    let _context = Context::new(cust::device::Device::get_device(0)?)?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let scores: Vec<f32> = (0..TEXTS).flat_map(|text| (0..WORDS).map(move |word| score(text, word))).collect();

    // The plan loads its kernels. It may be used for any number of runs of this shape or smaller ones.
    let select = DeviceSelect::<f32>::new(0, TEXTS, WORDS, K, Best::Largest, Algorithm::Auto)?;
    let slots = (TEXTS * K) as usize;
    let mut best = vec![0.0f32; slots];
    let mut words = vec![0u32; slots];
    // SAFETY: the stream first writes each buffer and then reads it. The host reads `best` and `words`, and all buffers
    // are freed, after the stream has finished. The buffers have the sizes of the plan.
    unsafe {
        let mut keys = DeviceBuffer::<f32>::uninitialized(scores.len())?;
        let found = DeviceBuffer::<f32>::uninitialized(slots)?;
        let positions = DeviceBuffer::<u32>::uninitialized(slots)?;
        let workspace = DeviceBuffer::<u8>::uninitialized(select.workspace_bytes())?;
        let rows = DeviceRows::contiguous(keys.as_device_ptr().as_ptr(), TEXTS, WORDS);
        let results = DeviceResults {
            keys: found.as_device_ptr().as_mut_ptr(),
            positions: positions.as_device_ptr().as_mut_ptr(),
        };
        // Four steps in stream order. None of them waits. In a real program the first one would be the model.
        keys.async_copy_from(&scores, &stream)?;
        select.run(stream.as_inner(), &rows, &results, workspace.as_device_ptr().as_mut_ptr())?;
        found.async_copy_to(&mut best, &stream)?;
        positions.async_copy_to(&mut words, &stream)?;
        stream.synchronize()?;
    }

    for text in 0..3 {
        let slots = text * K as usize..(text + 1) * K as usize;
        println!("text {text}: words {:?} with scores {:?}", &words[slots.clone()], &best[slots]);
    }
    // The CPU selects the same words, also among equal scores.
    let expected = select_k(Device::Cpu, &Rows::contiguous(&scores, WORDS as usize)?, K as usize, Best::Largest)?;
    assert_eq!((&best, &words), (&expected.keys, &expected.positions));
    println!("the CPU selects the same {} words", words.len());
    Ok(())
}
