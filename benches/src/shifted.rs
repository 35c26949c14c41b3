//! The grid of shifted sort: near triangles and vertices of a mesh for many points in space (Park 2019, table 4),
//! compared with a KD-tree on the same data.
//!
//! The mesh is a sphere with bumps, of as many triangles as asked for; queries lie evenly in a cube around it. Searched
//! are the vertices in three dimensions, and the triangles' bounding boxes in six, in both forms of the report. Times
//! are those of the library's call, queries and results in host memory.
//!
//! `recall` is measured on a sample by exact search; a line behind the row says how much farther the last neighbour is
//! than the true one. A row is right if the distances of the sample are those of its neighbours, ascending, no
//! neighbour twice; a row of the KD-tree if besides its neighbours are the true ones, but for what f32 cannot tell
//! apart. The tree has as many threads as `--tree-threads` says: two, unless said otherwise.

use test_random::Random;
use warpann::Neighbors;
use warpann::mesh::{BoxForm, Mesh};
use warpann::shifted::{Quality, ShiftedIndex};
use warpann_measure::Times;

use crate::Outcome;
use crate::record::{Measured, Record, print};
use crate::set::count;
use crate::vectors::all_admitted;

/// Arguments of `shifted`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Triangles of the mesh, about.
    #[arg(long, default_value_t = 40_000, value_parser = count)]
    triangles: usize,
    /// Number of queries.
    #[arg(long, default_value_t = 1 << 23, value_parser = count)]
    queries: usize,
    /// Numbers of neighbours to measure.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16", value_parser = count)]
    k: Vec<usize>,
    /// Shifted copies; unless given, the library's choice.
    #[arg(long, value_parser = count)]
    shifts: Option<usize>,
    /// Vectors to look at in each copy; unless given, the library's choice.
    #[arg(long, value_parser = count)]
    neighborhood: Option<usize>,
    /// Queries that are searched exactly, to compare with.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    sample: usize,
    /// Queries for the KD-tree: the first of all; all unless given.
    #[cfg(feature = "peers")]
    #[arg(long, value_parser = count)]
    tree_queries: Option<usize>,
    /// Threads of the KD-tree.
    #[cfg(feature = "peers")]
    #[arg(long, default_value_t = 2, value_parser = count)]
    tree_threads: usize,
}

/// How much farther away than the true neighbour one of a tree may be that computes in f32.
const ROUNDING: f64 = 1e-5;

/// One set of vectors to search in.
struct Set {
    name: &'static str,
    dim: usize,
    base: Vec<f32>,
    queries: Vec<f32>,
}

/// Measures all cases of the grid.
pub fn run(args: &Args, record: &mut Record) -> Outcome {
    let (triangles, queries) = record.quick_or((2_000, 500), (args.triangles, args.queries));
    let mesh = bumpy_sphere(triangles);
    let points = cube(queries);
    let sets = [
        Set { name: "vertices", dim: 3, base: mesh.points().to_vec(), queries: points.clone() },
        boxes(&mesh, &points, BoxForm::MinMax),
        boxes(&mesh, &points, BoxForm::MinExtent),
    ];
    sets.iter().try_for_each(|set| Grid { args, set }.run(record))
}

fn boxes(mesh: &Mesh, points: &[f32], form: BoxForm) -> Set {
    Set { name: form.name(), dim: 6, base: mesh.boxes(form), queries: form.points(points) }
}

struct Grid<'a> {
    args: &'a Args,
    set: &'a Set,
}

