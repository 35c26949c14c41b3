//! Rule 5: where a decision depends on the metric, a `match` names every metric.
//!
//! A comparison with one metric treats a new metric like all others without a word, and a bound that is wrong for it
//! loses neighbours. A `match` without a wildcard does not compile before it has an arm for the new one. So outside of
//! tests these are forbidden:
//!
//! - `==` and `!=` with a variant,
//! - `matches!` with one,
//! - `let` with one in its pattern (`if let`, `while let`, `let .. else`),
//! - a `match` with a variant in one arm and a wildcard, or a name, in the same place of another.
//!
//! `Self` stands for a metric in files called metric.rs. A method that compares is not seen, nor is a variant that
//! `use` brought in by its own name.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::read::{Sources, bracket, group, is_punct, is_separator, is_test_only, is_word, item_end};
use crate::shell::Result;

/// The types whose variants are metrics.
const TYPES: [&str; 3] = ["Metric", "KernelMetric", "Assign"];

/// A place that breaks the rule: line of the file, and how.
pub type Place = (usize, &'static str);

/// The places of all files but those that `skipped` names.
pub fn in_all(sources: &Sources, skipped: impl Fn(&str) -> bool) -> Result<Vec<(String, Place)>> {
    let mut found = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| !skipped(file)) {
        let tokens: TokenStream = text.parse().map_err(|error| format!("{file}: {error}"))?;
        let own = file == "metric.rs" || file.ends_with("/metric.rs");
        let mut reader = Reader { own, found: Vec::new() };
        reader.read(tokens);
        found.extend(reader.found.into_iter().map(|place| (file.clone(), place)));
    }
    Ok(found)
}

struct Reader {
    /// `Self` is a metric.
    own: bool,
    found: Vec<Place>,
}

impl Reader {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_punct(&tokens, at, '#')
                && let Some(attribute) = bracket(&tokens, at + 1)
            {
                at = if is_test_only(attribute) { item_end(&tokens, at + 2, tokens.len()) } else { at + 2 };
                continue;
            }
            self.place(&tokens, at);
            if let TokenTree::Group(inner) = &tokens[at] {
                self.read(inner.stream());
            }
            at += 1;
        }
    }

    fn place(&mut self, tokens: &[TokenTree], at: usize) {
        let line = tokens[at].span().start().line;
        let equals =
            |at: usize| (is_punct(tokens, at, '=') || is_punct(tokens, at, '!')) && is_punct(tokens, at + 1, '=');
        if begins_path(tokens, at)
            && let Some(after) = self.variant(tokens, at)
        {
            let reference = at >= 1 && is_punct(tokens, at - 1, '&');
            let before = at.checked_sub(2 + usize::from(reference));
            if before.is_some_and(equals) || equals(after) {
                self.found.push((line, "compares with one metric"));
            }
        }
        if is_word(tokens, at, &["matches"])
            && is_punct(tokens, at + 1, '!')
            && let Some(TokenTree::Group(arguments)) = tokens.get(at + 2)
        {
            let arguments: Vec<TokenTree> = arguments.stream().into_iter().collect();
            if split(&arguments, ',').iter().skip(1).any(|pattern| self.names_one(pattern)) {
                self.found.push((line, "matches! one metric"));
            }
        }
        if is_word(tokens, at, &["let"]) {
            let end = (at..tokens.len()).find(|&at| is_punct(tokens, at, '=')).unwrap_or(tokens.len());
            if self.names_one(&tokens[at + 1..end]) {
                self.found.push((line, "takes one metric apart with let"));
            }
        }
        if is_word(tokens, at, &["match"])
            && let Some(body) = (at + 1..tokens.len()).find_map(|at| group(tokens, at, Delimiter::Brace))
        {
            let body: Vec<TokenTree> = body.stream().into_iter().collect();
            if self.has_wildcard(&patterns(&body)) {
                self.found.push((line, "has a wildcard for other metrics"));
            }
        }
    }

    /// The index behind the path to a variant of a metric that begins here.
    fn variant(&self, tokens: &[TokenTree], at: usize) -> Option<usize> {
        let mut segments = Vec::new();
        let mut after = at;
        while let Some(TokenTree::Ident(segment)) = tokens.get(after) {
            segments.push(segment.to_string());
            after += 1;
            if !is_separator(tokens, after) {
                break;
            }
            after += 2;
        }
        let [.., of, name] = &segments[..] else { return None };
        let is_metric = TYPES.contains(&of.as_str()) || self.own && of == "Self";
        // Constants and functions are written otherwise.
        let is_variant = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase) || name == "L2";
        (is_metric && is_variant).then_some(after)
    }

    /// Whether a pattern has a variant anywhere.
    fn names_one(&self, pattern: &[TokenTree]) -> bool {
        (0..pattern.len()).any(|at| match &pattern[at] {
            TokenTree::Group(inner) => self.names_one(&inner.stream().into_iter().collect::<Vec<_>>()),
            _ => begins_path(pattern, at) && self.variant(pattern, at).is_some(),
        })
    }

    /// Whether one pattern of a `match` has a variant where another takes anything. A tuple has a place for each of its
    /// parts.
    fn has_wildcard(&self, patterns: &[Vec<TokenTree>]) -> bool {
        let rows: Vec<Vec<Vec<TokenTree>>> = patterns
            .iter()
            .flat_map(|pattern| split(pattern, '|'))
            .map(|pattern| match &pattern[..] {
                [TokenTree::Group(tuple)] if tuple.delimiter() == Delimiter::Parenthesis => {
                    split(&tuple.stream().into_iter().collect::<Vec<_>>(), ',')
                }
                _ => vec![pattern],
            })
            .collect();
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        (0..width).any(|place| {
            // A pattern for the whole tuple is one for each place.
            let parts = || rows.iter().filter_map(|row| if row.len() == 1 { row.first() } else { row.get(place) });
            parts().any(|part| self.names_one(part)) && parts().any(|part| takes_anything(part))
        })
    }
}

