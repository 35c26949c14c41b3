//! Sorting of whole arrays.
//!
//! | module | algorithm |
//! |---|---|
//! | [`radix_sort`] | stable sort of 64- and 128-bit keys with payloads, one pass over memory for each digit |

pub mod radix_sort;
