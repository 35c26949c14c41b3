//! Which kernel WarpSelect takes.

use warpann_kernels::select::warp_select::{QUEUES, WarpSelectRows};

#[test]
fn kernels_are_chosen_by_their_queues() {
    assert_eq!(WarpSelectRows::kernel(1).name(), "warp_select_k1");
    for (shorter, queue) in [1].into_iter().chain(QUEUES).zip(QUEUES) {
        for k in [shorter + 1, queue] {
            assert_eq!(WarpSelectRows::kernel(k).name(), format!("warp_select_k{queue}"));
        }
    }
}
