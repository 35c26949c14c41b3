//! Finds the places of a source file that a mutation can change, and writes the file with mutations behind a switch.
//!
//! The finder works on tokens, like `xtask/src/floors/read.rs` and for its reasons. The operands of an operator are
//! found by precedence. It
//! relies on rustfmt in one respect: an operator between two operands has a blank or a line break on both sides, and
//! no other use of the
//! same character has.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::shell::Result;

/// The path of the function that says whether a mutant is active, in the crate that is mutated.
const SWITCH: &str = "crate::mutation_switch::on";

/// The change that a mutation makes to its range of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// Other text in place of a part: an operator, or the name of a function.
    Replace(Range<usize>, String),
    /// The opposite of a condition.
    Negate,
    /// A statement that is left out.
    Delete,
}

/// A place in a file and what a mutation does there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// The expression or statement that exists in two variants, in bytes of the file.
    range: Range<usize>,
    change: Change,
    /// Whether the place is evaluated by the compiler. The switch does not work there, so such a mutation needs a
    /// build of its own.
    pub constant: bool,
}

/// A token, with the characters of an operator joined.
#[derive(Debug)]
struct Atom {
    kind: Kind,
    range: Range<usize>,
}

#[derive(Debug)]
enum Kind {
    Operator(String),
    Word(String),
    Literal(String),
    Group(Delimiter, Vec<Atom>),
}

/// Operators of several characters, longer ones first.
const JOINED: [&str; 25] = [
    "<<=", ">>=", "..=", "...", "::", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=", "*=", "/=", "%=",
    "^=", "&=", "|=", "<<", ">>", "..", "##",
];

/// Operators between two operands: each with its precedence and what replaces it.
const BETWEEN: [(&str, u32, &str); 18] = [
    ("*", 10, "+"),
    ("/", 10, "*"),
    ("%", 10, "/"),
    ("+", 9, "-"),
    ("-", 9, "+"),
    ("<<", 8, ">>"),
    (">>", 8, "<<"),
    ("&", 7, "|"),
    ("^", 6, "|"),
    ("|", 5, "&"),
    ("==", 4, "!="),
    ("!=", 4, "=="),
    ("<", 4, "<="),
    ("<=", 4, "<"),
    (">", 4, ">="),
    (">=", 4, ">"),
    ("&&", 3, "||"),
    ("||", 2, "&&"),
];

/// Assignments with an operation, each with what replaces it.
const ASSIGNING: [(&str, &str); 10] = [
    ("+=", "-="),
    ("-=", "+="),
    ("*=", "+="),
    ("/=", "*="),
    ("%=", "/="),
    ("<<=", ">>="),
    (">>=", "<<="),
    ("&=", "|="),
    ("|=", "&="),
    ("^=", "|="),
];

/// Functions and methods with the same arguments and another meaning.
const NAMES: [(&str, &str); 14] = [
    ("min", "max"),
    ("max", "min"),
    ("min_f32", "max_f32"),
    ("max_f32", "min_f32"),
    ("any", "all"),
    ("all", "any"),
    ("saturating_sub", "wrapping_sub"),
    ("wrapping_sub", "wrapping_add"),
    ("wrapping_add", "wrapping_sub"),
    ("is_some", "is_none"),
    ("is_none", "is_some"),
    ("leading_zeros", "trailing_zeros"),
    ("trailing_zeros", "leading_zeros"),
    ("sync_threads_or", "sync_threads_and"),
];

/// Words at which an operand ends.
const BOUNDARIES: [&str; 14] =
    ["if", "while", "return", "match", "in", "let", "else", "move", "mut", "ref", "break", "loop", "for", "const"];

/// Macros whose arguments are messages or conditions of tests, not results.
const UNMUTATED_MACROS: [&str; 12] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "panic",
    "unreachable",
    "format",
    "write",
    "info",
    "debug",
];

/// All mutations of the bodies of functions in `text`, without tests.
pub fn mutations(text: &str) -> Result<Vec<Mutation>> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("not Rust: {error}"))?;
    let mut finder = Finder { text, found: Vec::new(), constant: false };
    finder.items(&atoms(tokens));
    finder.found.sort_by_key(|mutation| (mutation.range.start, mutation.range.end));
    Ok(finder.found)
}

