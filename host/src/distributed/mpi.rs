//! [`Ranks`] over MPI.
//!
//! Collectives use MPI's broadcast and single messages, in pieces: MPI counts with 32-bit integers, and results may
//! have more bytes. MPI's error handling is the default one: an operation that fails, for example because a process has
//! died, ends all ranks.

use std::marker::PhantomData;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Root, Source};

use super::Ranks;
use crate::{Error, Result};

/// Largest number of bytes of one message.
const PIECE: usize = 1 << 30;

/// The group of all processes that one `mpirun` started. In a process that `mpirun` did not start, the group has a
/// single rank.
///
/// Dropping this value ends MPI; it waits for the other ranks to drop theirs. If a panic drops it, all ranks are
/// aborted, because they may be waiting for this rank.
pub struct Mpi {
    world: SimpleCommunicator,
    local_rank: usize,
    _universe: Universe,
    /// Keeps the value on the thread that started MPI, which alone may call MPI.
    _thread: PhantomData<*const ()>,
}

impl Mpi {
    /// Starts MPI in this process.
    ///
    /// # Errors
    /// [`Error::MpiStarted`] if MPI was started before in this process.
    pub fn start() -> Result<Self> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled).ok_or(Error::MpiStarted)?;
        let world = universe.world();
        let local_rank = world.split_shared(world.rank()).rank() as usize;
        Ok(Self { world, local_rank, _universe: universe, _thread: PhantomData })
    }

    /// The number of this rank among those on the same machine, from 0. Use it to choose a GPU.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }
}

impl Ranks for Mpi {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn count(&self) -> usize {
        self.world.size() as usize
    }

    fn broadcast(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let root = self.world.process_at_rank(0);
        let mut len = bytes.len() as u64;
        root.broadcast_into(&mut len);
        bytes.resize(len as usize, 0);
        bytes.chunks_mut(PIECE).for_each(|piece| root.broadcast_into(piece));
        bytes
    }

    fn gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if self.world.rank() > 0 {
            let root = self.world.process_at_rank(0);
            root.send(&(bytes.len() as u64));
            bytes.chunks(PIECE).for_each(|piece| root.send(piece));
            return Vec::new();
        }
        let receive = |rank: i32| {
            let from = self.world.process_at_rank(rank);
            let mut bytes = vec![0u8; from.receive::<u64>().0 as usize];
            bytes.chunks_mut(PIECE).for_each(|piece| {
                from.receive_into(piece);
            });
            bytes
        };
        std::iter::once(bytes).chain((1..self.world.size()).map(receive)).collect()
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.abort(101);
        }
    }
}
