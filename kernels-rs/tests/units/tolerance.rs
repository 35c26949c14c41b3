//! Distances and products that codes cannot tell apart.

use warpann_kernels::graph::tolerance::Tolerance;
use warpann_kernels::product::metric::Metric;

/// The key of a product, as `graph::distance` makes it.
fn key_of(product: i32) -> u32 {
    !(product as u32 ^ 1 << 31)
}

#[test]
fn distances_tie_within_six_deviations() {
    let tolerance = Tolerance::new(Metric::L2, 0, 0);
    // 6 / √6 = 2.4495: from √100 = 10 to √154 = 12.4097, and not to √155 = 12.4499.
    assert!(tolerance.within(100, 154) && !tolerance.within(100, 155));
    // From 0 to 4.8990² = 24.
    assert!(tolerance.ties(0, 23) && !tolerance.ties(0, 25));
    assert!(tolerance.within(u32::MAX, u32::MAX));
}

#[test]
fn products_tie_by_the_norms_of_both() {
    // 6 · √((300 + 900) / 12) = 60.
    let tolerance = Tolerance::new(Metric::InnerProduct, 300, 900);
    for best in [50, 5, -70] {
        assert!(tolerance.within(key_of(best), key_of(best - 60)));
        assert!(!tolerance.within(key_of(best), key_of(best - 61)));
        assert!(tolerance.ties(key_of(best), key_of(best - 120)));
        assert!(!tolerance.ties(key_of(best), key_of(best - 121)));
    }
}