fn atoms(tokens: TokenStream) -> Vec<Atom> {
    let (mut found, mut pending) = (Vec::new(), Vec::<(char, usize)>::new());
    for token in tokens {
        let range = token.span().byte_range();
        if let TokenTree::Punct(punct) = &token {
            if pending.last().is_some_and(|last| last.1 + 1 != range.start) {
                operators(&mut pending, &mut found);
            }
            pending.push((punct.as_char(), range.start));
            continue;
        }
        operators(&mut pending, &mut found);
        let kind = match token {
            TokenTree::Group(group) => Kind::Group(group.delimiter(), atoms(group.stream())),
            TokenTree::Literal(literal) => Kind::Literal(literal.to_string()),
            other => Kind::Word(other.to_string()),
        };
        found.push(Atom { kind, range });
    }
    operators(&mut pending, &mut found);
    found
}

/// Moves adjacent characters to `found`, joined to operators.
fn operators(pending: &mut Vec<(char, usize)>, found: &mut Vec<Atom>) {
    let text: String = pending.iter().map(|character| character.0).collect();
    let (mut rest, mut at) = (text.as_str(), pending.first().map_or(0, |first| first.1));
    while !rest.is_empty() {
        let len = JOINED.iter().find(|joined| rest.starts_with(**joined)).map_or(1, |joined| joined.len());
        found.push(Atom { kind: Kind::Operator(rest[..len].to_owned()), range: at..at + len });
        (rest, at) = (&rest[len..], at + len);
    }
    pending.clear();
}

impl Atom {
    fn is(&self, text: &str) -> bool {
        matches!(&self.kind, Kind::Operator(own) | Kind::Word(own) if own == text)
    }

    fn group(&self, delimiter: Delimiter) -> Option<&[Atom]> {
        match &self.kind {
            Kind::Group(own, atoms) if *own == delimiter => Some(atoms),
            _ => None,
        }
    }
}

struct Finder<'a> {
    text: &'a str,
    found: Vec<Mutation>,
    constant: bool,
}

