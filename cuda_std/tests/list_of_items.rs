//! The table "What a kernel may call" of the crate's page names every public item of the modules that a kernel uses.
//! rustdoc checks that each name exists, as it refuses broken links.

use std::collections::BTreeSet;

/// The modules of the table, with the source files of each.
const MODULES: [(&str, &[&str]); 10] = [
    ("thread", &["thread.rs"]),
    ("global", &["global.rs"]),
    ("shared", &["shared.rs"]),
    ("atomic", &["atomic.rs"]),
    ("cluster", &["cluster.rs"]),
    ("warp", &["warp.rs", "warp/butterfly.rs"]),
    ("math", &["math.rs"]),
    ("async_copy", &["async_copy.rs"]),
    ("mma", &["mma.rs"]),
    ("wgmma", &["wgmma.rs"]),
];

/// Public modules without functions for a kernel: those of the host side, and the types of its pointers.
const HOST: [&str; 4] = ["emulator", "launch", "private", "ptr"];

fn source(file: &str) -> String {
    let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The identifier at the start of a text.
fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0).then_some(&text[..end])
}

/// The public items of a source file: those at its top level, and those that a macro makes from a row such as
/// ` min_u32(u32);` after a doc comment.
fn items(source: &str) -> BTreeSet<&str> {
    const KEYWORDS: [&str; 8] = ["unsafe", "const", "fn", "struct", "trait", "enum", "type", "static"];
    let mut found = BTreeSet::new();
    let mut documented = false;
    for line in source.lines() {
        if let Some(mut rest) = line.strip_prefix("pub ") {
            while let Some((_, after)) = rest.split_once(' ').filter(|(word, _)| KEYWORDS.contains(word)) {
                rest = after;
            }
            found.extend(identifier(rest).filter(|word| !["use", "mod", "crate"].contains(word)));
        } else if documented && line.starts_with("    ") && line.trim_end().ends_with([';', ',']) {
            found.extend(identifier(line.trim_start()).filter(|word| !["pub", "type", "fn", "const"].contains(word)));
        }
        documented = line.starts_with("    /// ");
    }
    found
}

/// The items of `modules` that the text has no link to.
fn missing(text: &str, modules: &[(&str, &[&str])]) -> Vec<String> {
    let mut missing = Vec::new();
    for (module, files) in modules {
        for file in *files {
            let source = source(file);
            let links = items(&source).into_iter().map(|item| format!("[`{item}`]({module}::{item})"));
            missing.extend(links.filter(|link| !text.contains(link)));
        }
    }
    missing
}

#[test]
fn every_item_is_in_the_table() {
    assert_eq!(missing(&source("lib.rs"), &MODULES), [""; 0]);
}

#[test]
fn every_public_module_is_known() {
    let text = source("lib.rs");
    let public = text.lines().filter_map(|line| identifier(line.strip_prefix("pub mod ")?));
    let known: BTreeSet<&str> = MODULES.iter().map(|(module, _)| *module).chain(HOST).collect();
    assert_eq!(public.collect::<BTreeSet<_>>(), known);
}

/// The items are found, in each of the forms that the modules have.
#[test]
fn an_item_that_is_not_in_the_table_is_found() {
    let text = source("lib.rs");
    let forms = [
        ("thread", "block_dim_y"),
        ("global", "U32x4"),
        ("shared", "SharedPtr"),
        ("atomic", "cas_u32"),
        ("atomic", "shared_min_u64"),
        ("warp", "FULL_MASK"),
        ("warp", "MinMax"),
        ("warp", "reduce_xor"),
        ("warp", "butterfly_argmin"),
        ("math", "sqrt_f64"),
        ("math", "bf16_to_f32"),
        ("async_copy", "copy_8"),
        ("async_copy", "copy_16_zfill"),
        ("mma", "ldmatrix_x4"),
    ];
    for (module, item) in forms {
        let link = format!("[`{item}`]({module}::{item})");
        assert_eq!(missing(&text.replace(&link, ""), &MODULES), [link]);
    }
}
