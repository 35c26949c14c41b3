//! Work on PTX text: launch bounds, and one module for each kernel.
//!
//! rustc has no attribute for launch bounds. So `#[kernel]` writes a comment into the module's assembly, and this
//! module turns it into directives:
//!
//! ```text
//! // warpann.kernel NAME maxntid=256 minnctapersm=2 arch=sm_90a
//! ```
//!
//! Every `key=value` may be absent; unknown keys are ignored.
//!
//! The driver compiles a module when it loads it, and that time grows with the module. [`split`] therefore cuts the
//! text into one module for each kernel, with the functions, variables and declarations that the kernel reaches.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::builder::GpuArch;

const NOTE: &str = "warpann.kernel";

/// The content of a `// warpann.kernel` comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelNote {
    /// Symbol of the kernel's entry point.
    pub name: String,
    /// Largest number of threads of a block (`.maxntid`).
    pub max_threads: Option<u32>,
    /// Number of blocks that must fit a multiprocessor at once (`.minnctapersm`).
    pub min_blocks: Option<u32>,
    /// The only architecture on which the kernel runs (`.target`). `None`: the architecture of the build and later
    /// ones.
    pub arch: Option<String>,
}

/// PTX text of a form that the code generator does not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtxError {
    /// A statement, parameter list or body does not end.
    #[error("PTX line {line}: the statement that starts here does not end")]
    Unfinished {
        /// Line number, from 1.
        line: usize,
    },
    /// A value of a kernel comment is not a number.
    #[error("PTX kernel comment of '{kernel}': {key}={value} is not a number")]
    BadNote {
        /// Kernel that the comment names.
        kernel: String,
        /// Key of the pair `key=value`.
        key: String,
        /// Value that is not a number.
        value: String,
    },
    /// A kernel's comment names an unknown architecture.
    #[error("PTX kernel '{kernel}': unknown architecture {arch}")]
    BadArch {
        /// Kernel that the comment names.
        kernel: String,
        /// Architecture that the comment names.
        arch: String,
    },
    /// A comment names a kernel that the module does not have.
    #[error("PTX kernel comment names '{kernel}', but the module has no such entry")]
    NoSuchEntry {
        /// Kernel that the comment names.
        kernel: String,
    },
}

/// The kind of a top-level statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `.version`, `.target`, `.address_size` or `.file`, which every module needs.
    Directive,
    Entry,
    Function,
    Variable,
}

/// A top-level statement: its kind, the symbol that it declares or defines, and its place in the text.
#[derive(Debug)]
struct Item<'a> {
    kind: Kind,
    name: &'a str,
    span: Range<usize>,
}

/// The kernel comments of a module, in text order.
///
/// # Errors
/// [`PtxError::BadNote`] for a value that is not a number.
pub fn notes(ptx: &str) -> Result<Vec<KernelNote>, PtxError> {
    let mut notes = Vec::new();
    for line in ptx.lines() {
        let Some(rest) = line.trim_start().strip_prefix("//").map(str::trim_start) else { continue };
        let Some(rest) = rest.strip_prefix(NOTE) else { continue };
        let mut words = rest.split_whitespace();
        let Some(name) = words.next() else { continue };
        let mut note = KernelNote { name: name.to_owned(), ..KernelNote::default() };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let number = || {
                let bad = |_| PtxError::BadNote { kernel: name.into(), key: key.into(), value: value.into() };
                value.parse::<u32>().map_err(bad)
            };
            match key {
                "maxntid" => note.max_threads = Some(number()?),
                "minnctapersm" => note.min_blocks = Some(number()?),
                "arch" => note.arch = Some(value.to_owned()),
                _ => {}
            }
        }
        notes.push(note);
    }
    Ok(notes)
}

/// The text without the comments of the kernels for whose names `gone` is true. A build left out their entry points.
pub fn without_notes(ptx: &str, gone: impl Fn(&str) -> bool) -> String {
    let is_gone = |line: &&str| {
        let rest = line.trim_start().strip_prefix("//").and_then(|rest| rest.trim_start().strip_prefix(NOTE));
        rest.and_then(|rest| rest.split_whitespace().next()).is_some_and(&gone)
    };
    ptx.split_inclusive('\n').filter(|line| !is_gone(line)).collect()
}

