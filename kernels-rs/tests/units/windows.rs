//! The windows of shifted sort.

use warpann_kernels::shifted::shifted_sort::window_start;

#[test]
fn windows_stay_inside() {
    for (place, width, n, start) in
        [(0, 32, 100, 0), (16, 32, 100, 0), (17, 32, 100, 1), (100, 32, 100, 68), (7, 10, 10, 0), (3, 1, 5, 3)]
    {
        assert_eq!(window_start(place, width, n), start, "{place} {width} {n}");
    }
}
