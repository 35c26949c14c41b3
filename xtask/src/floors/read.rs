//! Reads a crate's sources into modules and the paths that they name.
//!
//! The reader works on tokens (proc-macro2), not on syntax trees (syn): most paths that matter stand in the arguments
//! of macros and in the bodies of `macro_rules!`, which a syntax tree leaves as tokens. No crate of the workspace
//! compiles syn with the features that this needs. Compiling syn as well would take 23 s more of CPU in each cold
//! `cargo xtask` (2 s for proc-macro2 alone, 25 s for both; two cores, November 2026).
//!
//! The reader does not see a method called on a value whose type is never named, a `macro_rules!` macro called by its
//! bare name, or links in documentation.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::shell::Result;

/// The crate root's module in [`Tree::modules`], and its file in [`Tree::files`].
pub const ROOT: usize = 0;

/// A crate's sources by path below its `src` folder, with `/` between folders.
pub type Sources = BTreeMap<String, String>;

/// The contents of a crate's sources.
#[derive(Debug, Default)]
pub struct Tree {
    /// The files that modules reach from the crate root, which is the first.
    pub files: Vec<SourceFile>,
    /// All modules, the crate root first.
    pub modules: Vec<Module>,
    /// Each path of two segments or more, and each leaf of a `use` tree.
    pub references: Vec<Reference>,
    /// Files that no module declaration reaches.
    pub unreached: Vec<String>,
}

/// A file that belongs to the crate.
#[derive(Debug)]
pub struct SourceFile {
    /// Path below `src`.
    pub path: String,
    /// The file is compiled for tests only.
    pub test: bool,
}

/// A module: a file, or `mod name { .. }` within one.
#[derive(Debug, Default)]
pub struct Module {
    /// Index of the file that holds the module's content.
    pub file: usize,
    /// The module around this one; none for the crate root.
    pub parent: Option<usize>,
    /// Child modules by name.
    pub children: BTreeMap<String, usize>,
    /// Names of the items that the module defines.
    pub items: BTreeSet<String>,
    /// Names that `use` brings into the module.
    pub imports: Vec<Import>,
    /// The declaration of the module as `pub(crate)`, if it has one that is not for tests only.
    pub crate_visible: Option<CrateVisible>,
}

/// A declaration `pub(crate) mod name`.
#[derive(Debug)]
pub struct CrateVisible {
    /// Index of the file with the declaration.
    pub file: usize,
    /// Line of the declaration.
    pub line: usize,
    /// Name of the module.
    pub name: String,
}

/// A name that `use` brings into a module.
#[derive(Debug)]
pub struct Import {
    /// The new name; none for a glob import.
    pub name: Option<String>,
    /// The path that the name stands for.
    pub path: Vec<String>,
    /// The `use` stands inside a function, where other modules cannot reach the name.
    pub local: bool,
}

/// A path that a file names.
#[derive(Debug)]
pub struct Reference {
    /// Index of the file.
    pub file: usize,
    /// Index of the module around the path.
    pub module: usize,
    /// Line in the file, from 1.
    pub line: usize,
    /// Segments of the path.
    pub path: Vec<String>,
    /// The path stands in code for tests only.
    pub test: bool,
    /// The path is a leaf of a `pub use`, of whatever visibility.
    pub reexport: bool,
}

/// Reads a crate from its lib.rs, or a program from its main.rs.
pub fn read(sources: &Sources) -> Result<Tree> {
    let mut reader = Reader { sources, tree: Tree::default(), queue: Vec::new() };
    reader.tree.modules.push(Module::default());
    let root = if sources.contains_key("lib.rs") { "lib.rs" } else { "main.rs" };
    reader.queue.push((root.to_owned(), ROOT, false));
    while let Some((path, module, test)) = reader.queue.pop() {
        reader.file(path, module, test)?;
    }
    let mut tree = reader.tree;
    let reached: BTreeSet<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
    tree.unreached = sources.keys().filter(|path| !reached.contains(path.as_str())).cloned().collect();
    Ok(tree)
}

