//! The state of the driver: devices with their contexts, memory, modules, streams and events, and the amounts in use.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use cuda_loader::DriverInUse;
use cuda_std::emulator::{AnyKernel, Buffer};

use crate::calls::{
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED, OUT_OF_MEMORY,
    STREAM_CAPTURE_UNSUPPORTED,
};

/// The properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Product name of the device.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: i32,
    /// Largest number of bytes of shared memory of a block, after `cuFuncSetAttribute`.
    pub shared_bytes: i32,
    /// Size of the device memory in bytes.
    pub memory: u64,
    /// CUDA version of the driver, such as 12040. The driver reports the version of device 0.
    pub driver: i32,
    /// Whether the device has stream-ordered allocation.
    pub memory_pools: bool,
}

impl Default for Device {
    fn default() -> Self {
        Device {
            name: "emulated driver".to_owned(),
            capability: (8, 0),
            multiprocessors: 2,
            shared_bytes: 163 << 10,
            memory: 1 << 30,
            driver: 12_040,
            memory_pools: true,
        }
    }
}

/// The resources of a device that are in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of allocated device memory.
    pub bytes: u64,
    /// Number of allocations of device memory.
    pub allocations: usize,
    /// Bytes that memory pools keep for later allocations.
    pub kept_bytes: u64,
    /// Bytes of page-locked host memory that were allocated while the device's context was current.
    pub host_bytes: u64,
    /// Number of allocations of such memory.
    pub host_allocations: usize,
    /// Number of streams that exist.
    pub streams: usize,
    /// Number of events that exist.
    pub events: usize,
    /// Number of loaded modules.
    pub modules: usize,
    /// Number of those whose kernels first wait for the work ahead of them.
    pub waiting_modules: usize,
    /// Number of retentions of the primary context.
    pub retained: usize,
}

pub struct Owner {
    pub device: Device,
    pub retained: usize,
}

pub struct Allocation {
    pub device: usize,
    /// The pool that it came from.
    pub pool: Option<usize>,
    pub buffer: Buffer<u8>,
}

/// A memory pool. Any memory that it keeps serves any allocation, in parts or together.
pub struct Pool {
    pub device: usize,
    /// Bytes of its allocations.
    pub used: u64,
    /// Bytes that it took from the device and has not given back.
    pub reserved: u64,
    /// The pool gives back what it does not use of more than these bytes when somebody waits for the device.
    pub threshold: u64,
}

impl Pool {
    /// Gives unused memory back until at most `bytes` bytes are reserved.
    pub fn trim(&mut self, bytes: u64) {
        self.reserved = self.reserved.min(bytes.max(self.used));
    }
}

pub struct HostMemory {
    pub device: usize,
    pub memory: Box<[u64]>,
}

pub struct Event {
    pub device: usize,
    pub timed: bool,
    pub recorded: Option<Instant>,
}

pub struct Module {
    pub device: usize,
    pub entries: Vec<String>,
    /// Whether every kernel of the text first waits for the work ahead of it, and reads nothing by the path for what
    /// does not change.
    pub waits: bool,
    /// Bytes of the shared arrays that the text declares. Every entry counts all of them.
    pub static_shared: i32,
}

#[derive(Clone, Copy)]
pub struct Function {
    pub device: usize,
    pub module: usize,
    pub kernel: &'static dyn AnyKernel,
    /// Whether the kernel first waits for the work ahead of it.
    pub waits: bool,
    /// Bytes of dynamic shared memory that a launch may have.
    pub shared_bytes: i32,
    /// Bytes of static shared memory of the kernel.
    pub static_shared: i32,
    /// Whether a launch may have clusters of more blocks than all devices take.
    pub large_clusters: bool,
}

/// A piece of work of a stream, which can be done any number of times.
pub type Work = Arc<dyn Fn() -> Result<(), c_int> + Send + Sync>;

/// The work that a stream has received since its capture began.
pub struct Capture {
    /// The thread that began it.
    pub thread: ThreadId,
    pub work: Vec<Work>,
    /// Whether that thread made no call that may not be made during a capture.
    pub valid: bool,
}

