//! k-means: nearest centroids, sums over clusters, new centroids.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`assign`] | nearest of many centroids: a product with a proof | paper 5 |
//! | [`assign_few`] | nearest of few centroids: the same with the centroids in shared memory | paper 5 |
//! | [`nearest_lists`] | candidates of the points of a block during the pass over the centroids | |
//! | [`settle`] | exact distances for points whose nearest centroid the product does not decide | |
//! | [`cluster_sums`] | integer sums over clusters | |
//! | [`centroids`] | totals and new centroids | |

pub mod assign;
pub mod assign_few;
pub mod centroids;
pub mod cluster_sums;
pub mod nearest_lists;
pub mod settle;