/// The kernels of a module in text order: symbol, and text from the `.entry` line to the closing brace.
///
/// # Errors
/// [`PtxError::Unfinished`] if a statement does not end.
pub fn entries(ptx: &str) -> Result<Vec<(&str, &str)>, PtxError> {
    let items = items(ptx)?;
    Ok(items.into_iter().filter(|item| item.kind == Kind::Entry).map(|item| (item.name, &ptx[item.span])).collect())
}

/// Writes `.maxntid` and `.minnctapersm` behind the parameter list of every kernel whose comment has them.
///
/// # Errors
/// [`PtxError`], also if a comment names a kernel that the module does not have.
pub fn apply_launch_bounds(ptx: &str) -> Result<String, PtxError> {
    let mut bounds: HashMap<String, KernelNote> = notes(ptx)?.into_iter().map(|n| (n.name.clone(), n)).collect();
    let mut out = String::with_capacity(ptx.len() + 64 * bounds.len());
    let mut done = 0;
    for (name, text) in entries(ptx)? {
        let Some(note) = bounds.remove(name) else { continue };
        let start = text.as_ptr() as usize - ptx.as_ptr() as usize;
        let Some(close) = text.find(')') else { return Err(PtxError::Unfinished { line: line_of(ptx, start) }) };
        let at = start + close + 1;
        out.push_str(&ptx[done..at]);
        if let Some(threads) = note.max_threads {
            out.push_str(&format!("\n.maxntid {threads}, 1, 1"));
        }
        if let Some(blocks) = note.min_blocks {
            out.push_str(&format!("\n.minnctapersm {blocks}"));
        }
        done = at;
    }
    out.push_str(&ptx[done..]);
    match bounds.into_keys().min() {
        Some(kernel) => Err(PtxError::NoSuchEntry { kernel }),
        None => Ok(out),
    }
}

/// One module for each kernel: (kernel, PTX), sorted by kernel.
///
/// Each module has the directives, its kernel with the comment, and the functions, declarations, constants and shared
/// arrays that the kernel reaches. The module of a kernel for a single architecture has that target; only its inline
/// assembly needs the target, the rest of the text is unchanged.
///
/// # Errors
/// [`PtxError`].
pub fn split(ptx: &str) -> Result<Vec<(String, String)>, PtxError> {
    let items = items(ptx)?;
    let notes = notes(ptx)?;
    // A symbol may have a declaration and a definition, so a name leads to several statements.
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate().filter(|(_, item)| item.kind != Kind::Directive) {
        by_name.entry(item.name).or_default().push(index);
    }

    let mut modules = Vec::new();
    for (kernel, entry) in items.iter().enumerate().filter(|(_, item)| item.kind == Kind::Entry) {
        let note = notes.iter().find(|note| note.name == entry.name);
        let own_arch = note.map_or(Ok(None), target_of)?;
        let mut wanted = HashSet::from([kernel]);
        let mut pending = vec![kernel];
        while let Some(index) = pending.pop() {
            for word in words(&ptx[items[index].span.clone()]) {
                for &target in by_name.get(word).into_iter().flatten() {
                    if wanted.insert(target) {
                        pending.push(target);
                    }
                }
            }
        }
        let mut text = String::new();
        for (index, item) in items.iter().enumerate() {
            if item.kind == Kind::Directive || wanted.contains(&index) {
                if let Some(note) = note.filter(|_| index == kernel) {
                    text.push_str(&comment_of(note));
                }
                let own = own_arch.and_then(|arch| retargeted(&ptx[item.span.clone()], arch));
                text.push_str(own.as_deref().unwrap_or(&ptx[item.span.clone()]));
                text.push('\n');
            }
        }
        modules.push((entry.name.to_owned(), text));
    }
    modules.sort();
    Ok(modules)
}

