/// Modules that PTX is cut into, and the names of their kernels (prefixes); a family is a module of kernels-rs. A kernel that
/// no row names goes to a family of its own kind, `kernels`. Read by build.rs and by `cargo xtask ptx`.
pub const FAMILIES: [(&str, &[&str]); 5] = [
    ("candidates", &["compact_"]),
    ("canonical", &["canonical_"]),
    ("filter", &["filter_"]),
    ("prepare", &["prepare_", "greatest_"]),
    ("warp_select", &["warp_select_"]),
];
