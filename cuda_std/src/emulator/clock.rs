//! The lanes of a warp, and the logical clock that orders their accesses.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// A logical clock that ticks at each collective.
pub struct WarpClock {
    /// Number of collectives so far, from 1: the time of an access that is made now.
    pub tick: u32,
    /// The last collective of all lanes: what any lane did before is ordered before what any does now.
    pub all: u32,
    /// `[i][j]`: what lane j did before this tick is ordered before what lane i does now. Filled only by collectives of
    /// fewer lanes.
    pub pairs: Option<Box<[[u32; LANES]; LANES]>>,
}

impl WarpClock {
    pub fn new() -> Self {
        Self { tick: 1, all: 0, pairs: None }
    }

    /// Counts a collective in which all lanes of the warp met.
    #[inline(always)]
    pub fn meet_all(&mut self) {
        self.tick += 1;
        self.all = self.tick;
    }

    /// The lanes of `group` met.
    pub fn meet(&mut self, group: u32) {
        self.tick += 1;
        let tick = self.tick;
        let pairs = self.pairs.get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        // Merges the clocks: each lane of the group takes the latest time that any of them has for each lane.
        let mut known = [0; LANES];
        for lane in lanes(group) {
            for (known, &pair) in known.iter_mut().zip(&pairs[lane]) {
                *known = pair.max(*known);
            }
        }
        for lane in lanes(group) {
            known[lane] = tick;
        }
        for lane in lanes(group) {
            pairs[lane] = known;
        }
    }
}

/// The lanes of a mask, ascending.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}