/// The architecture that a kernel's comment names; none if it names none.
fn target_of(note: &KernelNote) -> Result<Option<GpuArch>, PtxError> {
    let Some(arch) = &note.arch else { return Ok(None) };
    let bad = || PtxError::BadArch { kernel: note.name.clone(), arch: arch.clone() };
    GpuArch::from_name(arch).map(Some).ok_or_else(bad)
}

/// A `.version` or `.target` directive, rewritten for a module for `arch`; none for other directives.
fn retargeted(directive: &str, arch: GpuArch) -> Option<String> {
    if directive.starts_with(".target") {
        Some(format!(".target {arch}"))
    } else if directive.starts_with(".version") {
        let (major, minor) = arch.ptx_version();
        Some(format!(".version {major}.{minor}"))
    } else {
        None
    }
}

fn comment_of(note: &KernelNote) -> String {
    let mut line = format!("// {NOTE} {}", note.name);
    let fields = [("maxntid", note.max_threads), ("minnctapersm", note.min_blocks)];
    for (key, value) in fields.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        line.push_str(&format!(" {key}={value}"));
    }
    if let Some(arch) = &note.arch {
        line.push_str(&format!(" arch={arch}"));
    }
    line.push('\n');
    line
}

/// The PTX identifiers of a text. Registers come without their `%`; if one equals a symbol, the only effect is a larger
/// module.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$')).filter(|word| !word.is_empty())
}

fn line_of(ptx: &str, at: usize) -> usize {
    1 + ptx.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
}

/// The top-level statements of a module, in text order, without comments.
fn items(ptx: &str) -> Result<Vec<Item<'_>>, PtxError> {
    let bytes = ptx.as_bytes();
    let mut items = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at].is_ascii_whitespace() {
            at += 1;
        } else if let Some(end) = skip_comment(bytes, at) {
            at = end;
        } else {
            let item = item_at(ptx, at)?;
            at = item.span.end;
            items.push(item);
        }
    }
    Ok(items)
}

/// The end of the comment that starts at `at`; none if no comment starts there.
fn skip_comment(bytes: &[u8], at: usize) -> Option<usize> {
    let find = |needle: &[u8]| bytes[at..].windows(needle.len()).position(|window| window == needle);
    match bytes.get(at..at + 2)? {
        b"//" => Some(find(b"\n").map_or(bytes.len(), |end| at + end)),
        b"/*" => Some(find(b"*/").map_or(bytes.len(), |end| at + end + 2)),
        _ => None,
    }
}

