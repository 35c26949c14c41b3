//! Values as text: the names of the command line, of configuration and of reports.
//!
//! A type with names implements `Display` and `FromStr`, and the text of a value gives the value again. With the
//! feature `serde` the type is serialised as that text.

/// A text that is not the name of a value, with the names that are known.
///
/// ```
/// use warpann::Metric;
///
/// let error = "euclid".parse::<Metric>().unwrap_err();
/// assert_eq!(error.text(), "euclid");
/// assert_eq!(error.known(), ["l2", "ip", "cosine", "hamming"]);
/// assert_eq!(error.to_string(), "'euclid' is not a metric; known are l2, ip, cosine, hamming");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {kind}; known are {}", known.join(", "))]
pub struct UnknownName {
    text: String,
    kind: &'static str,
    known: &'static [&'static str],
}

impl UnknownName {
    pub(crate) fn new(text: &str, kind: &'static str, known: &'static [&'static str]) -> Self {
        Self { text: text.to_owned(), kind, known }
    }

    /// The text that was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The kind of value that was expected, with its article: `a metric`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// All names of such values. Where a name has a number, a capital letter stands for it: `gpu:N`.
    pub fn known(&self) -> &'static [&'static str] {
        self.known
    }
}

/// Implements `Display` and `FromStr` for a type with a constant `ALL` and a constant function that returns the name of
/// a value.
macro_rules! named {
    ($type:ty, $name:ident, $kind:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.$name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                const NAMES: [&str; <$type>::ALL.len()] = {
                    let mut names = [""; <$type>::ALL.len()];
                    let mut at = 0;
                    while at < names.len() {
                        names[at] = <$type>::ALL[at].$name();
                        at += 1;
                    }
                    names
                };
                let place = NAMES.iter().position(|name| *name == text);
                place.map(|at| Self::ALL[at]).ok_or_else(|| $crate::UnknownName::new(text, $kind, &NAMES))
            }
        }

        $crate::serialised::serialised_as_text!($type);
    };
}
pub(crate) use named;
