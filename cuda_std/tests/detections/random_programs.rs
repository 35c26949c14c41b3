//! The race detector against vector clocks, on random programs of a block of two warps.
//!
//! A program is a list of events; each thread performs the events that concern it, in order. So every synchronisation
//! is well formed, and which accesses are ordered does not depend on the schedule.

use cuda_std::{
    Ptr, PtrMut,
    emulator::{Buffer, ViolationKind},
    global, kernel, shared, thread, warp,
};
use proptest::prelude::*;

/// Threads that access memory: four lanes of each warp. The other lanes take part in synchronisation only.
const ACTORS: [u32; 8] = [0, 1, 2, 3, 32, 33, 34, 35];
const THREADS: usize = 64;
/// Bytes of memory that the programs access.
const BYTES: u32 = 8;

#[derive(Debug, Clone)]
enum Event {
    /// One access: actor, whether it writes, first byte, size (1, 2 or 4).
    Access { actor: usize, write: bool, address: u32, size: u32 },
    /// `sync_warp` of some lanes of a warp.
    Warp { warp: u32, mask: u32 },
    /// `sync_threads`.
    Block,
}

/// Performs a thread's list of (operation, operand) pairs, which ends with operation 0: in shared memory, or in `words`
/// if there are any.
#[kernel]
unsafe fn interpret(programs: Ptr<[u32; 2]>, longest: u32, words: Option<PtrMut<u8>>) {
    let (t, memory) = (thread::thread_idx_x(), shared::dynamic::<u8>());
    let program = programs.wrapping_add((t * longest) as usize);
    // SAFETY: each thread has `longest` pairs; addresses are within 8 bytes and aligned. Races are intended.
    unsafe {
        if t == 0 {
            memory.cast::<u64>().store(0);
        }
        thread::sync_threads();
        for step in 0..longest {
            let [operation, operand] = global::load(program.add(step as usize));
            if let Some(words) = words
                && operation < 20
            {
                let word = words.wrapping_add(operand as usize);
                match operation {
                    1 => _ = global::load(word),
                    2 => _ = global::load(word.cast::<u16>()),
                    4 => _ = global::load(word.cast::<u32>()),
                    11 => global::store(word, 1),
                    12 => global::store(word.cast::<u16>(), 1),
                    14 => global::store(word.cast::<u32>(), 1),
                    _ => break,
                }
                continue;
            }
            let place = memory.add(operand);
            match operation {
                1 => drop(place.load()),
                2 => drop(place.cast::<u16>().load()),
                4 => drop(place.cast::<u32>().load()),
                11 => place.store(1),
                12 => place.cast::<u16>().store(1),
                14 => place.cast::<u32>().store(1),
                20 => warp::sync_warp(operand),
                21 => thread::sync_threads(),
                _ => break,
            }
        }
    }
}

/// Whether the detector finds a race in shared memory; it must find the same in global memory.
fn detected(events: &[Event]) -> bool {
    let [shared, global] = [false, true].map(|global| detected_in(events, global));
    assert_eq!(shared, global, "in shared and in global memory");
    shared
}

fn detected_in(events: &[Event], global: bool) -> bool {
    let mut programs = vec![Vec::new(); THREADS];
    for event in events {
        match *event {
            Event::Access { actor, write, address, size } => {
                programs[ACTORS[actor] as usize].push([size + 10 * u32::from(write), address]);
            }
            Event::Warp { warp, mask } => {
                for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
                    programs[(32 * warp + lane) as usize].push([20, mask]);
                }
            }
            Event::Block => programs.iter_mut().for_each(|program| program.push([21, 0])),
        }
    }
    let longest = programs.iter().map(Vec::len).max().unwrap_or(0).max(1);
    programs.iter_mut().for_each(|program| program.resize(longest, [0, 0]));
    let programs = Buffer::from_slice(&programs.concat());
    let mut words = Buffer::<u64>::new(BYTES as usize / 8);
    let words = global.then(|| words.as_mut_ptr().as_bytes());
    match launch!(Interpret { programs: programs.as_ptr(), longest: longest as u32, words }, 1, THREADS as u32) {
        Ok(_) => false,
        Err(violation) => {
            let expected = match *violation.kind {
                ViolationKind::SharedRace { .. } => !global,
                ViolationKind::GlobalRace { .. } => global,
                _ => false,
            };
            assert!(expected, "{violation}");
            true
        }
    }
}

/// Whether two accesses conflict and are not ordered, by vector clocks.
fn races(events: &[Event]) -> bool {
    // clocks[a][b]: number of events of thread b that are ordered before the next event of thread a.
    let mut clocks = vec![vec![0u32; THREADS]; THREADS];
    let mut accesses: Vec<(usize, u32, bool, u32, u32)> = Vec::new();
    let meet = |clocks: &mut Vec<Vec<u32>>, threads: &[usize]| {
        let joined: Vec<u32> = (0..THREADS).map(|b| threads.iter().map(|&a| clocks[a][b]).max().unwrap_or(0)).collect();
        for &a in threads {
            clocks[a].clone_from(&joined);
        }
    };
    for event in events {
        match *event {
            Event::Access { actor, write, address, size } => {
                let thread = ACTORS[actor] as usize;
                clocks[thread][thread] += 1;
                let now = &clocks[thread];
                for &(other, time, other_write, other_address, other_size) in &accesses {
                    let overlap = address < other_address + other_size && other_address < address + size;
                    if overlap && (write || other_write) && now[other] < time {
                        return true;
                    }
                }
                accesses.push((thread, now[thread], write, address, size));
            }
            Event::Warp { warp, mask } => {
                let threads: Vec<usize> =
                    (0..32).filter(|lane| mask >> lane & 1 == 1).map(|lane| (32 * warp + lane) as usize).collect();
                meet(&mut clocks, &threads);
            }
            Event::Block => meet(&mut clocks, &(0..THREADS).collect::<Vec<_>>()),
        }
    }
    false
}

fn access() -> impl Strategy<Value = Event> {
    (0..ACTORS.len(), prop::bool::weighted(0.3), 0..3u32, 0..BYTES).prop_map(|(actor, write, size, address)| {
        let size = 1 << size;
        Event::Access { actor, write, address: address / size * size, size }
    })
}

fn whole_warp() -> impl Strategy<Value = Event> {
    (0..2u32).prop_map(|warp| Event::Warp { warp, mask: u32::MAX })
}

fn part_of_a_warp() -> impl Strategy<Value = Event> {
    (0..2u32, 1..16u32).prop_map(|(warp, mask)| Event::Warp { warp, mask })
}

/// An event, synchronisation being `often` times as likely as access.
fn event(often: u32, parts: bool) -> impl Strategy<Value = Event> {
    let parts = if parts { often } else { 0 };
    prop_oneof![
        4 => access(),
        often => whole_warp(),
        parts + 1 => if parts > 0 { part_of_a_warp().boxed() } else { whole_warp().boxed() },
        often => Just(Event::Block),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// With barriers of whole warps and blocks the detector is exact.
    #[test]
    fn whole_warps_exactly(events in prop::collection::vec(event(2, false), 0..40)) {
        prop_assert_eq!(detected(&events), races(&events));
    }

    /// With barriers of parts of warps the detector reports no false race. It may miss a race among several readers.
    #[test]
    fn parts_of_warps_without_false_alarms(events in prop::collection::vec(event(4, true), 0..40)) {
        if !races(&events) {
            prop_assert!(!detected(&events));
        }
    }
}