impl Grid<'_> {
    fn run(&self, record: &mut Record) -> Outcome {
        let Self { args, set } = *self;
        let (device, repeat) = (record.device(), record.repeat(5));
        let mut builder = ShiftedIndex::builder(set.dim).device(device);
        if let Some(shifts) = args.shifts {
            builder = builder.shifts(shifts);
        }
        if let Some(positions) = args.neighborhood {
            builder = builder.neighborhood(positions);
        }
        let mut index = builder.clone().build()?;
        let times = Times::measure(1, repeat, || {
            index = builder.clone().build()?;
            index.add(&set.base)
        })?;
        let (case, shifts) = (self.case(), index.shifts());
        let (bytes, all) = (size_of_val(&set.base[..]) as f64, index.len() == set.base.len() / set.dim);
        record.add(Measured::new(format!("shifted-build {case} shifts={shifts}"), 0, times, bytes, all))?;
        let queries = set.queries.len() / set.dim;
        for &k in record.quick_or(&[2, 8][..], &args.k) {
            let mut found = places(queries, k);
            let search = || index.search_into(&set.queries, k, &mut found.ids, &mut found.distances);
            let times = Times::measure(1, repeat, search)?;
            let case = format!("shifted {case} nq={queries} shifts={shifts}");
            self.record(record, &index, &found, Measured::new(case, k, times, self.bytes(&found), false), false)?;
            #[cfg(feature = "peers")]
            self.tree(record, &index, k)?;
        }
        let k = 8;
        let (times, found) = Times::with_result(1, repeat, || index.self_join(k))?;
        let quality = index.quality(&found, None, args.sample, device)?;
        let admitted = self.admitted(&set.base, &found, index.len());
        let case = format!("shifted-join {case} shifts={shifts}");
        record.add(Measured::new(case, k, times, self.bytes(&found), admitted).recall(quality.recall))
    }

    /// Bytes of the queries and of their results.
    fn bytes(&self, found: &Neighbors) -> f64 {
        (found.queries() * self.set.dim * size_of::<f32>() + found.ids.len() * 8) as f64
    }

    /// The first words of a case.
    fn case(&self) -> String {
        let Set { name, dim, base, .. } = self.set;
        format!("{name} {}x{dim} f32", base.len() / dim)
    }

    /// Adds a row with what was found of the first queries, and a line about its quality.
    fn record(
        &self,
        record: &mut Record,
        index: &ShiftedIndex,
        found: &Neighbors,
        measured: Measured,
        exact: bool,
    ) -> Outcome {
        let queries = &self.set.queries[..found.queries() * self.set.dim];
        let quality = index.quality(found, Some(queries), self.args.sample, record.device())?;
        let admitted = self.admitted(queries, found, self.args.sample);
        let none_is_farther = quality.epsilon.max <= ROUNDING && quality.epsilon.unbounded == 0;
        let verified = admitted && (!exact || none_is_farther);
        record.add(Measured { verified, ..measured.recall(quality.recall) })?;
        let Quality { queries, epsilon, .. } = quality;
        let mean =
            format_args!("{:.5} in the mean, {:.5} for 99 %, {:.5} at most", epsilon.mean, epsilon.p99, epsilon.max);
        print(format_args!("  epsilon {mean}; {} of {queries} queries without bound\n", epsilon.unbounded))
    }

    /// Whether the answers to `sample` of `queries` may be approximate ones.
    fn admitted(&self, queries: &[f32], found: &Neighbors, sample: usize) -> bool {
        let Set { dim, base, .. } = self.set;
        let stored = |id: u64| base.chunks_exact(*dim).nth(usize::try_from(id).ok()?).map(<[f32]>::to_vec);
        let step = (found.queries() / sample.max(1)).max(1);
        all_admitted(queries, found, (found.queries(), step), stored)
    }

    /// The KD-tree, exact, on some threads of the CPU.
    #[cfg(feature = "peers")]
    fn tree(&self, record: &mut Record, index: &ShiftedIndex, k: usize) -> Outcome {
        use rayon::ThreadPoolBuilder;
        use rayon::prelude::*;

        use crate::Failure;
        use crate::peers::{KD_TREE, kd_tree, search};

        let Self { args, set } = *self;
        let (dim, all) = (set.dim, set.queries.len() / set.dim);
        let count = args.tree_queries.unwrap_or(all).min(all);
        let Some(tree) = kd_tree(&set.base, dim) else { return Ok(()) };
        let pool = ThreadPoolBuilder::new().num_threads(args.tree_threads).build().map_err(Failure::Threads)?;
        let (queries, mut found) = (&set.queries[..count * dim], places(count, k));
        let times = Times::measure(0, 1, || {
            pool.install(|| search(tree.as_ref(), queries, dim, 0, &mut found));
            Outcome::Ok(())
        })?;
        // Its distances are sums in f32, and so is its order: what is compared are the canonical ones of the vectors it
        // names.
        let slots = found.ids.par_chunks_exact_mut(k).zip(found.distances.par_chunks_exact_mut(k));
        queries.par_chunks_exact(dim).zip(slots).for_each(|(query, (ids, distances))| {
            let canonical = |&id: &u64| {
                let point = usize::try_from(id).ok().and_then(|id| set.base.chunks_exact(dim).nth(id));
                (point.map_or(f32::INFINITY, |point| warpann::metric::canonical(warpann::Metric::L2, query, point)), id)
            };
            let mut pairs: Vec<(f32, u64)> = ids.iter().map(canonical).collect();
            pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            for (place, pair) in pairs.into_iter().enumerate() {
                (distances[place], ids[place]) = pair;
            }
        });
        let case = format!("shifted {} nq={count} threads={}", self.case(), args.tree_threads);
        let measured = Measured::new(case, k, times, self.bytes(&found), false);
        self.record(record, index, &found, measured.by(KD_TREE), true)
    }
}