struct Reader<'a> {
    sources: &'a Sources,
    tree: Tree,
    /// Files to read: path, module, for tests only.
    queue: Vec<(String, usize, bool)>,
}

/// The position of the reader.
#[derive(Clone)]
struct Scope {
    file: usize,
    module: usize,
    test: bool,
    /// Directly in a module, not inside a function or a macro's arguments.
    in_module: bool,
    /// The folder of the files of child modules, below `src`, with a `/` at the end unless empty.
    folder: String,
}

impl Reader<'_> {
    fn file(&mut self, path: String, module: usize, test: bool) -> Result<()> {
        let text = &self.sources[&path];
        let tokens: TokenStream = text.parse().map_err(|error| format!("{path}: {error}"))?;
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let test = test || inner_attributes(&tokens).any(is_test_only);
        let folder = match path.strip_suffix("/mod.rs") {
            Some(folder) => format!("{folder}/"),
            None if path == "lib.rs" || path == "main.rs" => String::new(),
            None => format!("{}/", path.trim_end_matches(".rs")),
        };
        let file = self.tree.files.len();
        self.tree.files.push(SourceFile { path, test });
        self.tree.modules[module].file = file;
        self.scan(&tokens, 0, tokens.len(), &Scope { file, module, test, in_module: true, folder })
    }

    /// Reads `tokens[at..end]`. The tokens before `at` are there for the attributes of the first item.
    fn scan(&mut self, tokens: &[TokenTree], mut at: usize, end: usize, scope: &Scope) -> Result<()> {
        while at < end {
            at = match &tokens[at] {
                TokenTree::Punct(punct) if punct.as_char() == '#' && bracket(tokens, at + 1).is_some() => {
                    self.attributes(tokens, at, end, scope)?
                }
                TokenTree::Ident(ident) => match ident.to_string().as_str() {
                    "use" if !is_punct(tokens, at + 1, '<') => self.import(tokens, at, scope),
                    "mod" => self.module(tokens, at, scope)?,
                    // The parentheses of `pub(in crate::a)` name a module around this one.
                    "pub" if group(tokens, at + 1, Delimiter::Parenthesis).is_some() => at + 2,
                    word => {
                        if scope.in_module
                            && let Some(name) = item_name(word, tokens, at)
                        {
                            let exported = word == "macro_rules" && attributes_before(tokens, at).any(is_macro_export);
                            self.tree.modules[if exported { ROOT } else { scope.module }].items.insert(name);
                        }
                        self.path(tokens, at, scope)
                    }
                },
                TokenTree::Group(inner) => {
                    self.group(inner, Scope { in_module: false, ..scope.clone() })?;
                    at + 1
                }
                _ => at + 1,
            };
        }
        Ok(())
    }

    fn group(&mut self, group: &Group, scope: Scope) -> Result<()> {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        self.scan(&tokens, 0, tokens.len(), &scope)
    }

    /// Reads the attributes from `at` on, and with them the item below if the attributes restrict it to tests.
    fn attributes(&mut self, tokens: &[TokenTree], mut at: usize, end: usize, scope: &Scope) -> Result<usize> {
        let mut test = false;
        while is_punct(tokens, at, '#')
            && let Some(attribute) = bracket(tokens, at + 1)
        {
            test |= is_test_only(attribute);
            self.group(attribute, Scope { in_module: false, ..scope.clone() })?;
            at += 2;
        }
        if !test {
            return Ok(at);
        }
        let after = item_end(tokens, at, end);
        self.scan(tokens, at, after, &Scope { test: true, ..scope.clone() })?;
        Ok(after)
    }

    /// Reads the `use` declaration at `at`.
    fn import(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) -> usize {
        let after = (at..tokens.len()).find(|&at| is_punct(tokens, at, ';')).unwrap_or(tokens.len());
        let reexport = visibility_before(tokens, at).is_some();
        let mut leaves = Vec::new();
        use_tree(&tokens[at + 1..after], &mut Vec::new(), &mut leaves);
        for Leaf { path, name, line } in leaves {
            let (file, module, test) = (scope.file, scope.module, scope.test);
            self.tree.references.push(Reference { file, module, line, path: path.clone(), test, reexport });
            self.tree.modules[module].imports.push(Import { name, path, local: !scope.in_module });
        }
        after + 1
    }

    /// Reads `mod name;` or `mod name { .. }`; `mod` may also be a macro's argument.
    fn module(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) -> Result<usize> {
        let Some(TokenTree::Ident(ident)) = tokens.get(at + 1) else { return Ok(at + 1) };
        let name = ident.to_string().trim_start_matches("r#").to_owned();
        let body = group(tokens, at + 2, Delimiter::Brace);
        if body.is_none() && !is_punct(tokens, at + 2, ';') {
            return Ok(at + 1);
        }
        // A module may be declared twice, under different configurations.
        let module = match self.tree.modules[scope.module].children.get(&name) {
            Some(&module) => module,
            None => {
                self.tree.modules.push(Module { file: scope.file, parent: Some(scope.module), ..Module::default() });
                let module = self.tree.modules.len() - 1;
                self.tree.modules[scope.module].children.insert(name.clone(), module);
                module
            }
        };
        if visibility_before(tokens, at).as_deref() == Some("(crate)") && !scope.test {
            let declaration = CrateVisible { file: scope.file, line: ident.span().start().line, name: name.clone() };
            self.tree.modules[module].crate_visible = Some(declaration);
        }
        if let Some(body) = body {
            let folder = format!("{}{name}/", scope.folder);
            self.group(body, Scope { module, in_module: true, folder, ..scope.clone() })?;
        } else if let Some(path) = self.module_file(tokens, at, &name, scope)? {
            self.queue.push((path, module, scope.test));
        }
        Ok(at + 3)
    }

    /// The file of `mod name;`, from the attribute `path` or by Rust's two rules; none for a file outside of `src`,
    /// such as what a program shares with its tests.
    fn module_file(&self, tokens: &[TokenTree], at: usize, name: &str, scope: &Scope) -> Result<Option<String>> {
        let declared_in = &self.tree.files[scope.file].path;
        let candidates = match attributes_before(tokens, at).find_map(path_attribute) {
            Some(path) if path.starts_with("../") => return Ok(None),
            Some(path) => {
                let folder = declared_in.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
                vec![format!("{folder}{path}")]
            }
            None => vec![format!("{}{name}.rs", scope.folder), format!("{}{name}/mod.rs", scope.folder)],
        };
        let found = candidates.iter().find(|path| self.sources.contains_key(*path)).cloned();
        let absent = || format!("{declared_in}: mod {name}: there is no {}", candidates.join(", no "));
        found.ok_or_else(|| absent().into()).map(Some)
    }

    /// Reads the path that begins at the identifier at `at`, if one does, and returns the index of the token after it.
    fn path(&mut self, tokens: &[TokenTree], at: usize, scope: &Scope) -> usize {
        let TokenTree::Ident(first) = &tokens[at] else { return at + 1 };
        let mut path = vec![first.to_string()];
        let mut after = at + 1;
        while is_separator(tokens, after)
            && let Some(TokenTree::Ident(segment)) = tokens.get(after + 2)
        {
            path.push(segment.to_string());
            after += 3;
        }
        // `<T as Trait>::name`, `::name` and `value.name` name nothing of this crate; `0..name::SIZE` may.
        let continues = at >= 2 && is_separator(tokens, at - 2);
        let member = at >= 1 && is_punct(tokens, at - 1, '.') && !(at >= 2 && is_punct(tokens, at - 2, '.'));
        if path.len() > 1 && !continues && !member {
            let (file, module, test, line) = (scope.file, scope.module, scope.test, first.span().start().line);
            self.tree.references.push(Reference { file, module, line, path, test, reexport: false });
        }
        after
    }
}

