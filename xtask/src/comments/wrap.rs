//! Comments of at most [`WIDTH`] characters a line. rustfmt does not break comments.
//!
//! A paragraph with a longer line is filled again from that line on. Tables, headings and code blocks stay as they are,
//! and so does a word that is longer than a line.

/// The largest number of characters of a line, as rustfmt's for code.
pub const WIDTH: usize = 120;

/// The text of a Rust file with all comments wrapped, and the numbers of the lines, from 1, that were broken.
pub fn wrapped(text: &str) -> (String, Vec<usize>) {
    let lines: Vec<&str> = text.lines().collect();
    let (mut out, mut broken) = (String::with_capacity(text.len()), Vec::new());
    let (mut at, mut in_code) = (0, false);
    while at < lines.len() {
        let line = lines[at];
        let Some(comment) = Comment::of(line) else {
            in_code = false;
            at += 1;
            push(&mut out, line);
            continue;
        };
        in_code ^= comment.text().starts_with("```");
        at += 1;
        if in_code || comment.is_fixed() || line.chars().count() <= WIDTH {
            push(&mut out, line);
            continue;
        }
        let (number, start) = (at, out.len());
        let mut words = words(comment.text());
        let inner = comment.inner_indent();
        while let Some(next) = lines.get(at).and_then(|line| Comment::of(line)).filter(|next| {
            next.prefix == comment.prefix && next.indent() == inner && !next.is_fixed() && next.marker_width() == 0
        }) {
            words.extend(self::words(next.text()));
            at += 1;
        }
        fill(&mut out, &comment, &words);
        // A word that is longer than a line stays.
        if !out[start..].lines().eq(lines[number - 1..at].iter().copied()) {
            broken.push(number);
        }
    }
    if !text.ends_with('\n') {
        out.pop();
    }
    (out, broken)
}

fn push(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// A line that is a comment.
struct Comment<'a> {
    /// The blanks before the comment, and its slashes.
    prefix: &'a str,
    /// The rest of the line.
    body: &'a str,
}

impl<'a> Comment<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let start = line.len() - line.trim_start().len();
        let slashes = ["//!", "///", "//"].into_iter().find(|slashes| line[start..].starts_with(slashes))?;
        let (prefix, body) = line.split_at(start + slashes.len());
        Some(Self { prefix, body })
    }

    fn text(&self) -> &'a str {
        self.body.trim()
    }

    fn indent(&self) -> usize {
        self.body.len() - self.body.trim_start().len()
    }

    /// Whether the line is no part of a paragraph.
    fn is_fixed(&self) -> bool {
        let text = self.text();
        text.is_empty() || text.starts_with(['|', '#']) || text.starts_with("```")
    }

    /// The characters of a list's marker with its blank, such as `- ` and `1. `; 0 without one.
    fn marker_width(&self) -> usize {
        let text = self.text();
        let marker = text.split(' ').next().unwrap_or(text);
        if begins_item(marker) && marker.len() < text.len() { marker.len() + 1 } else { 0 }
    }

    /// The blanks before the further lines of a paragraph.
    fn inner_indent(&self) -> usize {
        self.indent() + self.marker_width()
    }
}

/// Whether a line that begins with this word begins an item of a list, or is no text.
fn begins_item(word: &str) -> bool {
    let number = word.strip_suffix(['.', ')']).unwrap_or("");
    matches!(word, "-" | "*" | "+") || !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The words of a text; code between backticks is one word.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for word in text.split_whitespace() {
        match words.last_mut().filter(|_| open) {
            Some(last) => {
                last.push(' ');
                last.push_str(word);
            }
            None => words.push(word.to_owned()),
        }
        open ^= word.matches('`').count() % 2 == 1;
    }
    words
}

/// Appends the words as lines of the comment. No line but the first begins as an item of a list, a heading or a table
/// does.
fn fill(out: &mut String, comment: &Comment<'_>, words: &[String]) {
    let room = WIDTH.saturating_sub(comment.prefix.chars().count());
    let mut lines: Vec<Vec<&str>> = vec![Vec::new()];
    let mut used = comment.indent();
    for word in words {
        let length = word.chars().count();
        let line = lines.last_mut().filter(|line| line.is_empty() || used + 1 + length <= room);
        let special = begins_item(word) || word.starts_with(['#', '|', '>']);
        match line {
            Some(line) => {
                used += length + usize::from(!line.is_empty());
                line.push(word);
            }
            None => {
                let last = lines.last_mut().filter(|line| special && line.len() > 1).and_then(Vec::pop);
                let next: Vec<&str> = last.into_iter().chain([word.as_str()]).collect();
                used = comment.inner_indent() + next.join(" ").chars().count();
                lines.push(next);
            }
        }
    }
    for (at, line) in lines.iter().enumerate() {
        let indent = if at == 0 { comment.indent() } else { comment.inner_indent() };
        push(out, &format!("{}{}{}", comment.prefix, " ".repeat(indent), line.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` words of nine characters, each with its number.
    fn text(count: usize) -> String {
        (0..count).map(|at| format!("word{at:05}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_paragraph_is_filled_from_its_first_long_line_on() {
        let long = text(14);
        let file =
            format!("    /// Short.\n    /// {long}\n    /// end of it.\n    ///\n    /// Other.\nfn f() {{}}\n");
        let (out, broken) = wrapped(&file);
        let (first, second) = (text(11), "word00011 word00012 word00013 end of it.");
        assert_eq!(
            out,
            format!("    /// Short.\n    /// {first}\n    /// {second}\n    ///\n    /// Other.\nfn f() {{}}\n")
        );
        assert_eq!((wrapped(&out), broken), ((out.clone(), vec![]), vec![2]));
    }

    #[test]
    fn items_keep_their_indent_and_their_neighbours() {
        let file = format!("//! - {}\n//!   more\n//! - next\n//! 10. {}\n//!\n", text(12), text(13));
        let expected = format!(
            "//! - {}\n//!   word00011 more\n//! - next\n//! 10. {}\n//!     word00011 word00012\n//!\n",
            text(11),
            text(11)
        );
        assert_eq!(wrapped(&file), (expected, vec![1, 4]));
    }

    #[test]
    fn tables_headings_code_and_long_words_stay() {
        let word = "x".repeat(130);
        let line = text(14);
        let file = format!(
            "//! | {line} |\n//! # {line}\n//! ```text\n//! {line}\n//! ```\n//! {word}\nlet x = 1; // {line}\nlet s = \"{line}\";\n"
        );
        assert_eq!(wrapped(&file), (file.clone(), vec![]));
    }

    #[test]
    fn code_stays_in_a_line_and_no_line_becomes_an_item() {
        let file = format!("// {} `a b c` 3. end\n", text(11));
        assert_eq!(wrapped(&file).0, format!("// {}\n// `a b c` 3. end\n", text(11)));
        let file = format!("// {} 3. end\n", text(12).replace("word00011", "wo"));
        let (out, _) = wrapped(&file);
        assert!(out.lines().all(|line| !line.starts_with("// 3.")), "{out}");
    }
}
