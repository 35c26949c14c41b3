//! Times of selections, k-means and sorts with data in GPU memory, for `warpann bench` and the benchmarks of the
//! repository. They need what the library keeps private: its events, its plans and the table of its methods. Not a part
//! of the interface.

mod gpu;
mod sort;

pub use gpu::{DISPATCH_HEADER, KMeansBench, KMeansRun, Method, SelectionBench};
pub use sort::{SortBench, SortRun};

use crate::Result;
use crate::device::limits::Limits;
use crate::device::open::open_gpu;
use crate::device::runtime::{Memory, Runtime, Stream};
use crate::device::scratch::{Layout, Reserved, Scratch};

/// A size larger than the L2 cache of any GPU. Copying this number of bytes replaces the content of the cache.
const FLUSH_BYTES: usize = 256 << 20;

/// A GPU with a stream, and the memory of a measurement.
struct Bench {
    device: Runtime,
    stream: Stream,
    memory: Memory,
    /// Two areas to copy between.
    flush: [Reserved<u8>; 2],
}

impl Bench {
    /// Opens GPU `index` and allocates the arrays that `reserve` reserves.
    fn new<R>(index: usize, reserve: impl FnOnce(&mut Layout, &Limits) -> R) -> Result<(Self, R)> {
        let device = open_gpu(index)?;
        let mut layout = Layout::default();
        let flush = [(); 2].map(|()| layout.array(FLUSH_BYTES));
        let reserved = reserve(&mut layout, device.limits());
        let memory = device.allocate(layout.bytes())?;
        let stream = device.stream()?;
        Ok((Self { device, stream, memory, flush }, reserved))
    }

    fn scratch(&self) -> Scratch {
        self.device.scratch(&self.memory)
    }

    /// Fills the L2 cache with other data.
    fn flush(&self) -> Result<()> {
        let [from, to] = self.flush.map(|area| self.scratch().at(area));
        // SAFETY: the layout reserved both areas, which do not overlap.
        unsafe { self.device.copy(&self.stream, to, from) }
    }

    /// Runs `work` twice without measuring, then `repeat` times, at least once, with device events. Each time `before`
    /// runs and the L2 cache is filled with other data. That copy keeps the stream busy while the host enqueues the
    /// measured launches, so that the times, which are milliseconds, do not include the host's work.
    fn times(
        &self,
        repeat: usize,
        mut before: impl FnMut() -> Result<()>,
        mut work: impl FnMut() -> Result<()>,
    ) -> Result<Vec<f64>> {
        let _current = self.device.enter()?;
        let (start, end) = (self.device.gpu().timer()?, self.device.gpu().timer()?);
        let stream = self.stream.of_gpu();
        work()?;
        work()?;
        let run = |_| {
            before()?;
            self.flush()?;
            start.record(stream)?;
            work()?;
            end.record(stream)?;
            end.synchronize()?;
            Ok(f64::from(end.milliseconds_since(&start)?))
        };
        (0..repeat.max(1)).map(run).collect()
    }
}
