//! Shifted sort: approximate neighbours in low dimension.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`morton`] | Morton codes of shifted points | Park 2019 |
//! | [`shifted_sort`] | windows of sorted, shifted copies, merged in a warp | Park 2019 |

pub mod morton;
pub mod shifted_sort;
