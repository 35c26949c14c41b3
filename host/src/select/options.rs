//! The direction of a selection, and the algorithm of a GPU.

use crate::names::named;

/// Whether the smallest or the largest keys are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Best {
    /// Selects the smallest keys of each row.
    #[default]
    Smallest,
    /// Selects the largest keys of each row.
    Largest,
}

/// The algorithm of a GPU. All algorithms give the same bits. The CPU has one algorithm and ignores this value.
///
/// As text (command line, configuration): `auto`, `warp-select`, `threshold-select`.
///
/// ```
/// use warpann::select::Algorithm;
///
/// assert_eq!("warp-select".parse(), Ok(Algorithm::WarpSelect));
/// assert_eq!(Algorithm::default().to_string(), "auto");
/// assert!("sort".parse::<Algorithm>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// The algorithm that measurements show to be fastest for the shape.
    #[default]
    Auto,
    /// WarpSelect as published (paper section 4.3): one warp for each row, queues in registers. Keys of type f32 only.
    WarpSelect,
    /// A bound from a sample of the row, and a selection among the few keys that pass it.
    ThresholdSelect,
}

impl Best {
    /// Both directions, in the order of the enum.
    pub const ALL: [Self; 2] = [Self::Smallest, Self::Largest];

    /// Name in reports: `smallest`, `largest`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smallest => "smallest",
            Self::Largest => "largest",
        }
    }
}

named!(Best, name, "a direction of selection");

impl Algorithm {
    /// All algorithms, `Auto` included.
    pub const ALL: [Self; 3] = [Self::Auto, Self::WarpSelect, Self::ThresholdSelect];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::WarpSelect => "warp-select",
            Self::ThresholdSelect => "threshold-select",
        }
    }
}

named!(Algorithm, name, "an algorithm of selection");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_as_text() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for text in ["", "Auto", "warpselect", "warp_select"] {
            let error = text.parse::<Algorithm>().unwrap_err();
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }
}