impl Finder<'_> {
    /// Looks for functions among items.
    fn items(&mut self, atoms: &[Atom]) {
        let (mut at, mut constant) = (0, false);
        while at < atoms.len() {
            let atom = &atoms[at];
            let next_group = atoms.get(at + 1).and_then(|next| next.group(Delimiter::Bracket));
            if atom.is("#") && next_group.is_some_and(is_test) {
                // The attribute and the item behind it.
                while at < atoms.len() && atoms[at].group(Delimiter::Brace).is_none() && !atoms[at].is(";") {
                    at += 1;
                }
            } else if atom.is("#") {
                at += 1;
            } else if atom.is("const") {
                constant = true;
            } else if atom.is(";") {
                constant = false;
            } else if atom.is("fn") {
                let body = atoms[at..].iter().position(|a| a.group(Delimiter::Brace).is_some() || a.is(";"));
                at += body.unwrap_or(atoms.len() - at - 1);
                if let Some(body) = atoms[at].group(Delimiter::Brace) {
                    let outer = std::mem::replace(&mut self.constant, constant);
                    self.block(body);
                    self.constant = outer;
                }
                constant = false;
            } else if let Kind::Group(_, inner) = &atom.kind {
                self.items(inner);
                constant = false;
            }
            at += 1;
        }
    }

    /// Looks at the statements of a block.
    fn block(&mut self, atoms: &[Atom]) {
        let mut start = 0;
        for at in 0..atoms.len() {
            if atoms[at].is(";") {
                self.deletion(&atoms[start..=at]);
            }
            let goes_on = |next: &Atom| {
                [";", ".", "?", "=", ",", ">", ">>", "as", "else"].iter().any(|text| next.is(text))
                    || self.precedence(next).is_some()
            };
            let is_brace = atoms[at].group(Delimiter::Brace).is_some();
            if atoms[at].is(";") || (is_brace && atoms.get(at + 1).is_none_or(|next| !goes_on(next))) {
                start = at + 1;
            }
        }
        self.tokens(atoms, false);
    }

    /// A statement without a value that can be left out: a call or an assignment.
    fn deletion(&mut self, statement: &[Atom]) {
        let kept = ["let", "return", "use", "const", "static", "break", "continue", "fn", "#", "type", "struct"];
        let first = &statement[0];
        let is_macro = statement.get(1).is_some_and(|second| second.is("!"));
        if statement.len() > 1 && !kept.iter().any(|kept| first.is(kept)) && !is_macro {
            self.push(first.range.start..statement[statement.len() - 1].range.end, Change::Delete);
        }
    }

    fn push(&mut self, range: Range<usize>, change: Change) {
        self.found.push(Mutation { range, change, constant: self.constant });
    }

    /// Looks at the tokens of a group. `arms` says that they are the arms of a match, which begin with patterns.
    fn tokens(&mut self, atoms: &[Atom], arms: bool) {
        let mut pattern = arms;
        let mut is_match = false;
        let mut at = 0;
        while at < atoms.len() {
            let atom = &atoms[at];
            if arms && at > 0 {
                let is_body =
                    |at: usize| at > 0 && atoms[at].group(Delimiter::Brace).is_some() && atoms[at - 1].is("=>");
                let next_arm = is_body(at - 1) && !atom.is(".") && !atom.is("?");
                pattern = (pattern || atoms[at - 1].is(",") || next_arm) && !atom.is("=>") && !atom.is("if");
            }
            if pattern {
                at += 1;
                continue;
            }
            match &atom.kind {
                Kind::Operator(operator) if operator == "#" => at += 1,
                Kind::Operator(operator) => self.operator(atoms, at, operator),
                Kind::Word(word) if word == "match" => is_match = true,
                Kind::Word(word) if word == "const" && at > 0 && atoms[at - 1].is("*") => {}
                Kind::Word(word) if word == "const" => {
                    // An item, or a block that the compiler evaluates.
                    let end = atoms[at..].iter().position(|a| a.is(";") || a.group(Delimiter::Brace).is_some());
                    let end = at + end.unwrap_or(0);
                    let outer = std::mem::replace(&mut self.constant, true);
                    self.tokens(&atoms[at + 1..=end.max(at)], false);
                    self.constant = outer;
                    at = end;
                }
                Kind::Word(word) if word == "use" => {
                    at += atoms[at..].iter().position(|a| a.is(";")).unwrap_or(0);
                }
                Kind::Word(word) if word == "if" => self.condition(atoms, at),
                Kind::Word(word) if word == "true" || word == "false" => {
                    let other = if word == "true" { "false" } else { "true" };
                    self.push(atom.range.clone(), Change::Replace(atom.range.clone(), other.to_owned()));
                }
                Kind::Word(word) => {
                    let is_macro = atoms.get(at + 1).is_some_and(|next| next.is("!"));
                    if is_macro && UNMUTATED_MACROS.contains(&word.as_str()) {
                        at += 2;
                    } else {
                        self.name(atoms, at, word);
                    }
                }
                Kind::Literal(literal) => self.literal(atoms, at, literal),
                Kind::Group(Delimiter::Brace, inner) if is_match => {
                    self.tokens(inner, true);
                    is_match = false;
                }
                Kind::Group(Delimiter::Brace, inner) => self.block(inner),
                Kind::Group(_, inner) => {
                    // The length of an array behind its value.
                    let (value, length) = inner.split_at(inner.iter().position(|a| a.is(";")).unwrap_or(inner.len()));
                    self.tokens(value, false);
                    let outer = std::mem::replace(&mut self.constant, true);
                    self.tokens(length, false);
                    self.constant = outer;
                }
            }
            at += 1;
        }
    }

    /// Whether a blank or a line break stands before and behind `atom`.
    fn is_between(&self, atom: &Atom) -> bool {
        let blank = |at: usize| self.text.as_bytes().get(at).is_some_and(u8::is_ascii_whitespace);
        atom.range.start > 0 && blank(atom.range.start - 1) && blank(atom.range.end)
    }

    fn precedence(&self, atom: &Atom) -> Option<u32> {
        let Kind::Operator(own) = &atom.kind else { return None };
        BETWEEN
            .iter()
            .find(|(operator, ..)| operator == own && self.is_between(atom))
            .map(|(_, precedence, _)| *precedence)
    }

    /// Whether an operand of an operator of `precedence` ends before this atom.
    fn ends(&self, atom: &Atom, precedence: u32, right: bool) -> bool {
        if let Some(own) = self.precedence(atom) {
            return own < precedence || (right && own == precedence);
        }
        match &atom.kind {
            Kind::Operator(operator) => {
                [",", ";", "=", "=>", ":", "->", "|", "||", "..", "..=", "#"].contains(&operator.as_str())
                    || ASSIGNING.iter().any(|(assigning, _)| assigning == operator)
            }
            Kind::Word(word) => BOUNDARIES.contains(&word.as_str()),
            _ => false,
        }
    }

    /// The first atom of the left operand of the operator at `at`; `at` if there is none.
    fn left(&self, atoms: &[Atom], at: usize, precedence: u32) -> usize {
        let mut first = at;
        while first > 0 && !self.ends(&atoms[first - 1], precedence, false) {
            if atoms[first - 1].group(Delimiter::Brace).is_some() {
                if first > 1 && atoms[first - 2].is("unsafe") {
                    first -= 2;
                    continue;
                }
                break;
            }
            first -= 1;
        }
        first
    }

    /// The atom behind the right operand of the operator at `at`.
    fn right(&self, atoms: &[Atom], at: usize, precedence: u32) -> usize {
        let mut end = at + 1;
        while end < atoms.len() && !self.ends(&atoms[end], precedence, true) {
            if atoms[end].group(Delimiter::Brace).is_some() && !atoms[end - 1].is("unsafe") {
                break;
            }
            end += 1;
        }
        end
    }

    fn operator(&mut self, atoms: &[Atom], at: usize, operator: &str) {
        let own = atoms[at].range.clone();
        if let Some((_, precedence, other)) = BETWEEN.iter().find(|(text, ..)| *text == operator)
            && self.is_between(&atoms[at])
        {
            let (first, end) = (self.left(atoms, at, *precedence), self.right(atoms, at, *precedence));
            if first < at && end > at + 1 {
                let range = atoms[first].range.start..atoms[end - 1].range.end;
                self.push(range, Change::Replace(own, (*other).to_owned()));
            }
        } else if let Some((_, other)) = ASSIGNING.iter().find(|(text, _)| *text == operator) {
            let first = self.left(atoms, at, 0);
            let end = atoms[at..].iter().position(|a| a.is(";") || a.is(",")).map_or(atoms.len(), |end| at + end);
            // The semicolon belongs to the statement, so that the two variants are statements as well.
            let last = if atoms.get(end).is_some_and(|a| a.is(";")) { end } else { end - 1 };
            if first < at {
                let range = atoms[first].range.start..atoms[last].range.end;
                self.push(range, Change::Replace(own, (*other).to_owned()));
            }
        }
    }

    /// The condition of the `if` at `at`, unless it binds names.
    fn condition(&mut self, atoms: &[Atom], at: usize) {
        let Some(len) = atoms[at + 1..].iter().position(|a| a.group(Delimiter::Brace).is_some() || a.is("=>")) else {
            return;
        };
        let condition = &atoms[at + 1..at + 1 + len];
        if let (Some(first), Some(last)) = (condition.first(), condition.last())
            && !condition.iter().any(|a| a.is("let") || a.is("unsafe"))
        {
            self.push(first.range.start..last.range.end, Change::Negate);
        }
    }

    /// A call of a function that [`NAMES`] lists.
    fn name(&mut self, atoms: &[Atom], at: usize, word: &str) {
        let Some((_, other)) = NAMES.iter().find(|(name, _)| *name == word) else { return };
        if atoms.get(at + 1).is_none_or(|next| next.group(Delimiter::Parenthesis).is_none()) {
            return;
        }
        let mut first = at;
        while first > 0 {
            let before = &atoms[first - 1];
            // The types of a call: name::<types>(arguments).
            if before.is(">") && is_call(atoms, first) {
                let Some(open) = atoms[..first].iter().rposition(|a| a.is("<")) else { break };
                first = open;
                continue;
            }
            let joins = match &before.kind {
                Kind::Operator(operator) => [".", "::", "?"].contains(&operator.as_str()),
                Kind::Word(before) => {
                    !BOUNDARIES.contains(&before.as_str())
                        && ([".", "::"].iter().any(|text| atoms[first].is(text)) || is_call(atoms, first))
                }
                Kind::Literal(_) => atoms[first].is("."),
                Kind::Group(Delimiter::Brace, _) => false,
                Kind::Group(..) => atoms[first].is(".") || atoms[first].is("?") || is_call(atoms, first),
            };
            if !joins {
                break;
            }
            first -= 1;
        }
        let range = atoms[first].range.start..atoms[at + 1].range.end;
        self.push(range, Change::Replace(atoms[at].range.clone(), (*other).to_owned()));
    }

    /// A number plus 1. Numbers that select a field, and those of types, stay.
    fn literal(&mut self, atoms: &[Atom], at: usize, literal: &str) {
        let range = atoms[at].range.clone();
        let bytes = self.text.as_bytes();
        let beside =
            |index: Option<usize>, sign: u8| index.and_then(|index| bytes.get(index)).is_some_and(|byte| *byte == sign);
        let field = at > 0 && atoms[at - 1].is(".");
        let generic = beside(range.start.checked_sub(1), b'<') || beside(Some(range.end), b'>');
        if field || generic {
            return;
        }
        if let Some(other) = next_number(literal) {
            self.push(range.clone(), Change::Replace(range, other));
        }
    }
}

