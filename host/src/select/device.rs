//! k-selection as a step of another GPU program: keys and results in device memory, launches on the caller's stream.
//!
//! [`DeviceSelect`] is a plan for batches of up to a given number of rows and columns. Making it loads its kernels. A
//! run enqueues a few launches on a stream and returns. It neither allocates nor waits, so it may also be captured into
//! a CUDA graph. The caller provides the memory that the launches need. Results have the bits of
//! [`select_k`](super::select_k)'s.
//!
//! Addresses and streams are plain driver values, as in every CUDA library. The example uses cust, which
//! [`warpann::cust`](crate::cust) re-exports:
//!
//! ```no_run
//! use warpann::cust::memory::DeviceBuffer;
//! use warpann::cust::prelude::*;
//! use warpann::select::device::{DeviceResults, DeviceRows, DeviceSelect};
//! use warpann::select::{Algorithm, Best};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (rows, columns, k) = (1000u32, 50_000u32, 10u32);
//! let host: Vec<f32> = (0..rows * columns).map(|i| (i as f32).sin()).collect();
//!
//! // The device's primary context: what cust's quick_init gives, and what warpann works in.
//! let _context = warpann::cust::quick_init()?;
//! let stream = Stream::new(StreamFlags::DEFAULT, None)?;
//! let select = DeviceSelect::<f32>::new(0, rows, columns, k, Best::Smallest, Algorithm::Auto)?;
//! let slots = (rows * k) as usize;
//! let keys = DeviceBuffer::from_slice(&host)?;
//! // SAFETY: nothing is read before the selection has written it.
//! let (found_keys, found_positions, workspace) = unsafe {
//!     (
//!         DeviceBuffer::<f32>::uninitialized(slots)?,
//!         DeviceBuffer::<u32>::uninitialized(slots)?,
//!         DeviceBuffer::<u8>::uninitialized(select.workspace_bytes())?,
//!     )
//! };
//!
//! let batch = DeviceRows::contiguous(keys.as_device_ptr().as_ptr(), rows, columns);
//! let results = DeviceResults {
//!     keys: found_keys.as_device_ptr().as_mut_ptr(),
//!     positions: found_positions.as_device_ptr().as_mut_ptr(),
//! };
//! // SAFETY: the buffers have the shapes that they are said to have, and live until the stream is done.
//! unsafe { select.run(stream.as_inner(), &batch, &results, workspace.as_device_ptr().as_mut_ptr())? };
//! stream.synchronize()?;
//! println!("smallest of row 0: {:?}", &found_keys.as_host_vec()?[..k as usize]);
//! # Ok(())
//! # }
//! ```

use std::marker::PhantomData;
use std::ptr;

use cuda_std::ptr::TO_END;
use cuda_std::{Ptr, PtrMut};

use super::gpu as select;
use super::gpu::{Select, SelectPlan, strided_len};
use super::rows::check_columns;
use super::{Algorithm, Best, Key, MAX_COLUMNS, Payload};
use crate::device::limits::Limits;
use crate::device::queue::{Preload, Queue};
use crate::device::runtime::Runtime;
use crate::device::scratch::{Layout, Scratch};
use crate::{Error, Result};

#[cfg(feature = "cuda")]
pub use cust::sys::CUstream;

/// A batch of rows of keys in device memory. Pointers are device addresses; the functions of this type do not read
/// them.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRows<K> {
    keys: Ptr<K>,
    rows: u32,
    columns: u32,
    stride: u64,
    starts: Option<Ptr<u64>>,
    lengths: Option<Ptr<u32>>,
}

impl<K: Key> DeviceRows<K> {
    /// `rows` rows of `columns` keys, one after the other.
    pub fn contiguous(keys: *const K, rows: u32, columns: u32) -> Self {
        Self::strided(keys, rows, columns, columns.into())
    }

    /// `rows` rows of `columns` keys, row r from key r · `stride` on. Rows may overlap (`stride` < `columns`).
    pub fn strided(keys: *const K, rows: u32, columns: u32, stride: u64) -> Self {
        let keys = Ptr::new(keys, strided_len(rows as usize, columns as usize, stride));
        Self { keys, rows, columns, stride, starts: None, lengths: None }
    }

