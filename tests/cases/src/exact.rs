//! Cases of exact search: the k best by (canonical distance, lower id), to the bit, whatever the vectors.

use test_random::Random;
use warpann::{Device, ElementType, FlatIndex, GraphIndex, Metric, Neighbors};

use crate::vectors::{self, ALL_OF_F32, Component, Form, Vectors, VectorsShape};
use crate::{by_element, reference};

/// A random case of exact search.
#[derive(Debug, Clone)]
pub struct ExactCase {
    /// Metric of the search.
    pub metric: Metric,
    /// Element type of the vectors.
    pub element: ElementType,
    /// Dimension, number of vectors and of queries.
    pub shape: VectorsShape,
    /// Number of neighbours per query.
    pub k: usize,
    /// Distribution of the vectors.
    pub form: Form,
    /// Vectors of the first of two additions.
    pub first: usize,
    /// Bytes, where the index has a budget that need not be enough.
    pub budget: Option<u64>,
}

impl ExactCase {
    /// A random case of about `work` products of components at most.
    pub fn draw(random: &mut Random, element: ElementType, work: usize) -> ExactCase {
        let shape = vectors::shape(random, work, 600);
        let n = shape.n;
        // Mostly below n, sometimes past it; sometimes next to a queue length of the selection kernels.
        let k = match random.below(4) {
            0 => 1,
            1 => (random.pick(&[32, 64, 128, 256, 1024]) + random.below(3) - 1).min(n + 3),
            2 => 1 + random.below(20),
            _ => 1 + random.size((n + 2).min(1500)),
        };
        let range = vectors::range(element, ALL_OF_F32);
        let mut form = vectors::form(random, range);
        if range.is_some_and(|(_, greatest)| greatest == ALL_OF_F32.1) && random.once_in(6) {
            form.magnitude = vectors::edge_of_f32(random, shape.dim);
        }
        ExactCase {
            metric: random.pick(Metric::of_element(element)),
            element,
            shape,
            k,
            form,
            first: random.below(n + 1),
            budget: random.once_in(8).then(|| 1 << (10 + random.below(16))),
        }
    }

    /// The vectors of the case.
    pub fn vectors<T: Component>(&self, random: &mut Random) -> Vectors<T> {
        let VectorsShape { dim, n, nq } = self.shape;
        vectors::vectors(&self.form, dim, n, nq, random)
    }

    /// Searches on a device.
    ///
    /// # Errors
    /// Those of the library; if the case has a budget, it may be too small for a device.
    pub fn search<T: Component>(&self, vectors: &Vectors<T>, device: Device) -> warpann::Result<Neighbors> {
        let dim = self.shape.dim;
        let mut builder = FlatIndex::<T>::builder(dim).metric(self.metric).device(device);
        if let Some(bytes) = self.budget {
            builder = builder.memory_budget(bytes);
        }
        let mut index = builder.build()?;
        index.add(&vectors.base[..self.first * dim])?;
        index.add(&vectors.base[self.first * dim..])?;
        index.search(&vectors.queries, self.k)
    }

    /// Whether graphs have the metric.
    pub fn has_graphs(&self) -> bool {
        Metric::OF_NUMBERS.contains(&self.metric)
    }

    /// As [`search`](Self::search), in a graph that the device makes. A part of the vectors makes the graph, and the
    /// rest is inserted.
    ///
    /// # Errors
    /// Those of the library.
    pub fn walk<T: Component>(
        &self,
        vectors: &Vectors<T>,
        degree: usize,
        device: Device,
    ) -> warpann::Result<Neighbors> {
        let VectorsShape { dim, n, .. } = self.shape;
        let builder = GraphIndex::<T>::builder(dim).metric(self.metric).device(device);
        let mut index = builder.degree(degree).beam(16).exact_ratio(0).build()?;
        let part = n * 2 / 3 * dim;
        index.add(&vectors.base[..part])?;
        index.add(&vectors.base[part..])?;
        index.search(&vectors.queries, self.k)
    }

    /// The case with its vectors, where the element type is known at run time only.
    pub fn filled(self, random: &mut Random) -> Box<dyn Filled> {
        fn filled<T: Component>(case: ExactCase, random: &mut Random) -> Box<dyn Filled> {
            let vectors = case.vectors::<T>(random);
            Box::new((case, vectors))
        }
        by_element!(self.element, filled(self, random))
    }
}

/// A case with its vectors.
pub trait Filled {
    /// The results by definition.
    fn defined(&self) -> Neighbors;
    /// See [`ExactCase::search`].
    ///
    /// # Errors
    /// Those of the library.
    fn search(&self, device: Device) -> warpann::Result<Neighbors>;
    /// See [`ExactCase::has_graphs`].
    fn has_graphs(&self) -> bool;
    /// See [`ExactCase::walk`].
    ///
    /// # Errors
    /// Those of the library.
    fn walk(&self, degree: usize, device: Device) -> warpann::Result<Neighbors>;
    /// The first slot that no walk may return ([`Base::first_unsound`](crate::reference::Base::first_unsound)).
    fn first_unsound(&self, found: &Neighbors) -> Option<usize>;
}

impl<T: Component> Filled for (ExactCase, Vectors<T>) {
    fn defined(&self) -> Neighbors {
        let (ExactCase { metric, shape, k, .. }, vectors) = self;
        reference::Base::new(*metric, shape.dim, &vectors.exact_base).neighbors(&vectors.exact_queries, *k)
    }

    fn search(&self, device: Device) -> warpann::Result<Neighbors> {
        self.0.search(&self.1, device)
    }

    fn has_graphs(&self) -> bool {
        self.0.has_graphs()
    }

    fn walk(&self, degree: usize, device: Device) -> warpann::Result<Neighbors> {
        self.0.walk(&self.1, degree, device)
    }

    fn first_unsound(&self, found: &Neighbors) -> Option<usize> {
        let (ExactCase { metric, shape, k, .. }, vectors) = self;
        let base = reference::Base::new(*metric, shape.dim, &vectors.exact_base);
        base.first_unsound(&vectors.exact_queries, shape.n.min(*k), found)
    }
}
