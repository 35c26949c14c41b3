//! The index file: loads it, and publishes a new version of the index when the file is replaced.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io, thread};

use warpann::io::Open;
use warpann::{AnyIndex, IndexWriter, Placement};

use crate::metrics::Metrics;

/// Time between two looks at the file.
const PERIOD: Duration = Duration::from_secs(1);

/// Modification time, length, and number in the file system: one of them changes when a file is replaced or written.
/// `None` without a file.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some((metadata.modified().ok()?, metadata.len(), number))
}

pub struct IndexFile {
    path: PathBuf,
    placement: Placement,
    /// The stamp before the last attempt to load the file.
    seen: Stamp,
}

impl IndexFile {
    /// Loads the index, of any kind, and searches in it once.
    ///
    /// # Errors
    /// Those of [`AnyIndex::load_with`], and those of a search in the index.
    pub fn open(path: PathBuf, placement: Placement) -> Result<(Self, AnyIndex<f32>), Box<dyn Error>> {
        // The stamp comes first: if the file changes while it is read, the next look sees another stamp.
        let seen = stamp(&path);
        let file = Self { path, placement, seen };
        let index = file.load()?;
        Ok((file, index))
    }

    /// Reads the file into memory. Mapped memory would change if somebody overwrites the file in place.
    fn load(&self) -> warpann::Result<AnyIndex<f32>> {
        let index = AnyIndex::load_with(&self.path, self.placement.clone(), None, Open::Read)?;
        // The first search brings the vectors to a GPU, and shows that the index can be searched.
        index.search(&vec![1.0; index.dim()], 1)?;
        Ok(index)
    }

    /// Starts a thread that looks at the file each second and publishes what it finds, until the process ends. The last
    /// good index stays if a file cannot be used.
    pub fn watch(mut self, mut writer: IndexWriter<AnyIndex<f32>>, metrics: Arc<Metrics>) -> io::Result<()> {
        let look = move || {
            loop {
                thread::sleep(PERIOD);
                let now = stamp(&self.path);
                if now == self.seen {
                    continue;
                }
                self.seen = now;
                let result = self.replace(&mut writer);
                metrics.reloaded(result.is_ok());
                match result {
                    Ok(()) => eprintln!("version {}: {}", writer.version(), self.path.display()),
                    Err(error) => eprintln!("the index of version {} stays: {error}", writer.version()),
                }
            }
        };
        thread::Builder::new().name("index file".into()).spawn(look).map(|_| ())
    }

    /// Loads the file and publishes its index. Searches that run keep the version in which they began.
    fn replace(&self, writer: &mut IndexWriter<AnyIndex<f32>>) -> Result<(), Box<dyn Error>> {
        let (next, dim) = (self.load()?, writer.current().dim());
        if next.dim() != dim {
            // Clients send vectors of the old dimension.
            let path = self.path.display();
            return Err(format!(
                "{path}: its dimension is {}; this server has {dim} until it starts again",
                next.dim()
            )
            .into());
        }
        writer.change(|index| {
            *index = next;
            Ok(())
        })
    }
}