/// One name of a `use` tree.
struct Leaf {
    path: Vec<String>,
    name: Option<String>,
    line: usize,
}

/// Adds the leaves of the `use` tree `tokens` below `prefix`.
fn use_tree(tokens: &[TokenTree], prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
    let depth = prefix.len();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(segment) => {
                prefix.push(segment.to_string());
                let line = segment.span().start().line;
                if is_separator(tokens, at + 1) {
                    at += 3;
                    continue;
                }
                let mut path = prefix.clone();
                // `a::{self}` names a.
                if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                    path.pop();
                }
                let mut name = path.last().cloned();
                if let (Some(TokenTree::Ident(word)), Some(TokenTree::Ident(new))) =
                    (tokens.get(at + 1), tokens.get(at + 2))
                    && word == "as"
                {
                    name = Some(new.to_string());
                    at += 2;
                }
                leaves.push(Leaf { path, name, line });
            }
            TokenTree::Punct(star) if star.as_char() == '*' => {
                leaves.push(Leaf { path: prefix.clone(), name: None, line: star.span().start().line });
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                use_tree(&inner, prefix, leaves);
            }
            TokenTree::Punct(comma) if comma.as_char() == ',' => prefix.truncate(depth),
            _ => {}
        }
        at += 1;
    }
    prefix.truncate(depth);
}