/// Whether the atom is the parentheses or brackets behind the name or value before it, without a blank.
fn is_call(atoms: &[Atom], at: usize) -> bool {
    matches!(atoms[at].kind, Kind::Group(Delimiter::Parenthesis | Delimiter::Bracket, _))
        && at > 0
        && atoms[at - 1].range.end == atoms[at].range.start
}

/// Whether an attribute marks tests: `cfg(test)` or `test`.
fn is_test(attribute: &[Atom]) -> bool {
    let is_word = |atoms: &[Atom]| atoms.len() == 1 && atoms[0].is("test");
    is_word(attribute)
        || (attribute.len() == 2
            && attribute[0].is("cfg")
            && attribute[1].group(Delimiter::Parenthesis).is_some_and(is_word))
}

/// The text of a number that is one greater, with the same suffix. Nothing for strings and characters.
fn next_number(literal: &str) -> Option<String> {
    if !literal.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let text = literal.replace('_', "");
    let (digits, radix) = match text.get(..2) {
        Some("0x") => (&text[2..], 16),
        Some("0b") => (&text[2..], 2),
        Some("0o") => (&text[2..], 8),
        _ => (text.as_str(), 10),
    };
    let suffixes =
        ["usize", "isize", "u128", "i128", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"];
    let suffix =
        suffixes.into_iter().find(|suffix| digits.ends_with(suffix) && !(radix == 16 && suffix.starts_with('f')));
    let number = &digits[..digits.len() - suffix.map_or(0, str::len)];
    if radix == 10 && (number.contains(['.', 'e', 'E']) || suffix.is_some_and(|suffix| suffix.starts_with('f'))) {
        let value: f64 = number.parse().ok()?;
        // Half more: an addition of 1 would not change large numbers.
        let other = if value == 0.0 { 1.0 } else { value * 1.5 };
        return Some(format!("{other:?}{}", suffix.unwrap_or_default()));
    }
    let value = u128::from_str_radix(number, radix).ok()?;
    // The largest numbers of a type have no next one.
    let other =
        if [8, 16, 32, 64].iter().any(|bits| value == (1 << bits) - 1) { value - 1 } else { value.checked_add(1)? };
    Some(format!("{other}{}", suffix.unwrap_or_default()))
}

impl Mutation {
    /// Number of the line, from 1.
    pub fn line(&self, text: &str) -> usize {
        let at = if let Change::Replace(part, _) = &self.change { part.start } else { self.range.start };
        text[..at].matches('\n').count() + 1
    }

    /// Whether both change a part of the same text and neither contains the other, so that one file cannot have both.
    pub fn clashes(&self, other: &Mutation) -> bool {
        let (a, b) = (&self.range, &other.range);
        let apart = a.end <= b.start || b.end <= a.start;
        let inside = |a: &Range<usize>, b: &Range<usize>| b.start <= a.start && a.end <= b.end && a != b;
        !apart && !inside(a, b) && !inside(b, a)
    }

    /// The two variants in a few words: what stood there and what stands there in the mutant.
    pub fn describe(&self, text: &str) -> String {
        let short = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let line = words.join(" ");
            if line.chars().count() <= 90 { line } else { line.chars().take(87).chain("...".chars()).collect() }
        };
        let own = &text[self.range.clone()];
        match &self.change {
            Change::Delete => format!("`{}` left out", short(own)),
            Change::Negate => format!("`{}` negated", short(own)),
            Change::Replace(part, other) => format!("`{}`: `{}` becomes `{other}`", short(own), &text[part.clone()]),
        }
    }

    /// The text of the whole file with this mutation and nothing else.
    pub fn alone(&self, text: &str) -> String {
        let own = &text[self.range.clone()];
        let (part, other) = match &self.change {
            Change::Replace(part, other) => (part.clone(), other.clone()),
            Change::Negate => (self.range.clone(), format!("!({own})")),
            Change::Delete => (self.range.clone(), String::new()),
        };
        [&text[..part.start], &other, &text[part.end..]].concat()
    }
}

