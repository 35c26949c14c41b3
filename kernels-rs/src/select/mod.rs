//! k-selection: the k smallest or largest keys of each row, with their payloads.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`entry`] | a key and its payload as one ordered 64-bit word | |
//! | [`keys`] | key types as ordered integers | |
//! | [`rows`] | the layout of the rows of a batch, and reading a row by a block | |
//! | [`networks`] | odd-size merging and sorting networks over lane-stride register arrays | paper 4.1, algorithms 1 and 2 |
//! | [`warp_select`] | WarpSelect: one warp for each row, state in registers | paper 4.2, 4.3, algorithm 3 |
//! | [`short_select`] | many short rows, small k: a bound from every key, kept in registers | |
//! | [`threshold_select`] | long rows, any k and key type: a sampled bound, one pass, a sort of the survivors | |
//! | [`cluster_select`] | long rows by clusters of blocks in one launch, from compute capability 9.0 on | |
//! | [`sample`] | step of both: a threshold from a sample | |
//! | [`survivors`] | step of `threshold_select`: the keys that pass the threshold | |
//! | [`radix`] | step of both: an exact threshold if the sample was misleading | |
//! | [`bucket_order`] | step of `cluster_select`: a sort of survivors by counting | |
//! | [`block_sort`] | merge sort of entries by one block in shared memory | |
//! | [`list_sort`] | merge sort of entries by many blocks in global memory | |
//! | [`gather`] | the payloads of selected keys | |

pub mod block_sort;
pub mod bucket_order;
pub mod cluster_select;
pub mod entry;
pub mod gather;
pub mod keys;
pub mod list_sort;
pub mod networks;
pub mod radix;
pub mod rows;
pub mod sample;
pub mod short_select;
pub mod survivors;
pub mod threshold_select;
pub mod warp_select;