    /// `rows` rows of any length (compressed sparse rows): row r is the keys from `starts[r]` up to `starts[r + 1]`;
    /// `starts`, in device memory, ascends and has `rows` + 1 entries. If a row has more than `columns` keys, only the
    /// first `columns` count.
    pub fn ragged(keys: *const K, starts: *const u64, rows: u32, columns: u32) -> Self {
        // The end of the last row is only in device memory.
        let (keys, starts) = (Ptr::new(keys, TO_END), Ptr::new(starts, rows as usize + 1));
        Self { keys, rows, columns, stride: 0, starts: Some(starts), lengths: None }
    }

    /// Only the first `lengths[r]` keys of row r; `lengths`, in device memory, has `rows` entries. A length above that
    /// of the row means the whole row, and a null address means the whole of every row.
    pub fn with_lengths(self, lengths: *const u32) -> Self {
        let lengths = (!lengths.is_null()).then(|| Ptr::new(lengths, self.rows as usize));
        Self { lengths, ..self }
    }
}

/// The arrays for results in device memory: rows · k entries each, row-major, best first. A slot without a key gets the
/// worst key ([`Key::worst`]) and [`NO_POSITION`](super::NO_POSITION).
#[derive(Debug, Clone, Copy)]
pub struct DeviceResults<K> {
    /// The selected keys, with −0 as +0 and NaN as the canonical NaN.
    pub keys: *mut K,
    /// Positions of the selected keys in their row, from 0.
    pub positions: *mut u32,
}

/// A plan for selecting the best k of each row of a batch, on one GPU. Any number of threads and streams may use it at
/// once, if each run has a separate workspace.
///
/// The library works in the device's primary context (cust's default, and the CUDA runtime's): streams and addresses
/// must belong to it. A call does not change the current context of the calling thread.
#[cfg(feature = "cuda")]
pub struct DeviceSelect<K: Key> {
    planned: Planned<K>,
}