/// Places for `k` neighbours of each query.
fn places(queries: usize, k: usize) -> Neighbors {
    Neighbors { k, ids: vec![warpann::NONE; queries * k], distances: vec![0.0; queries * k] }
}

/// A sphere of about `triangles` triangles between `2 n` meridians and `n` circles of latitude, with bumps and a little
/// noise.
fn bumpy_sphere(triangles: usize) -> Mesh {
    let rings = ((triangles as f64 / 4.0).sqrt() as usize).max(2);
    let sectors = 2 * rings;
    let mut random = Random::new(1);
    let mut vertex = |ring: usize, sector: usize| {
        let (sin, cos) = (std::f64::consts::PI * ring as f64 / rings as f64).sin_cos();
        let turn = std::f64::consts::TAU * sector as f64 / sectors as f64;
        let bumps = 0.15 * (5.0 * turn).sin() * sin + 0.1 * (9.0 * cos).cos();
        let radius = 1.0 + bumps + 0.01 * (random.unit() - 0.5);
        [radius * sin * turn.cos(), radius * sin * turn.sin(), radius * cos].map(|x| x as f32)
    };
    let mut mesh = Mesh::default();
    mesh.vertices.push(vertex(0, 0));
    for ring in 1..rings {
        mesh.vertices.extend((0..sectors).map(|sector| vertex(ring, sector)));
    }
    mesh.vertices.push(vertex(rings, 0));
    // Vertex of a ring; the poles are rings of one.
    let last = mesh.vertices.len() - 1;
    let at = |ring: usize, sector: usize| match ring {
        0 => 0,
        _ if ring == rings => last as u32,
        _ => (1 + (ring - 1) * sectors + sector % sectors) as u32,
    };
    for ring in 0..rings {
        for sector in 0..sectors {
            let [a, b, c, d] = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(down, on)| at(ring + down, sector + on));
            if ring > 0 {
                mesh.triangles.push([a, b, c]);
            }
            if ring + 1 < rings {
                mesh.triangles.push([b, d, c]);
            }
        }
    }
    mesh
}

/// Points that lie evenly in a cube a little larger than the sphere, row-major.
fn cube(points: usize) -> Vec<f32> {
    let mut random = Random::new(2);
    (0..3 * points).map(|_| (2.8 * random.unit() - 1.4) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sphere_is_closed() {
        let mesh = bumpy_sphere(2_000);
        assert!((1_800..=2_000).contains(&mesh.triangles.len()), "{}", mesh.triangles.len());
        // Every edge belongs to two triangles, which run through it in opposite directions; Euler's formula holds.
        let edges = |turn: usize| mesh.triangles.iter().map(move |corners| (corners[turn], corners[(turn + 1) % 3]));
        let mut directed: Vec<(u32, u32)> = (0..3).flat_map(edges).collect();
        directed.sort_unstable();
        let mut unique = directed.clone();
        unique.dedup();
        assert_eq!(unique.len(), directed.len());
        assert!(directed.iter().all(|&(a, b)| a != b && directed.binary_search(&(b, a)).is_ok()));
        assert_eq!(mesh.vertices.len() + mesh.triangles.len() - directed.len() / 2, 2);
        let radii = mesh.vertices.iter().map(|v| v.iter().map(|x| x * x).sum::<f32>().sqrt());
        assert!(radii.into_iter().all(|radius| (0.7..1.3).contains(&radius)));
    }
}
