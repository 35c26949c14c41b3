//! Hints: the replacements for functions of `std` that the compiler did not find in a kernel.
//!
//! The host compiles a kernel with `std`, so a test on the emulator passes. The device build has only `core`, and
//! rustc's message is only "no method named `sqrt`". A hint names the function and its replacement.

use std::collections::BTreeMap;

/// The beginnings of the compiler's messages about missing items, up to the item's name. For a method, the type of its
/// receiver follows in the same line.
const MISSING: [(&str, Kind); 8] = [
    ("cannot find macro `", Kind::Macro),
    ("cannot find type `", Kind::Type),
    ("use of undeclared type `", Kind::Type),
    ("no method named `", Kind::Method),
    ("no function or associated item named `", Kind::Method),
    ("cannot find module or crate `", Kind::Crate),
    ("use of unresolved module or unlinked crate `", Kind::Crate),
    ("can't find crate for `", Kind::Std),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Macro,
    Type,
    Method,
    Crate,
    /// The crate of kernels is compiled with `std`.
    Std,
}

const NO_PRINTING: &str = "a kernel cannot print: store the value in a buffer, or print in a test on the emulator, \
                           behind `#[cfg(not(target_arch = \"nvptx64\"))]`";
const NO_HEAP: &str =
    "a kernel has no heap: use an array of constant length, `cuda_std::shared`, or a buffer of the launch";
const NO_LIBRARY: &str = "cuda_std has no such function: compute it on the host, or approximate it by a polynomial of \
                          `cuda_std::math::mul_add_f32`";

/// The replacement for the macro, type, method or crate `name`.
fn instead(kind: Kind, name: &str) -> Option<&'static str> {
    Some(match (kind, name) {
        (Kind::Macro, "println" | "print" | "eprintln" | "eprint" | "dbg") => NO_PRINTING,
        (Kind::Macro, "vec" | "format") | (Kind::Method, "to_string" | "to_owned" | "to_vec") => NO_HEAP,
        (Kind::Type, "Vec" | "Box" | "String" | "Rc" | "Arc" | "HashMap" | "HashSet" | "BTreeMap" | "VecDeque") => {
            NO_HEAP
        }
        (Kind::Method, "sqrt") => "`cuda_std::math::sqrt_f32` or `sqrt_f64`",
        (Kind::Method, "mul_add") => "`cuda_std::math::mul_add_f32` or `mul_add_f64`",
        (Kind::Method, "powi") => "multiply: `x * x` for the square",
        (Kind::Method, "floor" | "ceil" | "round" | "trunc" | "fract" | "round_ties_even") => {
            "cuda_std has no rounding to whole floats; `x as i32 as f32` cuts the fraction off where |x| < 2³¹"
        }
        (Kind::Method, "rem_euclid" | "div_euclid") => "write it with `%` and a comparison with 0.0",
        (
            Kind::Method,
            "sin" | "cos" | "tan" | "sin_cos" | "asin" | "acos" | "atan" | "atan2" | "sinh" | "cosh" | "tanh" | "exp"
            | "exp2" | "exp_m1" | "ln" | "ln_1p" | "log" | "log2" | "log10" | "powf" | "cbrt" | "hypot",
        ) => NO_LIBRARY,
        (Kind::Crate, "std") => {
            "the device build has only `core`: write `core::` if `core` has the item, for example `core::cmp::min`"
        }
        (Kind::Crate, "alloc") => NO_HEAP,
        (Kind::Std, "std") => {
            "the crate of kernels needs `#![cfg_attr(target_arch = \"nvptx64\", no_std, feature(abi_ptx, asm_experimental_arch))]`"
        }
        _ => return None,
    })
}