#[cfg(feature = "cuda")]
impl<K: Key> DeviceSelect<K> {
    /// A plan for the best `k` of each of up to `rows` rows of up to `columns` keys on GPU number `gpu`. k may exceed
    /// `columns`. Loads the kernels, which takes up to some tenths of a second the first time in a process.
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::BadRow`] for columns above [`MAX_COLUMNS`]; [`Error::Mismatch`] if the algorithm does
    /// not select keys of this type; [`Error::LaunchLimit`] for a k above [`MAX_COLUMNS`], or more rows or results than
    /// a launch can number; and the errors of opening the device.
    pub fn new(gpu: usize, rows: u32, columns: u32, k: u32, best: Best, algorithm: Algorithm) -> Result<Self> {
        let shape = SelectShape { rows, columns, k, best };
        shape.check::<K>(algorithm)?;
        Ok(Self { planned: Planned::new(crate::device::open::open_gpu(gpu)?, shape, algorithm)? })
    }

    /// Bytes of device memory that the workspace of a run needs; may be 0.
    pub fn workspace_bytes(&self) -> usize {
        self.planned.workspace_bytes
    }

    /// Enqueues the selection from `rows` and returns at once. `stream` may be null (the default stream). After an
    /// error the results are unspecified.
    ///
    /// # Errors
    /// [`Error::TooMany`] for more rows or columns than were planned; [`Error::Driver`] if a launch is refused.
    ///
    /// # Safety
    /// Until the stream has done the work:
    /// - `stream` and all addresses belong to the primary context of the plan's device (or are accessible from it);
    /// - the keys, starts and lengths of `rows` are readable and aligned to their size, and no other work writes them;
    /// - `results` has room for rows · k keys and positions, and `workspace`, aligned to 16 bytes, for
    ///   [`Self::workspace_bytes`]; no other work uses them, and they overlap neither each other nor `rows`.
    pub unsafe fn run(
        &self,
        stream: CUstream,
        rows: &DeviceRows<K>,
        results: &DeviceResults<K>,
        workspace: *mut u8,
    ) -> Result<()> {
        let _current = self.planned.runtime.enter()?;
        // SAFETY: the same contract.
        unsafe { self.planned.run(&self.queue(stream), rows, results, workspace) }
    }

    /// Enqueues the look-up of payloads and returns at once. Each slot of `found` gets the payload of the key at the
    /// slot's entry of `positions`, or [`Payload::NONE`] if the slot is empty. `payloads` has the layout of the keys of
    /// `rows`: the payload of a key is at the index of the key. Call it after [`Self::run`] on the same stream.
    ///
    /// # Errors
    /// As [`Self::run`].
    ///
    /// # Safety
    /// As [`Self::run`], with `payloads` in place of the keys and `found` in place of the results; `found` has room for
    /// rows · k. When the work starts, `positions` holds the positions that a run of this plan found in these rows.
    pub unsafe fn gather_payloads<P: Payload>(
        &self,
        stream: CUstream,
        rows: &DeviceRows<K>,
        positions: *const u32,
        payloads: *const P,
        found: *mut P,
    ) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.planned.gather(&self.queue(stream), rows, positions, payloads, found) }
    }

    fn queue(&self, stream: CUstream) -> crate::device::cuda::CallersStream<'_> {
        crate::device::cuda::CallersStream::new(self.planned.runtime.gpu(), stream.cast())
    }
}

/// The parameters of a plan.
#[derive(Debug, Clone, Copy)]
struct SelectShape {
    rows: u32,
    columns: u32,
    k: u32,
    best: Best,
}

impl SelectShape {
    /// Checks the parameters that can be checked without a device.
    fn check<K: Key>(&self, algorithm: Algorithm) -> Result<()> {
        let limit = MAX_COLUMNS as u64;
        if self.k == 0 {
            return Err(Error::Zero { what: "k" });
        }
        check_columns(0, self.columns.into())?;
        if u64::from(self.k) > limit {
            return Err(Error::LaunchLimit {
                kernel: select::kernel_name::<K>(),
                what: "k",
                asked: self.k.into(),
                limit,
            });
        }
        select::check_algorithm::<K>(algorithm)
    }
}

/// [`DeviceSelect`] on any device: the emulator runs the same plans.
struct Planned<K> {
    runtime: Runtime,
    shape: SelectShape,
    plan: SelectPlan,
    workspace_bytes: usize,
    key: PhantomData<fn(K)>,
}

impl<K: Key> Planned<K> {
    fn new(runtime: Runtime, shape: SelectShape, algorithm: Algorithm) -> Result<Self> {
        shape.check::<K>(algorithm)?;
        let SelectShape { rows, columns, k, .. } = shape;
        Self::by(runtime, shape, |layout, limits| SelectPlan::new::<K>(layout, rows, columns, k, algorithm, limits))
    }

    /// Makes a plan by the function `plan`, and loads its kernels.
    fn by(
        runtime: Runtime,
        shape: SelectShape,
        plan: impl FnOnce(&mut Layout, &Limits) -> Result<SelectPlan>,
    ) -> Result<Self> {
        let mut layout = Layout::default();
        let plan = plan(&mut layout, runtime.limits())?;
        let planned = Self { runtime, shape, plan, workspace_bytes: layout.bytes(), key: PhantomData };
        let (rows, results) = (
            DeviceRows::contiguous(ptr::null(), shape.rows, shape.columns),
            DeviceResults { keys: ptr::null_mut(), positions: ptr::null_mut() },
        );
        let loads = Preload(&planned.runtime);
        // SAFETY: nothing is launched, so nothing is read or written.
        unsafe {
            planned.run(&loads, &rows, &results, ptr::null_mut())?;
            planned.gather::<u32>(&loads, &rows, ptr::null(), ptr::null(), ptr::null_mut())?;
            planned.gather::<u64>(&loads, &rows, ptr::null(), ptr::null(), ptr::null_mut())?;
        }
        Ok(planned)
    }

    /// The batch in the form of the launches, with `results` as its results.
    fn batch(&self, rows: &DeviceRows<K>, results: &DeviceResults<K>) -> Result<Select<K>> {
        for (what, asked, limit) in [
            ("rows for this plan", rows.rows, self.shape.rows),
            ("columns for this plan", rows.columns, self.shape.columns),
        ] {
            if asked > limit {
                return Err(Error::TooMany { what, asked: asked.into(), limit: limit.into() });
            }
        }
        let slots = self.slots(rows);
        Ok(Select {
            keys: rows.keys,
            ids: None,
            row_stride: rows.stride,
            starts: rows.starts,
            lengths: rows.lengths,
            columns: rows.columns,
            rows: rows.rows,
            k: self.shape.k,
            best: self.shape.best,
            out_keys: PtrMut::new(results.keys, slots),
            out_ids: PtrMut::new(results.positions, slots),
        })
    }

    /// Number of results of a batch.
    fn slots(&self, rows: &DeviceRows<K>) -> usize {
        (rows.rows as usize).saturating_mul(self.shape.k as usize)
    }

    /// # Safety
    /// As [`DeviceSelect::run`], for this device and queue.
    unsafe fn run(
        &self,
        queue: &impl Queue,
        rows: &DeviceRows<K>,
        results: &DeviceResults<K>,
        workspace: *mut u8,
    ) -> Result<()> {
        let batch = self.batch(rows, results)?;
        let scratch = Scratch::new(PtrMut::new(workspace, self.workspace_bytes));
        // SAFETY: the caller promises the shapes. The plan is valid for every batch of at most its size, because the
        // scratch memory is divided by rows, and a segment that starts past the end of its row is empty.
        unsafe { select::enqueue(queue, &batch, &self.plan, scratch) }
    }

    /// # Safety
    /// As [`DeviceSelect::gather_payloads`], for this device and queue.
    unsafe fn gather<P: Payload>(
        &self,
        queue: &impl Queue,
        rows: &DeviceRows<K>,
        positions: *const u32,
        payloads: *const P,
        found: *mut P,
    ) -> Result<()> {
        let batch = self.batch(rows, &DeviceResults { keys: ptr::null_mut(), positions: ptr::null_mut() })?;
        let slots = self.slots(rows);
        let (positions, found) = (Ptr::new(positions, slots), PtrMut::new(found, slots));
        // Payloads have the layout of the keys.
        let payloads = Ptr::new(payloads, rows.keys.len());
        // SAFETY: as the caller promises.
        unsafe { select::enqueue_gather(queue, &batch, positions, payloads, found) }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use half::{bf16, f16};
    use test_random::Random;

    use super::*;
    use crate::device::limits::{Limits, Products};
    use crate::device::queue::OnStream;
    use crate::device::runtime::{Memory, Runtime, Stream};
    use crate::select::NO_POSITION;
    use crate::select::gpu::dispatch::Method;

    const STREAM: OnStream<'_> = OnStream { runtime: &Runtime::EMULATOR, stream: &Stream::EMULATOR };

    /// A key type whose keys can be made from numbers.
    trait TestKey: Key {
        /// A key from a small set of values, so that there are ties. The set has NaN and infinities if the type has
        /// them.
        fn of(number: u32) -> Self;
        fn value(self) -> f64;
    }

    macro_rules! float_key {
        ($($type:ty, $from:expr;)*) => {$(
            impl TestKey for $type {
                fn of(number: u32) -> Self {
                    let from: fn(f32) -> Self = $from;
                    from(match number % 97 {
                        0 => f32::NAN,
                        1 => f32::INFINITY,
                        2 => f32::NEG_INFINITY,
                        3 => -0.0,
                        small => small as f32 - 50.0,
                    })
                }
                fn value(self) -> f64 {
                    f64::from(self)
                }
            }
        )*};
    }
    float_key! {
        f32, |value| value;
        f16, f16::from_f32;
        bf16, bf16::from_f32;
    }

    impl TestKey for i32 {
        fn of(number: u32) -> Self {
            (number % 97) as i32 - 50
        }
        fn value(self) -> f64 {
            f64::from(self)
        }
    }

    impl TestKey for u32 {
        fn of(number: u32) -> Self {
            number % 97
        }
        fn value(self) -> f64 {
            f64::from(self)
        }
    }

    /// Numbers of 22 bits.
    fn random(count: usize, seed: u32) -> Vec<u32> {
        let mut random = Random::new(seed.into());
        (0..count).map(|_| random.below(1 << 22) as u32).collect()
    }

    /// Positions of the best k by a stable sort.
    fn expected<K: TestKey>(row: &[K], k: u32, best: Best) -> Vec<u32> {
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (row[a as usize].value(), row[b as usize].value());
            let numbers = if best == Best::Smallest { a.partial_cmp(&b) } else { b.partial_cmp(&a) };
            numbers
                .unwrap_or_else(|| if a.is_nan() == b.is_nan() { Ordering::Equal } else { a.is_nan().cmp(&b.is_nan()) })
        });
        order.resize(k as usize, NO_POSITION);
        order
    }

    /// Values in the emulator's device memory. A kernel that leaves them is stopped.
    struct OnDevice<T> {
        /// The memory of the values.
        _memory: Memory,
        values: PtrMut<T>,
    }

    impl<T: bytemuck::Pod> OnDevice<T> {
        fn room(len: usize) -> Result<Self> {
            let memory = Runtime::EMULATOR.allocate(len * size_of::<T>())?;
            let values = Runtime::EMULATOR.scratch(&memory).at(Layout::default().array(len));
            Ok(Self { _memory: memory, values })
        }
        fn of(host: &[T]) -> Result<Self> {
            let copy = Self::room(host.len())?;
            // SAFETY: the allocation has room for the values.
            unsafe { Runtime::EMULATOR.copy_to_device(STREAM.stream, copy.values, host)? };
            Ok(copy)
        }
        fn at(&self) -> *mut T {
            *self.values
        }
        fn read(&self) -> Result<Vec<T>> {
            let mut host = vec![T::zeroed(); self.values.len()];
            // SAFETY: the allocation has this number of values. Values that were not written are poison; all bit
            // patterns are valid.
            unsafe { Runtime::EMULATOR.copy_to_host(STREAM.stream, &mut host, self.values)? };
            Ok(host)
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Lie {
        Contiguous,
        Apart,
        Overlapping,
        Ragged,
        RaggedShort,
    }
    const LAYOUTS: [Lie; 5] = [Lie::Contiguous, Lie::Apart, Lie::Overlapping, Lie::Ragged, Lie::RaggedShort];

    /// Runs the plan on a batch of `rows` rows and checks the result key by key.
    fn run<K: TestKey>(
        planned: &Planned<K>,
        workspace: &OnDevice<u8>,
        (rows, columns): (u32, u32),
        lie: Lie,
        seed: u32,
    ) -> Result<()> {
        let SelectShape { k, best, .. } = planned.shape;
        let ragged = matches!(lie, Lie::Ragged | Lie::RaggedShort);
        let stride = match lie {
            Lie::Apart => columns as usize + 5,
            Lie::Overlapping => columns as usize / 3,
            _ => columns as usize,
        };
        let draw = random(2 * rows as usize + 2, !seed);
        // The start of each row, and the end. Ragged rows start at the third key.
        let mut starts = vec![if ragged { 3 } else { 0u64 }];
        for row in 0..rows as usize {
            let length = if ragged && row > 0 { u64::from(draw[row] % (columns + 1)) } else { stride as u64 };
            starts.push(starts[row] + length);
        }
        let lengths: Vec<u32> = (0..rows as usize)
            .map(|row| match lie {
                Lie::RaggedShort => draw[rows as usize + row] % ((starts[row + 1] - starts[row]) as u32 + 1),
                Lie::Ragged => (starts[row + 1] - starts[row]) as u32,
                _ => columns,
            })
            .collect();
        let end = (0..rows as usize).map(|row| starts[row] as usize + lengths[row] as usize).max().unwrap_or(0);
        let host: Vec<K> = random(end, seed).into_iter().map(K::of).collect();
        let keys = OnDevice::of(&host)?;
        let (device_starts, device_lengths) = (OnDevice::of(&starts)?, OnDevice::of(&lengths)?);
        let batch = match lie {
            Lie::Contiguous => DeviceRows::contiguous(keys.at(), rows, columns),
            Lie::Apart | Lie::Overlapping => DeviceRows::strided(keys.at(), rows, columns, stride as u64),
            Lie::Ragged => DeviceRows::ragged(keys.at(), device_starts.at(), rows, columns),
            Lie::RaggedShort => {
                DeviceRows::ragged(keys.at(), device_starts.at(), rows, columns).with_lengths(device_lengths.at())
            }
        };
        let slots = (rows * k) as usize;
        let (found_keys, found_positions) = (OnDevice::<K>::room(slots)?, OnDevice::<u32>::room(slots)?);
        let results = DeviceResults { keys: found_keys.at(), positions: found_positions.at() };
        let ids: Vec<u64> = (0..host.len() as u64).map(|at| at << 32 | 7).collect();
        let small_ids: Vec<u32> = (0..host.len() as u32).map(|at| at * 2 + 1).collect();
        let (payloads, small_payloads) = (OnDevice::of(&ids)?, OnDevice::of(&small_ids)?);
        let (found_ids, found_small) = (OnDevice::<u64>::room(slots)?, OnDevice::<u32>::room(slots)?);
        // SAFETY: every buffer has the shape that the call gives it.
        unsafe {
            planned.run(&STREAM, &batch, &results, workspace.at())?;
            planned.gather(&STREAM, &batch, found_positions.at(), payloads.at(), found_ids.at())?;
            planned.gather(&STREAM, &batch, found_positions.at(), small_payloads.at(), found_small.at())?;
        }
        let (found_keys, found_positions) = (found_keys.read()?, found_positions.read()?);
        let (found_ids, found_small) = (found_ids.read()?, found_small.read()?);
        for row in 0..rows as usize {
            let start = starts[row] as usize;
            let keys = &host[start..start + lengths[row] as usize];
            for (place, position) in expected(keys, k, best).into_iter().enumerate() {
                let slot = row * k as usize + place;
                let at = format!("{:?}, {lie:?}, row {row} of {}, place {place}", planned.plan, keys.len());
                assert_eq!(found_positions[slot], position, "{at}");
                let (key, id, small) = match keys.get(position as usize) {
                    None => (K::worst(best).value(), u64::NONE, u32::NONE),
                    Some(key) => (key.value(), ids[start + position as usize], small_ids[start + position as usize]),
                };
                let found = found_keys[slot].value();
                assert!(found == key || (found.is_nan() && key.is_nan()), "{at}: {found} and {key}");
                assert!(found != 0.0 || found.is_sign_positive(), "{at}");
                assert_eq!((found_ids[slot], found_small[slot]), (id, small), "{at}");
            }
        }
        Ok(())
    }

    /// Runs every layout in turn with one plan and one workspace, for batches of all sizes up to the plan's. Returns
    /// the plan as text.
    fn check<K: TestKey>((rows, columns, k): (u32, u32, u32), best: Best, method: Option<Method>) -> Result<String> {
        let shape = SelectShape { rows, columns, k, best };
        let planned = match method {
            None => Planned::<K>::new(Runtime::EMULATOR, shape, Algorithm::Auto)?,
            Some(method) => Planned::<K>::by(Runtime::EMULATOR, shape, |layout, limits| {
                Ok(SelectPlan::of_method(layout, rows, columns, k, method, limits))
            })?,
        };
        let workspace = OnDevice::<u8>::room(planned.workspace_bytes)?;
        for (turn, lie) in LAYOUTS.into_iter().enumerate() {
            let smaller = (rows - turn as u32 % 2 * u32::from(rows > 1), columns - columns / 3 * (turn as u32 / 3));
            run(&planned, &workspace, smaller, lie, 1 + turn as u32)?;
        }
        run(&planned, &workspace, (0, columns), Lie::Contiguous, 9)?;
        Ok(format!("{:?}", planned.plan))
    }

    fn is_by(plan: &str, steps: &str) {
        assert!(plan.contains(&format!("steps: {steps} ")), "{plan}");
    }

    /// Checks few and many keys, k below and above the length of a row, and rows without keys.
    fn check_type<K: TestKey>(best: Best) -> Result<()> {
        for shape in [(3, 70, 10), (2, 30, 40), (2, 0, 3)] {
            for threads in [32, 128] {
                check::<K>(shape, best, Some(Method::Block { threads }))?;
                check::<K>(shape, best, Some(Method::Short { threads }))?;
            }
            check::<K>(shape, best, Some(Method::Grid))?;
            check::<K>(shape, best, Some(Method::Cluster { blocks: 1 }))?;
            check::<K>(shape, best, Some(Method::Cluster { blocks: 4 }))?;
            check::<K>(shape, best, None)?;
        }
        Ok(())
    }

    #[test]
    fn keys_f32() -> Result<()> {
        check_type::<f32>(Best::Smallest)?;
        check_type::<f32>(Best::Largest)
    }

    #[test]
    fn keys_f16() -> Result<()> {
        check_type::<f16>(Best::Largest)
    }

    #[test]
    fn keys_bf16() -> Result<()> {
        check_type::<bf16>(Best::Smallest)
    }

    #[test]
    fn keys_i32() -> Result<()> {
        check_type::<i32>(Best::Smallest)
    }

    #[test]
    fn keys_u32() -> Result<()> {
        check_type::<u32>(Best::Largest)
    }

    #[test]
    fn warp_select_in_segments_and_passes() -> Result<()> {
        // One piece; k beyond the row; rows of no keys; two passes; two passes that end before k.
        for shape in [(3, 70, 10), (2, 30, 40), (2, 0, 3), (3, 33, 1), (2, 0, 1), (1, 1100, 1050), (1, 40, 1050)] {
            is_by(&check::<f32>(shape, Best::Largest, Some(Method::Warp))?, "Warp");
        }
        let plan = check::<f32>((1, 2500, 5), Best::Smallest, Some(Method::Warp))?;
        assert_eq!(plan.matches("segments:").count(), 1, "one level of pieces before the whole rows: {plan}");
        Ok(())
    }

    #[test]
    fn long_rows() -> Result<()> {
        // Sampled thresholds, in one block and in several.
        is_by(&check::<f32>((2, 9000, 20), Best::Smallest, Some(Method::Grid))?, "Grid");
        is_by(&check::<bf16>((1, 9000, 20), Best::Largest, Some(Method::Block { threads: 256 }))?, "Block");
        Ok(())
    }

    #[test]
    fn short_rows() -> Result<()> {
        // The row in registers at once; in several turns; the largest k that the least keys of warps bound; too few
        // keys for all threads; too large a k.
        is_by(&check::<f32>((3, 4097, 20), Best::Smallest, Some(Method::Short { threads: 128 }))?, "Short");
        is_by(&check::<f16>((2, 2500, 20), Best::Largest, Some(Method::Short { threads: 32 }))?, "Short");
        is_by(&check::<i32>((2, 3000, 48), Best::Smallest, Some(Method::Short { threads: 64 }))?, "Short");
        is_by(&check::<u32>((2, 600, 100), Best::Largest, Some(Method::Short { threads: 512 }))?, "Short");
        is_by(&check::<f32>((2, 600, 49), Best::Largest, Some(Method::Short { threads: 64 }))?, "Block");
        Ok(())
    }

    #[test]
    fn clusters() -> Result<()> {
        // Parts of many turns, and of one; k beyond the row; one cluster for each multiprocessor, and more.
        is_by(&check::<f32>((2, 9000, 20), Best::Smallest, Some(Method::Cluster { blocks: 2 }))?, "Cluster");
        is_by(&check::<bf16>((3, 9000, 20), Best::Largest, Some(Method::Cluster { blocks: 1 }))?, "Cluster");
        is_by(&check::<i32>((2, 3000, 900), Best::Largest, Some(Method::Cluster { blocks: 8 }))?, "Cluster");
        is_by(&check::<f16>((1, 700, 720), Best::Smallest, Some(Method::Cluster { blocks: 16 }))?, "Cluster");
        // The survivors do not fit.
        is_by(&check::<u32>((1, 9000, 3100), Best::Smallest, Some(Method::Cluster { blocks: 2 }))?, "List");
        Ok(())
    }

    #[test]
    fn devices_without_clusters_take_other_methods() {
        let h200 = |largest_cluster| Limits {
            device: "NVIDIA H200".into(),
            multiprocessors: 132,
            shared_bytes: 227 << 10,
            emulated: false,
            products: Products::Groups,
            largest_cluster,
        };
        let plan = |rows, columns, k, blocks, largest| {
            let method = Method::Cluster { blocks };
            let mut layout = Layout::default();
            let plan = SelectPlan::of_method(&mut layout, rows, columns, k, method, &h200(largest));
            (format!("{plan:?}"), layout.bytes())
        };
        let (found, bytes) = plan(1, 262_144, 2048, 16, 16);
        assert!(found.contains("Cluster { blocks: 16, threads: 512"), "{found}");
        assert!(plan(1, 262_144, 2048, 4, 16).0.contains("Cluster { blocks: 4, threads: 1024"));
        assert_eq!(bytes, 0, "the selection by clusters has no scratch");
        for (rows, columns, k) in [(256, 65_536, 2048), (2048, 131_072, 1024), (10_000, 128_000, 2048)] {
            let (found, _) = plan(rows, columns, k, 1, 8);
            assert!(found.contains("Cluster { blocks: 1, threads: 512"), "{found}");
        }
        for (blocks, largest, steps) in [(16, 8, "Grid"), (2, 0, "Grid"), (1, 0, "Block")] {
            is_by(&plan(1, 262_144, 2048, blocks, largest).0, steps);
        }
        is_by(&plan(1, 262_144, 20_000, 16, 16).0, "List");
    }

    #[test]
    fn long_lists() -> Result<()> {
        // The emulator's shared memory ends at about 3,000 survivors.
        is_by(&check::<i32>((2, 4200, 3500), Best::Smallest, Some(Method::Grid))?, "List");
        is_by(&check::<f32>((1, 4000, 4100), Best::Largest, Some(Method::Grid))?, "List");
        is_by(&check::<f16>((1, 9000, 3100), Best::Smallest, None)?, "List");
        Ok(())
    }

    #[test]
    fn k_beyond_the_row_is_no_matter_for_many_passes() -> Result<()> {
        let plan = check::<f32>((1, 10, 20_000), Best::Smallest, None)?;
        assert!(!plan.contains("Warp"), "{plan}");
        Ok(())
    }

    #[test]
    fn what_cannot_be_planned_or_run_is_refused() -> Result<()> {
        let shape = SelectShape { rows: 2, columns: 8, k: 3, best: Best::Smallest };
        let refused = |shape, algorithm| Planned::<i32>::new(Runtime::EMULATOR, shape, algorithm).err();
        assert!(matches!(refused(SelectShape { k: 0, ..shape }, Algorithm::Auto), Some(Error::Zero { what: "k" })));
        assert!(matches!(
            refused(SelectShape { columns: 1 << 31, ..shape }, Algorithm::Auto),
            Some(Error::BadRow { what: "length", row: 0, value: 0x8000_0000, most: 0x7fff_ffff, .. })
        ));
        assert!(matches!(
            refused(SelectShape { k: 1 << 31, ..shape }, Algorithm::Auto),
            Some(Error::LaunchLimit {
                kernel: "threshold_select_i32",
                what: "k",
                asked: 0x8000_0000,
                limit: 0x7fff_ffff
            })
        ));
        assert!(matches!(
            refused(SelectShape { rows: u32::MAX, ..shape }, Algorithm::Auto),
            Some(Error::LaunchLimit { what: "grid x", asked: 0xffff_ffff, limit: 0x7fff_ffff, .. })
        ));
        assert!(matches!(
            refused(shape, Algorithm::WarpSelect),
            Some(Error::Mismatch { what: "key type for warp-select", expected: "f32", actual: "i32" })
        ));
        let planned = Planned::<i32>::new(Runtime::EMULATOR, shape, Algorithm::ThresholdSelect)?;
        let results = DeviceResults { keys: ptr::null_mut(), positions: ptr::null_mut() };
        for (rows, columns, what, asked, limit) in
            [(3, 8, "rows for this plan", 3, 2), (2, 9, "columns for this plan", 9, 8)]
        {
            let batch = DeviceRows::contiguous(ptr::null(), rows, columns);
            // SAFETY: the call is refused, nothing is read or written.
            let refused = unsafe { planned.run(&STREAM, &batch, &results, ptr::null_mut()) };
            let Err(Error::TooMany { what: w, asked: a, limit: l }) = refused else { panic!("{refused:?}") };
            assert_eq!((w, a, l), (what, asked, limit));
        }
        Ok(())
    }

    #[test]
    fn plans_are_shared_by_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Planned<f16>>();
        #[cfg(feature = "cuda")]
        shared::<DeviceSelect<f16>>();
    }
}