/// The statement that starts at `start`. It ends at the end of the line for a directive, at the closing brace for a
/// function body or a section, else at the semicolon.
fn item_at(ptx: &str, start: usize) -> Result<Item<'_>, PtxError> {
    let bytes = ptx.as_bytes();
    let first = ptx[start..].split(|c: char| c.is_ascii_whitespace() || c == ';').next().unwrap_or_default();
    if matches!(first, ".version" | ".target" | ".address_size" | ".file") {
        let end = ptx[start..].find('\n').map_or(ptx.len(), |length| start + length);
        return Ok(Item { kind: Kind::Directive, name: "", span: start..end });
    }

    let mut depth = 0_usize;
    let mut has_initialiser = false;
    let mut at = start;
    let end = loop {
        let unfinished = || PtxError::Unfinished { line: line_of(ptx, start) };
        let byte = *bytes.get(at).ok_or_else(unfinished)?;
        if let Some(after) = skip_comment(bytes, at) {
            at = after;
            continue;
        }
        at += 1;
        match byte {
            b'"' => {
                let length = bytes[at..].iter().position(|&byte| byte == b'"').ok_or_else(unfinished)?;
                at += length + 1;
            }
            b'{' | b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !has_initialiser {
                    break at;
                }
            }
            b'=' if depth == 0 => has_initialiser = true,
            b';' if depth == 0 => break at,
            _ => {}
        }
    };

    let text = &ptx[start..end];
    // The kind of a statement does not depend on its body.
    let head = &text[..text.find(['{', '=']).unwrap_or(text.len())];
    let (kind, name) = if let Some(place) = head.find(".entry") {
        (Kind::Entry, words(&head[place + ".entry".len()..]).next())
    } else if let Some(place) = head.find(".func") {
        // `.func (.param .b32 result) name(...)`: a result list may precede the name.
        let rest = head[place + ".func".len()..].trim_start();
        let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
        (Kind::Function, words(rest).next())
    } else if head.starts_with(".section") || head.starts_with(".pragma") {
        (Kind::Directive, None)
    } else {
        // `.extern .shared .align 128 .b8 name[]`: the last word before the brackets.
        let head = head.split('[').next().unwrap_or(head);
        (Kind::Variable, words(head).last())
    };
    Ok(Item { kind, name: name.unwrap_or_default(), span: start..end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = r#"//
// Generated by LLVM NVPTX Back-End
//

.version 7.8
.target sm_80
.address_size 64

	// warpann.kernel sort_r1 maxntid=256 minnctapersm=2
	// warpann.kernel select_k32 maxntid=128 of_later_versions=1
	// warpann.kernel plain
.extern .shared .align 128 .b8 dyn_smem[];
	// .globl	sort_r1
.extern .func (.param .b32 func_retval0) helper
(
	.param .b64 helper_param_0
)
;
.global .align 4 .b8 table_of_steps[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.global .align 8 .u64 unused_by_all = table_of_steps;

.visible .entry sort_r1(
	.param .u64 .ptr .align 1 sort_r1_param_0,
	.param .u32 sort_r1_param_1
)
{
	.reg .b32 	%r<4>;
	// begin inline asm
	{ .shared .align 16 .b8 t[2048]; mov.u32 %r1, t; }
	// a brace in a comment: }
	mov.b64 	%rd1, table_of_steps;
	call.uni (retval0), helper, (param0);
	ret;
}
	// .globl	select_k32
.visible .entry select_k32(
	.param .u64 select_k32_param_0
)
{
	mov.u32 %r1, dyn_smem;
	ret;
}
.visible .entry plain()
{
	ret;
}
.func  (.param .b32 func_retval0) helper(
	.param .b64 helper_param_0
)
{
	call.uni inner, ();
	ret;
}
.func inner()
{
	ret;
}
	.file	1 "src/lib.rs"
	.section	.debug_str
	{
.b8 67
	}
"#;

    #[test]
    fn notes_are_read() {
        let notes = notes(MODULE).unwrap();
        assert_eq!(notes.len(), 3);
        assert_eq!(
            notes[0],
            KernelNote { name: "sort_r1".into(), max_threads: Some(256), min_blocks: Some(2), arch: None }
        );
        assert_eq!((notes[1].max_threads, notes[1].min_blocks), (Some(128), None));
        assert_eq!(notes[2], KernelNote { name: "plain".into(), ..KernelNote::default() });
    }

    #[test]
    fn notes_of_kernels_that_a_build_left_out_are_removed() {
        let kept = without_notes(MODULE, |name| name != "plain");
        assert_eq!(notes(&kept).unwrap().iter().map(|note| note.name.as_str()).collect::<Vec<_>>(), ["plain"]);
        assert_eq!(kept.lines().count() + 2, MODULE.lines().count());
        assert_eq!(without_notes(MODULE, |_| false), MODULE);
    }

    #[test]
    fn a_note_that_is_no_number_is_an_error() {
        let error = notes("// warpann.kernel k maxntid=many").unwrap_err();
        assert_eq!(error, PtxError::BadNote { kernel: "k".into(), key: "maxntid".into(), value: "many".into() });
    }

    #[test]
    fn entries_are_whole() {
        let entries = entries(MODULE).unwrap();
        let names: Vec<_> = entries.iter().map(|entry| entry.0).collect();
        assert_eq!(names, ["sort_r1", "select_k32", "plain"]);
        assert!(entries[0].1.starts_with(".visible .entry sort_r1(") && entries[0].1.ends_with("ret;\n}"));
    }

    #[test]
    fn launch_bounds_stand_behind_the_parameters() {
        let bounded = apply_launch_bounds(MODULE).unwrap();
        assert!(bounded.contains("sort_r1_param_1\n)\n.maxntid 256, 1, 1\n.minnctapersm 2\n{"), "{bounded}");
        assert!(bounded.contains("select_k32_param_0\n)\n.maxntid 128, 1, 1\n{"), "{bounded}");
        assert!(bounded.contains(".entry plain()\n{"), "{bounded}");
        let removed = [".maxntid 256, 1, 1\n", ".minnctapersm 2\n", ".maxntid 128, 1, 1\n"];
        assert_eq!(removed.iter().fold(bounded, |text, part| text.replacen(part, "", 1)), MODULE);
    }

    #[test]
    fn bounds_for_no_kernel_are_an_error() {
        let error =
            apply_launch_bounds("// warpann.kernel ghost maxntid=32\n.visible .entry real()\n{\n}\n").unwrap_err();
        assert_eq!(error, PtxError::NoSuchEntry { kernel: "ghost".into() });
    }

    #[test]
    fn a_kernel_for_one_architecture_has_a_module_for_it() {
        let text = MODULE.replace("warpann.kernel plain", "warpann.kernel plain arch=sm_90a");
        let modules = split(&text).unwrap();
        let module = |kernel: &str| &modules.iter().find(|(name, _)| name == kernel).unwrap().1;
        assert!(module("plain").contains(".version 8.0\n.target sm_90a\n"), "{}", module("plain"));
        assert_eq!(notes(module("plain")).unwrap()[0].arch.as_deref(), Some("sm_90a"));
        assert!(module("sort_r1").contains(".version 7.8\n.target sm_80\n"), "{}", module("sort_r1"));
    }

    #[test]
    fn an_architecture_that_is_not_known_is_an_error() {
        let unknown = MODULE.replace("warpann.kernel plain", "warpann.kernel plain arch=sm_1");
        let error = split(&unknown).unwrap_err();
        assert_eq!(error, PtxError::BadArch { kernel: "plain".into(), arch: "sm_1".into() });
    }

    #[test]
    fn modules_hold_what_their_kernel_reaches_and_no_more() {
        let modules = split(MODULE).unwrap();
        let names: Vec<_> = modules.iter().map(|module| module.0.as_str()).collect();
        assert_eq!(names, ["plain", "select_k32", "sort_r1"]);
        for (kernel, text) in &modules {
            for always in [".version 7.8", ".target sm_80", ".address_size 64", ".file\t1"] {
                assert!(text.contains(always), "{kernel}: {always}");
            }
            assert!(!text.contains("unused_by_all"), "{kernel}");
            assert_eq!(entries(text).unwrap().len(), 1, "{kernel}");
            assert_eq!(notes(text).unwrap().len(), 1, "{kernel}");
        }
        let holds = |index: usize, part: &str| modules[index].1.contains(part);
        assert!(holds(2, ".entry sort_r1") && !holds(2, ".entry select_k32") && !holds(2, "dyn_smem"));
        // Declaration, definition, and what the definition calls.
        assert!(holds(2, ".extern .func") && holds(2, "\n.func  (.param") && holds(2, ".func inner"));
        assert!(holds(2, ".global .align 4 .b8 table_of_steps[8] = {1, 2"));
        assert!(holds(1, ".extern .shared .align 128 .b8 dyn_smem[];") && !holds(1, "helper"));
        assert!(holds(2, "// warpann.kernel sort_r1 maxntid=256 minnctapersm=2\n.visible .entry sort_r1("));
    }

    #[test]
    fn splitting_a_module_again_changes_nothing() {
        for (kernel, text) in split(MODULE).unwrap() {
            assert_eq!(split(&text).unwrap(), [(kernel, text)]);
        }
    }

    #[test]
    fn text_that_ends_early_is_an_error() {
        let cut = MODULE.find("call.uni (retval0)").unwrap();
        assert_eq!(entries(&MODULE[..cut]).unwrap_err(), PtxError::Unfinished { line: 22 });
        for at in (0..MODULE.len()).filter(|&at| MODULE.is_char_boundary(at)) {
            let _ = split(&MODULE[..at]);
        }
    }
}
