//! k-means: nearest centroids, sums over clusters, new centroids.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`assign`] | nearest of many centroids: a product with a proof | paper 5 |
//! | [`assign_few`] | nearest of few centroids: the same with the centroids in shared memory | paper 5 |
//! | [`nearest_lists`] | what a block remembers of its points while it walks over centroids | |
//! | [`settle`] | exact distances where the product leaves a choice | |
//! | [`cluster_sums`] | integer sums over clusters | |
//! | [`centroids`] | totals and new centroids | |

pub mod assign;
pub mod assign_few;
pub mod centroids;
pub mod cluster_sums;
pub mod nearest_lists;
pub mod settle;
