//! The arguments of the program.

use std::env;
use std::path::PathBuf;
use std::str::FromStr;

use warpann::Placement;

const USAGE: &str = "usage: warpann-server INDEX [--listen ADDRESS] [--device DEVICE] [--max-k K] [--waiting REQUESTS]
  INDEX                an index file of f32 vectors, of any kind
  --listen ADDRESS     address and port; port 0 takes a free one (127.0.0.1:8080)
  --device DEVICE      cpu, gpu, gpu:1, .. or auto; a GPU needs the feature `cuda` (auto)
  --max-k K            largest k of a request (1000)
  --waiting REQUESTS   largest number of requests that wait (65536)";

pub struct Arguments {
    pub index: PathBuf,
    pub listen: String,
    pub placement: Placement,
    pub max_k: usize,
    pub waiting: usize,
}

impl Arguments {
    /// Reads the arguments of this process.
    ///
    /// # Errors
    /// A message with the fault and the usage.
    pub fn of_process() -> Result<Self, String> {
        Self::parse(env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()))
            .map_err(|fault| format!("{fault}\n{USAGE}"))
    }

    fn parse(mut texts: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut index, mut listen, mut placement) = (None, "127.0.0.1:8080".to_owned(), Placement::default());
        let (mut max_k, mut waiting) = (1000, 1 << 16);
        while let Some(text) = texts.next() {
            if !text.starts_with("--") {
                if index.replace(text.into()).is_some() {
                    return Err("one index file is needed, not two".into());
                }
                continue;
            }
            let value = texts.next().ok_or_else(|| format!("{text} has no value, or is unknown"))?;
            match &text[..] {
                "--listen" => listen = value,
                "--device" => placement = parsed(&text, &value)?,
                "--max-k" => max_k = parsed(&text, &value)?,
                "--waiting" => waiting = parsed(&text, &value)?,
                _ => return Err(format!("{text} is unknown")),
            }
        }
        Ok(Self { index: index.ok_or("an index file is needed")?, listen, placement, max_k, waiting })
    }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|error| format!("{name} {value}: {error}"))
}
