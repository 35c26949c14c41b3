//! What needs the inside: threads. The rest is in the repository's `tests`, for every device.

use super::*;

fn rows(count: usize) -> Vec<f32> {
    let mut random = Random::new(40);
    (0..count).map(|_| (random.unit() * 8.0 - 4.0) as f32).collect()
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (dim, count) = (13, 5000);
    let rows = rows(count * dim);
    let weights: Vec<f32> = rows[..count].iter().map(|x| x.abs()).collect();
    let plain = KMeans::new(40).iterations(4).labels(true).device(Device::Cpu);
    let settings = [
        plain.clone(),
        plain.clone().start(Start::PlusPlus).points_per_centroid(Some(50)),
        plain.clone().balanced(Some(1.1)).spherical(true),
    ];
    for settings in settings {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| settings.train_watched(&rows, dim, Some(&weights), &mut |_| {}).unwrap())
        };
        let one = with(1);
        for threads in [2, 3, 8] {
            assert_eq!(with(threads), one, "{threads} threads, {settings:?}");
        }
    }
}

#[test]
fn watchers_see_every_iteration() {
    let rows = rows(600);
    let mut seen = Vec::new();
    let settings = KMeans::new(6).iterations(3).points_per_centroid(Some(20)).device(Device::Cpu);
    let found = settings.train_watched(&rows, 2, None, &mut |progress| seen.push(*progress)).unwrap();
    assert_eq!(seen.iter().map(|p| p.iteration).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(seen.iter().map(|p| p.objective).collect::<Vec<_>>(), found.objectives);
    // 120 of 300 points.
    assert!(seen.iter().all(|p| p.mean == 20.0 && f64::from(p.largest) >= p.mean), "{seen:?}");
    assert_eq!(seen[2].largest, *found.sizes.iter().max().unwrap());
    assert_eq!(found.sizes.iter().sum::<u32>(), 120);
    assert_eq!((found.labels, found.device), (None, Device::Cpu.into()));
}