/// Whether a path may begin here: not in its middle.
fn begins_path(tokens: &[TokenTree], at: usize) -> bool {
    matches!(tokens[at], TokenTree::Ident(_)) && !(at >= 2 && is_separator(tokens, at - 2))
}

/// `_`, `..` or a name.
fn takes_anything(pattern: &[TokenTree]) -> bool {
    match pattern {
        [TokenTree::Ident(name)] => name.to_string().starts_with(|first: char| first == '_' || first.is_lowercase()),
        [TokenTree::Punct(one), TokenTree::Punct(two)] => one.as_char() == '.' && two.as_char() == '.',
        _ => false,
    }
}

/// The pattern of each arm, without its attributes and its guard.
fn patterns(body: &[TokenTree]) -> Vec<Vec<TokenTree>> {
    let mut patterns = Vec::new();
    let mut at = 0;
    while at < body.len() {
        if is_punct(body, at, '#') && bracket(body, at + 1).is_some() {
            at += 2;
            continue;
        }
        let is_arrow = |&at: &usize| is_punct(body, at, '=') && is_punct(body, at + 1, '>');
        let Some(arrow) = (at..body.len()).find(is_arrow) else { break };
        let end = (at..arrow).find(|&at| is_word(body, at, &["if"])).unwrap_or(arrow);
        patterns.push(body[at..end].to_vec());
        at = arrow + 2;
        // The value is a block, or ends with a comma.
        if group(body, at, Delimiter::Brace).is_some() && !is_punct(body, at + 1, '.') {
            at += 1 + usize::from(is_punct(body, at + 1, ','));
        } else {
            at = (at..body.len()).find(|&at| is_punct(body, at, ',')).map_or(body.len(), |comma| comma + 1);
        }
    }
    patterns
}

/// The parts between separators; none that is empty.
fn split(tokens: &[TokenTree], separator: char) -> Vec<Vec<TokenTree>> {
    let is_separator = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == separator);
    tokens.split(is_separator).filter(|part| !part.is_empty()).map(<[TokenTree]>::to_vec).collect()
}