#[derive(Default)]
pub struct State {
    pub initialised: bool,
    pub devices: Vec<Owner>,
    pub allocations: BTreeMap<usize, Allocation>,
    pub host: HashMap<usize, HostMemory>,
    /// The device of each stream.
    pub streams: HashMap<usize, usize>,
    /// The streams with work after which nobody has waited.
    pub busy: HashSet<usize>,
    pub pools: HashMap<usize, Pool>,
    pub events: HashMap<usize, Event>,
    /// The captures of streams.
    pub captures: HashMap<usize, Capture>,
    /// Graphs, and programs made of them.
    pub graphs: HashMap<usize, Vec<Work>>,
    pub modules: HashMap<usize, Module>,
    pub functions: HashMap<usize, Function>,
    pub violations: Vec<String>,
    handles: usize,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

thread_local! {
    /// The context that is current in this thread; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The primary context of device 0; the context of device i is this number plus i.
const FIRST_CONTEXT: usize = 0xC0_0000;
/// The first handle of other objects is this number plus one.
const FIRST_HANDLE: usize = 0xA000_0000;

pub fn create(devices: Vec<Device>) -> Result<(), DriverInUse> {
    let devices = devices.into_iter().map(|device| Owner { device, retained: 0 }).collect();
    STATE.set(Mutex::new(State { devices, ..State::default() })).map_err(|_| DriverInUse)
}

pub fn lock() -> MutexGuard<'static, State> {
    // Functions are available only after `create`. Before, a test that reads the usage gets a driver without devices.
    STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn current() -> usize {
    CURRENT.get()
}

/// Prints a violation and keeps it.
pub fn violation(text: String) {
    eprintln!("the emulated driver stopped this: {text}");
    lock().violations.push(text);
}

impl State {
    pub fn usage(&self, index: usize) -> Usage {
        let of = |device: usize| device == index;
        let allocations = self.allocations.values().filter(|allocation| of(allocation.device));
        let host = self.host.values().filter(|host| of(host.device));
        let modules = self.modules.values().filter(|module| of(module.device));
        Usage {
            bytes: allocations.clone().map(|allocation| allocation.buffer.len() as u64).sum(),
            allocations: allocations.count(),
            kept_bytes: self.pools.values().filter(|pool| of(pool.device)).map(|pool| pool.reserved - pool.used).sum(),
            host_bytes: host.clone().map(|host| size_of_val(&*host.memory) as u64).sum(),
            host_allocations: host.count(),
            streams: self.streams.values().filter(|&&device| of(device)).count(),
            events: self.events.values().filter(|event| of(event.device)).count(),
            modules: modules.clone().count(),
            waiting_modules: modules.filter(|module| module.waits).count(),
            retained: self.devices.get(index).map_or(0, |owner| owner.retained),
        }
    }

    /// A number that no earlier handle has.
    pub fn handle(&mut self) -> usize {
        self.handles += 16;
        FIRST_HANDLE + self.handles
    }

    /// The index of the device with this number. Fails if there is none.
    pub fn device(&self, ordinal: c_int) -> Result<usize, c_int> {
        if !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        let index = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        if index < self.devices.len() { Ok(index) } else { Err(INVALID_DEVICE) }
    }

    pub fn context_of(device: usize) -> usize {
        FIRST_CONTEXT + device
    }

    /// The device with this primary context. Fails if it is not retained.
    pub fn device_of(&self, context: usize) -> Result<usize, c_int> {
        let index = context.wrapping_sub(FIRST_CONTEXT);
        match self.devices.get(index) {
            Some(owner) if owner.retained > 0 => Ok(index),
            _ => Err(INVALID_CONTEXT),
        }
    }

    /// The device whose context is current in this thread. Fails if there is none.
    pub fn current(&self) -> Result<usize, c_int> {
        if !self.initialised {
            return Err(NOT_INITIALIZED);
        }
        self.device_of(CURRENT.get())
    }

    pub fn set_current(&self, context: usize) -> Result<(), c_int> {
        if context != 0 {
            self.device_of(context)?;
        }
        CURRENT.set(context);
        Ok(())
    }

    /// The device of a stream; the default stream belongs to the current device.
    pub fn stream(&self, stream: usize) -> Result<usize, c_int> {
        let current = self.current()?;
        if stream == 0 {
            return Ok(current);
        }
        match self.streams.get(&stream) {
            Some(&device) if device == current => Ok(device),
            _ => Err(INVALID_HANDLE),
        }
    }

    /// Fails if the calling thread captures a stream, and makes this capture fail: for calls that allocate or wait.
    pub fn may_wait(&mut self) -> Result<(), c_int> {
        let mut of_thread = self.captures.values_mut().filter(|capture| capture.thread == thread::current().id());
        match of_thread.next() {
            None => Ok(()),
            Some(capture) => {
                capture.valid = false;
                Err(STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Bytes of a device that neither allocations nor pools have.
    pub fn free_bytes(&self, device: usize) -> u64 {
        let usage = self.usage(device);
        self.devices[device].device.memory.saturating_sub(usage.bytes + usage.kept_bytes)
    }

    /// Allocates memory of a device, from one of its pools if one is given; returns its address.
    pub fn allocate(&mut self, device: usize, pool: Option<usize>, bytes: usize) -> Result<u64, c_int> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let free = self.free_bytes(device);
        let mut from = pool.and_then(|pool| self.pools.get_mut(&pool));
        let kept = from.as_ref().map_or(0, |pool| pool.reserved - pool.used);
        if (bytes as u64).saturating_sub(kept) > free {
            return Err(OUT_OF_MEMORY);
        }
        if let Some(pool) = &mut from {
            pool.used += bytes as u64;
            pool.reserved = pool.reserved.max(pool.used);
        }
        let mut buffer = Buffer::<u8>::new_poisoned(bytes);
        // The provenance is exposed, because copies and kernels receive the address as a number.
        let start = buffer.as_mut_ptr().expose_provenance();
        self.allocations.insert(start, Allocation { device, pool, buffer });
        Ok(start as u64)
    }

    /// Takes an allocation out, which the caller drops without the lock.
    pub fn free(&mut self, address: u64) -> Result<Allocation, c_int> {
        let allocation = self.allocations.remove(&(address as usize)).ok_or(INVALID_VALUE)?;
        if let Some(pool) = allocation.pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.used -= allocation.buffer.len() as u64;
        }
        Ok(allocation)
    }

    /// The calling thread has waited for work of a device: its pools give back what is above their thresholds.
    pub fn waited(&mut self, device: usize) {
        let of_device = self.pools.values_mut().filter(|pool| pool.device == device);
        of_device.for_each(|pool| pool.trim(pool.threshold));
    }

    /// The device whose allocation holds `bytes` bytes from `address` on.
    pub fn owner(&self, address: u64, bytes: usize) -> Option<usize> {
        let address = usize::try_from(address).ok()?;
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        let offset = address - start;
        (offset <= allocation.buffer.len() && bytes <= allocation.buffer.len() - offset).then_some(allocation.device)
    }
}