/// The name of the item that the keyword `word` at `at` defines.
fn item_name(word: &str, tokens: &[TokenTree], at: usize) -> Option<String> {
    let name = match word {
        "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => at + 1,
        "macro_rules" if is_punct(tokens, at + 1, '!') => at + 2,
        _ => return None,
    };
    match tokens.get(name)? {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

/// The index behind the item, statement, field, variant or arm that begins at `at` (behind its attributes).
pub fn item_end(tokens: &[TokenTree], mut at: usize, end: usize) -> usize {
    if is_word(tokens, at, &["pub"]) {
        at += 1 + usize::from(group(tokens, at + 1, Delimiter::Parenthesis).is_some());
    }
    if group(tokens, at, Delimiter::Brace).is_some() {
        return at + 1;
    }
    let is_function = is_word(tokens, at + 1, &["fn", "unsafe", "extern", "async"]);
    let ends_with_semicolon =
        is_word(tokens, at, &["use", "type", "let", "static"]) || is_word(tokens, at, &["const"]) && !is_function;
    const WITH_BODY: [&str; 15] = [
        "fn", "struct", "enum", "union", "trait", "impl", "mod", "const", "extern", "unsafe", "async", "for", "while",
        "loop", "match",
    ];
    // A field may have the name of a contextual keyword.
    let is_field = is_punct(tokens, at + 1, ':') && !is_separator(tokens, at + 1);
    let has_body = !is_field && (is_word(tokens, at, &WITH_BODY) || is_punct(tokens, at + 1, '!'));
    // The commas between `<` and `>` end nothing.
    let mut angles = 0;
    while at < end {
        let is_arrow = |first| at > 0 && is_punct(tokens, at, '>') && is_punct(tokens, at - 1, first);
        match &tokens[at] {
            TokenTree::Punct(punct) => match punct.as_char() {
                ';' => return at + 1,
                ',' if !has_body && !ends_with_semicolon && angles <= 0 => return at + 1,
                '<' => angles += 1,
                '>' if !is_arrow('-') && !is_arrow('=') => angles -= 1,
                // A match arm with a block needs no comma.
                '>' if is_arrow('=') && group(tokens, at + 1, Delimiter::Brace).is_some() => {
                    return at + 2 + usize::from(is_punct(tokens, at + 2, ','));
                }
                _ => {}
            },
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace && has_body && !ends_with_semicolon => {
                return at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    end
}

/// The visibility before the item at `at`: the parentheses of `pub(..)` as text, nothing for `pub` alone.
fn visibility_before(tokens: &[TokenTree], at: usize) -> Option<String> {
    let is_pub = |at| is_word(tokens, at, &["pub"]);
    match at {
        2.. if is_pub(at - 2) => {
            group(tokens, at - 1, Delimiter::Parenthesis).map(|group| group.to_string().replace(' ', ""))
        }
        1.. if is_pub(at - 1) => Some(String::new()),
        _ => None,
    }
}

/// The attributes before the item at `at`, the last one first.
fn attributes_before(tokens: &[TokenTree], at: usize) -> impl Iterator<Item = &Group> {
    let visibility = match visibility_before(tokens, at) {
        Some(restriction) if restriction.is_empty() => 1,
        Some(_) => 2,
        None => 0,
    };
    let mut at = at - visibility;
    std::iter::from_fn(move || {
        let attribute = bracket(tokens, at.checked_sub(1)?)?;
        at = at.checked_sub(2).filter(|&at| is_punct(tokens, at, '#'))?;
        Some(attribute)
    })
}

/// The attributes `#![..]` that open a file.
fn inner_attributes(tokens: &[TokenTree]) -> impl Iterator<Item = &Group> {
    let attributes = (0..).step_by(3).map_while(|at| {
        let opens = is_punct(tokens, at, '#') && is_punct(tokens, at + 1, '!');
        opens.then(|| bracket(tokens, at + 2)).flatten()
    });
    attributes.fuse()
}

/// The text of `path = ".."`.
fn path_attribute(attribute: &Group) -> Option<String> {
    let text = attribute.stream().to_string();
    let value = text.strip_prefix("path")?.trim_start().strip_prefix('=')?.trim();
    Some(value.trim_matches('"').to_owned())
}

/// Whether an attribute is `cfg(..)` with a condition that only tests meet.
pub fn is_test_only(attribute: &Group) -> bool {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match (&tokens[..], tokens.get(1)) {
        ([TokenTree::Ident(word), ..], Some(TokenTree::Group(condition))) if word == "cfg" => {
            let condition: Vec<TokenTree> = condition.stream().into_iter().collect();
            needs_test(&condition)
        }
        _ => false,
    }
}

/// Whether a macro with this attribute belongs to the crate root.
fn is_macro_export(attribute: &Group) -> bool {
    attribute.stream().to_string() == "macro_export"
}

fn needs_test(condition: &[TokenTree]) -> bool {
    let parts = |group: &Group| -> Vec<bool> {
        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
        let parts = inner.split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','));
        parts.filter(|part| !part.is_empty()).map(needs_test).collect()
    };
    match condition {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => parts(group).contains(&true),
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "any" => {
            let parts = parts(group);
            !parts.is_empty() && !parts.contains(&false)
        }
        _ => false,
    }
}

pub fn is_punct(tokens: &[TokenTree], at: usize, char: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

pub fn is_word(tokens: &[TokenTree], at: usize, words: &[&str]) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Ident(word)) if words.iter().any(|expected| word == expected))
}

/// `::`
pub fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

pub fn group(tokens: &[TokenTree], at: usize, delimiter: Delimiter) -> Option<&Group> {
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

pub fn bracket(tokens: &[TokenTree], at: usize) -> Option<&Group> {
    group(tokens, at, Delimiter::Bracket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The references of a file `a.rs` with this text, as `path` or `path (test)`.
    fn references(text: &str) -> Vec<String> {
        let sources = [("lib.rs", "mod a;"), ("a.rs", text)].map(|(path, text)| (path.to_owned(), text.to_owned()));
        let tree = read(&sources.into()).unwrap();
        let shown = |reference: &Reference| {
            format!("{}{}", reference.path.join("::"), if reference.test { " (test)" } else { "" })
        };
        tree.references.iter().map(shown).collect()
    }

    #[test]
    fn use_trees_are_read() {
        let text = "use crate::{a::{self, B as C, d::*}, e}; pub(crate) use super::f; use g;";
        assert_eq!(references(text), ["crate::a", "crate::a::B", "crate::a::d", "crate::e", "super::f", "g"]);
    }

    #[test]
    fn paths_are_read_in_types_expressions_and_macros() {
        let text = "pub(in crate::a) fn f(x: crate::b::C<crate::d::E>) -> [u8; 2] { x.y.z; g!(0..super::h::I); <T as j::K>::l() }";
        assert_eq!(references(text), ["crate::b::C", "crate::d::E", "super::h::I", "j::K"]);
    }

    #[test]
    fn code_for_tests_is_marked() {
        let text = "
            #[cfg(test)] use crate::b;
            use crate::c;
            #[cfg(all(test, feature = \"x\"))] const D: u32 = { crate::d::D };
            #[cfg(any(test, feature = \"x\"))] fn e() { crate::e::e() }
            #[cfg(not(test))] fn f() { crate::f::f() }
            struct G { #[cfg(test)] g: Map<crate::g::A, crate::g::B>, h: crate::h::H }
            impl G { #[cfg(test)] pub fn i<A, B>() -> crate::i::I { crate::i::i() } fn j() { crate::j::j() } }
            fn k() -> G { let x = 1; #[cfg(test)] crate::k::k(x, 1); G { #[cfg(test)] g: crate::l::l(), h: crate::m::m() } }
            fn n() { #[cfg(test)] { crate::n::n() } crate::o::o() }
            fn p() { match x { #[cfg(test)] A => { crate::p::p() } B => crate::q::q(), #[cfg(test)] C => crate::r::r(), D => crate::s::s() } }
            #[cfg(test)] mod tests { use super::*; fn t() { crate::t::t() } }
            #[cfg(test)] thread_local! { static U: u32 = crate::u::u() }
            fn v() { crate::v::v() }";
        let found = references(text);
        let free: Vec<&str> = found.iter().filter_map(|path| path.strip_suffix(" (test)")).collect();
        assert_eq!(
            free,
            [
                "crate::b",
                "crate::d::D",
                "crate::g::A",
                "crate::g::B",
                "crate::i::I",
                "crate::i::i",
                "crate::k::k",
                "crate::l::l",
                "crate::n::n",
                "crate::p::p",
                "crate::r::r",
                "super",
                "crate::t::t",
                "crate::u::u"
            ]
        );
        let held: Vec<&str> = found.iter().filter(|path| !path.ends_with(')')).map(String::as_str).collect();
        assert_eq!(
            held,
            [
                "crate::c",
                "crate::e::e",
                "crate::f::f",
                "crate::h::H",
                "crate::j::j",
                "crate::m::m",
                "crate::o::o",
                "crate::q::q",
                "crate::s::s",
                "crate::v::v"
            ]
        );
    }

    #[test]
    fn files_that_only_tests_include_are_marked() {
        let sources = [
            (
                "lib.rs",
                "mod a; #[cfg(test)] #[path = \"odd.rs\"] mod b; #[path = \"other.rs\"] #[cfg(test)] pub(crate) mod c;",
            ),
            ("a/mod.rs", "mod inner { mod deep; } #[cfg(test)] mod tests;"),
            ("a/inner/deep.rs", "//! A line.\n#![cfg(test)]\nfn f() {}"),
            ("a/tests.rs", "mod cases;"),
            ("a/tests/cases.rs", ""),
            ("odd.rs", ""),
            ("other.rs", ""),
            ("forgotten.rs", ""),
        ];
        let tree = read(&sources.map(|(path, text)| (path.to_owned(), text.to_owned())).into()).unwrap();
        let held: Vec<&str> = tree.files.iter().filter(|file| !file.test).map(|file| file.path.as_str()).collect();
        assert_eq!(held, ["lib.rs", "a/mod.rs"]);
        assert_eq!(tree.files.len(), sources.len() - 1);
        assert_eq!(tree.unreached, ["forgotten.rs"]);
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let error = read(&[("lib.rs".to_owned(), "mod a;".to_owned())].into()).unwrap_err().to_string();
        assert_eq!(error, "lib.rs: mod a: there is no a.rs, no a/mod.rs");
    }
}
