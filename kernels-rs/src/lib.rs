//! warpann's device code. Each module is one algorithm and opens with its explanation; all are ordinary Rust over
//! [`cuda_std`], so the same source runs on the GPU (as PTX) and on the emulator.
//!
//! | module | algorithm | source |
//! |---|---|---|
//! | [`entry`] | a key and its payload as one ordered 64-bit word | |
//! | [`networks`] | odd-size merging and sorting networks over lane-stride register arrays | paper 4.1, algorithms 1 and 2 |
//! | [`warp_select`] | k-selection by one warp a row, state in registers | paper 4.2, 4.3, algorithm 3 |
//! | [`threshold_select`] | k-selection of long rows, any k and key type: a sampled bound, one pass, a sort of the survivors | |
//! | [`short_select`] | k-selection of many short rows, small k: a bound from every key, kept in registers | |
//! | [`block_sort`], [`list_sort`] | merge sort of entries, by one block in shared memory or by many in global memory | |
//! | [`gather`] | the payloads of selected keys | |
//! | [`generate`] | clustered vectors, made from their numbers | |
//! | [`sample`], [`survivors`], [`radix`] | its steps: a threshold from a sample, the filter, an exact threshold where the sample misled | |
//! | [`keys`], [`rows`] | key types as ordered integers; where the rows of a batch lie and how a block reads one | |
//! | [`radix_sort`] | stable sort of 64- and 128-bit keys with payloads, one pass over memory a digit | |
//! | [`element`] | loading four vector components of any element type | |
//! | [`canonical`] | the distance that every back end returns to the bit, as a dense tile or for listed candidates | |
//! | [`read_ceiling`] | one read of memory, to measure against | |
//! | [`prepare`] | half-precision copies of vectors, with proved error norms | |
//! | [`tile`] | the tile product that [`filter`] and [`assign`] are built on, by warps or by warpgroups | |
//! | [`filter`] | half-precision matrix product on tensor cores that keeps what may be among the best k | paper 5.1 |
//! | [`queries`], [`pairs`], [`list_scan`], [`rerank`] | list-major search of inverted files: queries made ready, grouped by list, scored on tensor cores, re-ranked exactly | paper 5.2, 5.3 |
//! | [`range`] | how many candidates may lie within a radius | |
//! | [`codes`], [`code_bounds`] | product-quantizer codes as vectors, and the error of their half-precision operands | paper 2.2 |
//! | [`encode`] | product-quantizer codes: the nearest codeword of each sub-vector | paper 5.2 |
//! | [`candidates`] | thresholds and compaction of candidate lists between filter passes | |
//! | [`assign`], [`assign_few`], [`settle`] | nearest centroid: a product with a proof (many centroids, few), exact distances where it leaves a choice | paper 5 |
//! | [`cluster_sums`], [`centroids`] | k-means: integer sums over clusters; totals and new centroids | |
//! | [`pq_codes`] | reading the codes of a product quantizer | |
//! | [`pq_tables`] | product quantization: tables of queries and lists, terms of rows, and the error bound of scores | paper 5.2 |
//! | [`table_scan`] | scores of product-quantized lists by tables in shared memory | paper 5.2, 5.3 |
//! | [`morton`] | Morton codes of shifted points | Park 2019 |
//! | [`shifted_sort`] | approximate neighbours in low dimension: windows of sorted, shifted copies, merged in a warp | Park 2019 |
//!
//! Queue lengths, tile sizes and launch shapes live here; the host takes them from these constants.
//!
//! A *row-major matrix with stride* below means: row r starts at element r · stride.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx, asm_experimental_arch))]

pub mod assign;
pub mod assign_few;
pub mod block_sort;
pub mod candidates;
pub mod canonical;
pub mod centroids;
pub mod cluster_sums;
pub mod code_bounds;
pub mod codes;
pub mod element;
pub mod encode;
pub mod entry;
pub mod filter;
pub mod gather;
pub mod generate;
pub mod keys;
pub mod list_scan;
pub mod list_sort;
pub mod morton;
pub mod nearest_lists;
pub mod networks;
pub mod pairs;
pub mod pq_codes;
pub mod pq_tables;
pub mod prepare;
pub mod queries;
pub mod radix;
pub mod radix_sort;
pub mod range;
pub mod read_ceiling;
pub mod rerank;
pub mod rows;
pub mod sample;
pub mod settle;
pub mod shifted_sort;
pub mod short_select;
pub mod survivors;
pub mod table_scan;
pub mod threshold_select;
pub mod tile;
pub mod warp_select;

/// Marks the absence of a neighbour in a list of row numbers.
pub const NO_ROW: u32 = u32::MAX;
