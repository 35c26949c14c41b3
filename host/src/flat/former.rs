//! The rows of a former version in host memory, which the next change takes over ([`crate::shared::former`]).

use std::sync::Arc;

use super::backend::FlatBackend;
use crate::random::gather;
use crate::shared::former::ChangedRows;
use crate::vectors::VectorSlice;
use crate::{Element, Result};

/// The back end of a former version.
pub(super) struct FormerRows {
    backend: Arc<dyn FlatBackend>,
    /// The rows from this one on are others, or gone.
    kept: usize,
    /// Rows that got other vectors.
    changed: ChangedRows,
}

impl FormerRows {
    /// The rows of a version that nothing has changed yet; `None` unless all are in host memory. A device brings rows
    /// up to date itself, by a journal (`FlatDevice::caught_up`).
    pub(super) fn of(backend: Arc<dyn FlatBackend>) -> Option<Self> {
        let kept = backend.host_rows()?.len();
        Some(FormerRows { backend, kept, changed: ChangedRows::default() })
    }

    /// Notes that the version has the first `len` rows only. Returns whether the rows are still of use.
    pub(super) fn truncate(&mut self, len: usize) -> bool {
        self.kept = self.kept.min(len);
        self.kept > 0
    }

    /// Notes that some of `rows` rows got other vectors. Returns whether the rows are still of use.
    pub(super) fn replace(&mut self, changed: impl Iterator<Item = u32>, rows: usize) -> bool {
        self.changed.add(changed);
        !self.changed.are_many(rows)
    }

    /// The rows, made equal to those of `current`; `None` if somebody else has them too. O(changed rows · dim).
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`](crate::Error::OutOfHostMemory).
    pub(super) fn caught_up<T: Element>(mut self, current: &dyn FlatBackend) -> Result<Option<Arc<dyn FlatBackend>>> {
        let (Some(own), Some(rows)) = (Arc::get_mut(&mut self.backend), current.host_rows()) else { return Ok(None) };
        let (dim, count) = (rows.dim(), rows.len());
        own.truncate(self.kept);
        let changed: Vec<usize> = self.changed.ascending().iter().map(|&row| row as usize).collect();
        let changed = &changed[..changed.partition_point(|&row| row < self.kept)];
        let numbers: Vec<u64> = changed.iter().map(|&row| row as u64).collect();
        let vectors: Vec<T> = gather(rows.components(), dim, changed)?;
        own.replace(&numbers, VectorSlice::of(&vectors, dim))?;
        own.add(rows.part(self.kept..count))?;
        Ok(Some(self.backend))
    }

    /// Bytes of host memory.
    pub(super) fn bytes(&self) -> u64 {
        self.backend.bytes().0 + self.changed.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::random::Random;
    use crate::{Device, FlatIndex, Metric};

    const DIM: usize = 3;

    type Model = BTreeMap<u64, Vec<f32>>;

    fn vectors(random: &mut Random, count: usize) -> Vec<f32> {
        (0..count * DIM).map(|_| 1.0 + random.below(9) as f32).collect()
    }

    /// Fails unless the index has the vectors of the model, and finds what an index finds that is made of them.
    fn check(index: &FlatIndex<f32>, model: &Model, random: &mut Random) {
        let ids: Vec<u64> = model.keys().copied().collect();
        assert_eq!(index.ids(), ids);
        model.iter().for_each(|(&id, vector)| assert_eq!(&index.vector(id).unwrap(), vector));
        let mut new = FlatIndex::<f32>::new(DIM, index.metric(), Device::Cpu).unwrap();
        new.add_with_ids(&model.values().flatten().copied().collect::<Vec<_>>(), &ids).unwrap();
        let queries = vectors(random, 4);
        assert_eq!(index.search(&queries, 5).unwrap(), new.search(&queries, 5).unwrap());
    }

    fn change(index: &mut FlatIndex<f32>, model: &mut Model, random: &mut Random) {
        let ids: Vec<u64> = model.keys().copied().collect();
        let new = vectors(random, 2);
        let named = |ids: Vec<u64>| ids.into_iter().zip(new.chunks(DIM).map(<[f32]>::to_vec));
        match random.below(9) {
            0 => {
                index.add(&new).unwrap();
                let next = ids[ids.len() - 1] + 1;
                model.extend(named(vec![next, next + 1]));
            }
            // The last rows go.
            1 => {
                let last = &ids[ids.len() - 1 - random.below(4)..];
                index.remove(last).unwrap();
                last.iter().for_each(|id| drop(model.remove(id)));
            }
            2 => {
                let id = ids[random.below(ids.len())];
                index.remove(&[id]).unwrap();
                model.remove(&id);
            }
            3 if random.below(6) == 0 => index.compact().unwrap(),
            // Known ids, those of removed vectors, and new ones.
            _ => {
                let ids = [random.below(300) as u64, 300 + random.below(20) as u64];
                index.upsert(&new, &ids).unwrap();
                model.extend(named(ids.to_vec()));
            }
        }
    }

    /// Versions follow each other, while some former ones are in use. None shows a change of a later one, whether its
    /// memory was copied or is that of a former version.
    #[test]
    fn versions_take_turns_and_stay_what_they_are() {
        for seed in 0..80 {
            let mut random = Random::new(seed);
            let mut index = FlatIndex::<f32>::new(DIM, Metric::OF_NUMBERS[seed as usize % 3], Device::Cpu).unwrap();
            index.add(&vectors(&mut random, 300)).unwrap();
            let mut model: Model = index.ids().into_iter().map(|id| (id, index.vector(id).unwrap())).collect();
            let mut held: Vec<(FlatIndex<f32>, Model)> = Vec::new();
            for version in 0..40 {
                let (mut next, before) = (index.snapshot(), model.clone());
                (0..1 + random.below(3)).for_each(|_| change(&mut next, &mut model, &mut random));
                let former = std::mem::replace(&mut index, next);
                if random.below(4) == 0 {
                    held.push((former, before));
                }
                if held.len() > random.below(4) {
                    let (former, before) = held.remove(0);
                    check(&former, &before, &mut random);
                }
                if version % 8 == 7 {
                    check(&index, &model, &mut random);
                }
            }
        }
    }
}