/// A file with switches, and where the text of each mutation stands in it.
pub struct Switched {
    /// The file with all mutations, each behind the switch of its number.
    pub text: String,
    /// The number of a mutation and its bytes in [`Self::text`]; an inner mutation may stand in several places.
    pub places: Vec<(usize, Range<usize>)>,
}

/// Writes `text` with the `mutations`, each with its number. No two clash.
pub fn switched(text: &str, mutations: &[(usize, &Mutation)]) -> Switched {
    let mut out = Switched { text: String::new(), places: Vec::new() };
    write_range(text, 0..text.len(), mutations, &mut out);
    out
}

fn write_range(text: &str, range: Range<usize>, mutations: &[(usize, &Mutation)], out: &mut Switched) {
    // Those that no other contains come first.
    let inside = |a: &Range<usize>, b: &Range<usize>| b.start <= a.start && a.end <= b.end;
    let within: Vec<(usize, &Mutation)> = mutations.iter().copied().filter(|(_, m)| inside(&m.range, &range)).collect();
    let mut outer: Vec<(usize, &Mutation)> = within.clone();
    outer.retain(|(number, m)| !within.iter().any(|(other, o)| other != number && inside(&m.range, &o.range)));
    outer.sort_by_key(|(_, m)| m.range.start);
    let mut at = range.start;
    for (number, mutation) in outer {
        out.text.push_str(&text[at..mutation.range.start]);
        let rest: Vec<(usize, &Mutation)> = within.iter().copied().filter(|(other, _)| *other != number).collect();
        let start = out.text.len();
        write_mutation(text, number, mutation, &rest, out);
        out.places.push((number, start..out.text.len()));
        at = mutation.range.end;
    }
    out.text.push_str(&text[at..range.end]);
}