/// The hints for the compiler's messages: one for each name, sorted.
pub(crate) fn of(messages: &str) -> Vec<String> {
    let mut hints = BTreeMap::new();
    for line in messages.lines() {
        for (words, kind) in MISSING {
            let Some((name, rest)) = line.split_once(words).and_then(|(_, rest)| rest.split_once('`')) else {
                continue;
            };
            let Some(advice) = instead(kind, name) else { continue };
            let shown = match kind {
                // "` found for type `f32` in the current scope"
                Kind::Method => match rest.split('`').nth(1) {
                    Some(receiver @ ("f32" | "f64")) => format!("{receiver}::{name}"),
                    _ => name.to_owned(),
                },
                Kind::Macro => format!("{name}!"),
                Kind::Type | Kind::Crate | Kind::Std => name.to_owned(),
            };
            hints.insert(shown, advice);
        }
    }
    hints.into_iter().map(|(name, advice)| format!("`{name}`: {advice}")).collect()
}

/// The hints as the end of an error message; empty without hints.
pub(crate) fn shown(hints: &[String]) -> String {
    if hints.is_empty() {
        return String::new();
    }
    let list: String = hints.iter().map(|hint| format!("\n  - {hint}")).collect();
    format!(
        "\nA kernel may call `core` and `cuda_std`, not `std`:{list}\nThe documentation of cuda_std lists all that a kernel may call."
    )
}

/// The text without escape sequences for colours.
pub(crate) fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split("\x1b[");
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        // "1;31m" and the text that follows.
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From rustc 1.95, shortened.
    const MESSAGES: &str = "\
error: cannot find macro `println` in this scope
error: cannot find macro `vec` in this scope
error[E0433]: cannot find module or crate `std` in this scope
  |             ^^^ use of unresolved module or unlinked crate `std`
error[E0425]: cannot find type `Vec` in this scope
error[E0433]: cannot find type `Vec` in this scope
error[E0599]: no method named `sqrt` found for type `f32` in the current scope
error[E0599]: no method named `powi` found for type `f32` in the current scope
error[E0599]: no method named `sin` found for type `f64` in the current scope
error[E0599]: no function or associated item named `mul_add` found for type `f64` in the current scope
error[E0599]: no method named `to_string` found for reference `&'static str` in the current scope
error[E0599]: no method named `frobnicate` found for type `f32` in the current scope
error: cannot find macro `my_own` in this scope
";

    #[test]
    fn each_missing_name_has_one_hint() {
        let hints = of(MESSAGES);
        let names: Vec<&str> = hints.iter().filter_map(|hint| hint.split('`').nth(1)).collect();
        let expected =
            ["Vec", "f32::powi", "f32::sqrt", "f64::mul_add", "f64::sin", "println!", "std", "to_string", "vec!"];
        assert_eq!(names, expected);
        assert!(hints.contains(&"`f32::sqrt`: `cuda_std::math::sqrt_f32` or `sqrt_f64`".to_owned()), "{hints:#?}");
    }

    #[test]
    fn other_errors_have_none() {
        assert!(of("error[E0308]: mismatched types\nerror: cannot find macro `my_own` in this scope\n").is_empty());
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn a_crate_without_no_std_gets_the_attribute() {
        let hints = of("error[E0463]: can't find crate for `std`\n");
        assert!(hints[0].contains("no_std"), "{hints:?}");
    }

    #[test]
    fn colours_do_not_hide_a_name() {
        let coloured = "\x1b[1m\x1b[91merror\x1b[0m\x1b[1m: cannot find macro `println` in this scope\x1b[0m";
        assert_eq!(without_colours(coloured), "error: cannot find macro `println` in this scope");
        assert_eq!(without_colours("a plain line, cut here: \x1b["), "a plain line, cut here: ");
    }

    /// The functions of cuda_std that the hints name exist there.
    #[test]
    fn named_functions_exist() {
        let math = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda_std/src/math.rs");
        let math = std::fs::read_to_string(math).unwrap();
        for name in ["sqrt_f32", "sqrt_f64", "mul_add_f32", "mul_add_f64"] {
            assert!(math.contains(&format!(" {name}(")), "{name}");
        }
    }
}
