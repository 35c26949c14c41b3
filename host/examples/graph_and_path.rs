//! A k-NN graph of pictures, its components, and the path that turns one picture into another by the smallest steps.
//!
//! ```sh
//! cargo run --release --example graph_and_path
//! ```
//!
//! The pictures show a disc or a ring at every place of a small field. Discs at adjacent places differ less than a disc
//! and a ring at one place, so the graph has two components. A path between two discs moves the disc through the field.

use warpann::knn_graph::KnnGraph;
use warpann::{Device, FlatIndex, Metric};

/// Pixels of a side of a picture.
const SIDE: usize = 24;
/// Places of a shape along one side, and their distance from the edge.
const PLACES: usize = 14;
const MARGIN: usize = 5;

/// The picture of a shape whose pixels have distances from `inner` to 4.5 of the place (x, y). Grey at the edges, so
/// that a step of one pixel is a small change.
fn picture(x: usize, y: usize, inner: f32) -> Vec<u8> {
    let shade = |pixel: usize| {
        let (dx, dy) = ((pixel % SIDE) as f32 - (MARGIN + x) as f32, (pixel / SIDE) as f32 - (MARGIN + y) as f32);
        let radius = dx.hypot(dy);
        (255.0 * (4.5 - radius).min(radius - inner).clamp(0.0, 1.0)) as u8
    };
    (0..SIDE * SIDE).map(shade).collect()
}

/// Prints pictures beside each other.
fn show(pictures: &[&[u8]]) {
    for row in 0..SIDE {
        let line = |picture: &&[u8]| -> String {
            picture[row * SIDE..][..SIDE].iter().map(|&shade| [' ', '.', 'o', '#'][usize::from(shade) / 64]).collect()
        };
        println!("{}", pictures.iter().map(line).collect::<Vec<_>>().join("|"));
    }
}

fn main() -> Result<(), warpann::Error> {
    // First the discs, then the rings: node y · PLACES + x, and the same with PLACES² more.
    let places = || (0..PLACES * PLACES).map(|place| (place % PLACES, place / PLACES));
    let discs = places().flat_map(|(x, y)| picture(x, y, -1.0));
    let base: Vec<u8> = discs.chain(places().flat_map(|(x, y)| picture(x, y, 3.0))).collect();
    let dim = SIDE * SIDE;

    // The exact graph of the 3 nearest other pictures of each.
    let mut index = FlatIndex::<u8>::new(dim, Metric::L2, Device::Auto)?;
    index.add(&base)?;
    let (graph, _) = KnnGraph::new(3).run(&index, &base)?;
    let components = graph.components();
    println!("{} pictures, {} edges, components of {:?} pictures", graph.len(), graph.edges(), components.sizes);
    assert_eq!(components.sizes, [PLACES * PLACES; 2].map(|size| size as u64));

    // From the upper left corner to the lower right one.
    let (first, last) = (0, PLACES * PLACES - 1);
    let path = graph.path(&base, dim, Metric::L2, first as u64, last as u64)?;
    let at = |node: u64| &base[node as usize * dim..][..dim];
    let middle = path.nodes.len() / 2;
    show(&[at(path.nodes[0]), at(path.nodes[middle]), at(path.nodes[path.nodes.len() - 1])]);

    // Every step of the path moves the disc by one pixel. The direct step is much larger.
    let place = |node: u64| (node as usize % PLACES, node as usize / PLACES);
    for step in path.nodes.windows(2) {
        let ((x, y), (to_x, to_y)) = (place(step[0]), place(step[1]));
        assert_eq!(x.abs_diff(to_x) + y.abs_diff(to_y), 1, "one pixel");
    }
    let direct = index.search(at(first as u64), base.len() / dim)?;
    let direct = direct.found(0).find(|&(id, _)| id == last as u64).map(|(_, distance)| distance);
    let (largest, direct) =
        (path.largest.expect("the path has edges"), direct.expect("the search returns every picture"));
    println!("{} steps, the largest at distance {largest}; the direct step has {direct}", path.nodes.len() - 1);
    assert_eq!(path.nodes.len(), 2 * PLACES - 1);
    assert!(direct > 5.0 * largest);

    // No path leads from a disc to a ring.
    let error = graph.path(&base, dim, Metric::L2, first as u64, (PLACES * PLACES) as u64).expect_err("two components");
    println!("from a disc to a ring: {error}");
    Ok(())
}