fn write_mutation(text: &str, number: usize, mutation: &Mutation, rest: &[(usize, &Mutation)], out: &mut Switched) {
    let range = mutation.range.clone();
    match &mutation.change {
        Change::Delete => {
            out.text.push_str(&format!("if !{SWITCH}({number}) {{ "));
            write_range(text, range, rest, out);
            out.text.push_str(" }");
        }
        Change::Negate => {
            out.text.push_str(&format!("({SWITCH}({number}) ^ ("));
            write_range(text, range, rest, out);
            out.text.push_str("))");
        }
        Change::Replace(part, other) => {
            let statement = text[range.clone()].ends_with(';');
            out.text.push_str(&format!("{}if {SWITCH}({number}) {{ ", if statement { "" } else { "(" }));
            write_range(text, range.start..part.start, rest, out);
            out.text.push_str(other);
            write_range(text, part.end..range.end, rest, out);
            out.text.push_str(" } else { ");
            write_range(text, range.start..part.start, rest, out);
            out.text.push_str(&text[part.clone()]);
            write_range(text, part.end..range.end, rest, out);
            out.text.push_str(if statement { " }" } else { " })" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mutants of a function with this body, each as the whole text of the body.
    fn mutants(body: &str) -> Vec<String> {
        let text = format!("fn f() {{\n{body}\n}}");
        let strip = |text: String| text["fn f() {\n".len()..text.len() - 2].to_owned();
        mutations(&text).unwrap().iter().map(|mutation| strip(mutation.alone(&text))).collect()
    }

    /// The body with the mutations `numbers` behind switches.
    fn switches(body: &str, numbers: &[usize]) -> String {
        let text = format!("fn f() {{\n{body}\n}}");
        let found = mutations(&text).unwrap();
        let numbered: Vec<(usize, &Mutation)> = numbers.iter().map(|&number| (number, &found[number])).collect();
        let switched = switched(&text, &numbered);
        for (number, place) in &switched.places {
            assert!(switched.text[place.clone()].contains(&format!("{SWITCH}({number})")));
        }
        switched.text["fn f() {\n".len()..switched.text.len() - 2].replace(SWITCH, "on")
    }

    #[test]
    fn every_kind_of_place_is_found() {
        assert_eq!(mutants("a < b"), ["a <= b"]);
        assert_eq!(mutants("x += y;"), ["", "x -= y;"]);
        assert_eq!(mutants("f(x, true);"), ["", "f(x, false);"]);
        assert_eq!(mutants("if a { b } else { c }"), ["if !(a) { b } else { c }"]);
        assert_eq!(mutants("x.y.min(z)"), ["x.y.max(z)"]);
        assert_eq!(mutants("warp::any(MASK, hit)"), ["warp::all(MASK, hit)"]);
        let found = mutations("fn f() { a = b.c::<T>().min(d); }").unwrap();
        assert_eq!(found[1].range, 13..30);
        assert_eq!(
            mutants("[7u32, 0xff, 1.0, 0.0]"),
            ["[8u32, 0xff, 1.0, 0.0]", "[7u32, 254, 1.0, 0.0]", "[7u32, 0xff, 1.5, 0.0]", "[7u32, 0xff, 1.0, 1.0]"]
        );
    }

    #[test]
    fn what_is_no_value_stays() {
        for body in [
            "let x: Vec<u32> = y;",
            "unroll::<4>(f)",
            "x.0",
            "match x { 0 => a, 1..=3 => b, Some(5) => c }",
            "assert!(x < 3, \"{}\", 5);",
            "let x = -y as *const u8;",
            "#[expect(a, reason = 1)] let x = |a, b| c;",
            "x.cast::<[u8; N]>()",
        ] {
            assert_eq!(mutants(body), [""; 0], "{body}");
        }
        assert_eq!(mutants("match x { 0 if a < b => c, _ => d }").len(), 2);
        assert_eq!(mutants("match x { 0 => { 1 } 2 => 3, _ => d }").len(), 2);
        let tests = "#[cfg(test)] mod tests { fn f() { 1 } } #[test] fn g() { 2 } fn h() { 3 }";
        assert_eq!(mutations(tests).unwrap().len(), 1);
    }

    #[test]
    fn operands_end_where_an_operator_binds_less() {
        assert_eq!(switches("x = a + b * c < d;", &[3]), "x = a + (if on(3) { b + c } else { b * c }) < d;");
        let range = |body: &str, operator: &str| {
            let text = format!("fn f() {{ {body} }}");
            let part = text.find(operator).unwrap();
            let is_it =
                |mutation: &&Mutation| matches!(&mutation.change, Change::Replace(own, _) if own.start == part + 1);
            let found = mutations(&text).unwrap();
            text[found.iter().find(is_it).unwrap().range.clone()].to_owned()
        };
        assert_eq!(range("let x = a + b * c < d && e;", " + "), "a + b * c");
        assert_eq!(range("let x = a + b * c < d && e;", " < "), "a + b * c < d");
        assert_eq!(range("g(a, b - c - d, e)", " - d"), "b - c - d");
        assert_eq!(range("if !a && x.f(b)[c] as u32 != -1 { }", " != "), "x.f(b)[c] as u32 != -1");
        assert_eq!(range("unsafe { a } < unsafe { b }", " < "), "unsafe { a } < unsafe { b }");
        assert_eq!(range("let f = |e: usize| (e << 1) | y;", " | y"), "(e << 1) | y");
        assert_eq!(range("for i in a..b + 1 { }", " + "), "b + 1");
    }

    #[test]
    fn mutations_inside_one_another_are_both_switched() {
        assert_eq!(switches("x = f(a < 3);", &[0, 2]), "if !on(0) { x = f(a < (if on(2) { 4 } else { 3 })); }");
        let text = "fn f() { g(a < b); }";
        let found = mutations(text).unwrap();
        assert!(!found[0].clashes(&found[1]) && found[1].clashes(&found[1]));
        assert_eq!(found[1].describe(text), "`a < b`: `<` becomes `<=`");
        assert_eq!(found[1].line(text), 1);
    }

    #[test]
    fn places_that_the_compiler_evaluates_are_marked() {
        let constant = |text: &str| mutations(text).unwrap().iter().map(|m| m.constant).collect::<Vec<_>>();
        assert_eq!(constant("const fn f() { 1 }"), [true]);
        assert_eq!(constant("const N: u32 = 3; fn f(x: *const u8) { 1 }"), [false]);
        assert_eq!(constant("fn f() { const N: u32 = 3; 4 }"), [true, false]);
        assert_eq!(constant("fn f() { const { g(1) }; [5; 6] }"), [true, false, true]);
    }
}
