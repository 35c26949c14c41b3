//! What a search takes: scratch and the choices that sizes make.

use cuda_std::global::U32x4;
use warpann_kernels::ivf::list_scan::TILE_ROWS;
use warpann_kernels::{ivf::pairs, product::prepare};

use super::image::{Resident, Stored};
use super::stage::{Stage, selected, selected_probes};
use super::tables::{Precision, TablePlan};
use crate::device::limits::Limits;
use crate::device::scratch::Layout;
use crate::select::gpu::Columns;
use crate::{ElementType, Result};

/// Pairs a list, on average, up to which tiles of 16 queries are used.
const SMALL_TILES: u64 = 12;
/// Pairs a list, times the number of sub-quantizers, up to which codes are scanned by tables; to make those of a query costs as much as to
/// scan so many rows by them; and the number of sub-quantizers beyond which all that falls.
const TABLES_UP_TO: u64 = 625;
const TABLE_ROWS: u64 = 2_440;
const MANY_SUB_QUANTIZERS: u32 = 32;
/// Rows that are scored before a limit, for each candidate wanted; the least number of lists; and how many times more lists make
/// appending pay.
const DENSE_ROWS: u64 = 16;
const DENSE_PROBES: u64 = 16;
const APPEND_FROM: u32 = 3;
/// Rows of an item: long ones where there are many pairs, else as many items as can be.
pub(super) const ITEM_ROWS: u32 = 1024;

/// What is asked of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub queries: u32,
    pub k: u32,
    /// Lists to probe, at most as many as there are.
    pub probes: u32,
    /// Attempts that left queries without certificate.
    pub attempt: u32,
    /// Words of a filter, where one applies. It is of the whole index, of which the image may show a part.
    pub filter_words: Option<usize>,
    /// Whether codes are scanned query by query, by lookup tables.
    pub by_tables: bool,
    /// Probes whose scores are all kept; from the lists of the others candidates are appended. All of them: nothing is appended.
    pub dense_probes: u32,
}

impl Ask {
    /// Whether a filter applies.
    pub fn filtered(&self) -> bool {
        self.filter_words.is_some()
    }
}

/// Scratch of a search, relative to its start.
pub(super) struct SearchPlan {
    pub ask: Ask,
    /// As stored, and as f32 where that is something else.
    pub queries: usize,
    pub wide: Option<usize>,
    pub copies: usize,
    pub factors: usize,
    pub errors: usize,
    pub shifts: usize,
    /// Cosine: copies, factors, errors and shifts for the coarse quantiser.
    pub coarse_copies: Option<[usize; 4]>,
    pub coarse_scores: usize,
    pub coarse: Stage,
    pub probe_keys: usize,
    pub probes: usize,
    pub filter: usize,
    pub live: usize,
    pub counts: usize,
    pub slots: usize,
    pub offsets: usize,
    pub row_lengths: usize,
    pub live_rows: usize,
    pub first_pairs: usize,
    pub first_items: usize,
    pub item_count: usize,
    pub row_starts: usize,
    pub grouped: usize,
    pub items: usize,
    pub scores: usize,
    /// Plan of the scan by lookup tables, and where its errors go.
    pub tables: Option<(TablePlan, usize)>,
    pub fine: Stage,
    /// Flags of the coarse quantiser and of the search, distances, ranks: one behind the other.
    pub results: usize,
    pub bytes: usize,
}

impl SearchPlan {
    /// # Errors
    /// What [`TablePlan::new`] says.
    pub fn new(resident: &Resident, element: ElementType, ask: Ask, limits: &Limits) -> Result<SearchPlan> {
        let image = &resident.image;
        let queries = ask.queries as usize;
        let mut layout = Layout::default();
        let stride = image.stride() as usize;
        let query_bytes = match image.stored {
            Stored::Rows { .. } => stride * element.size(),
            Stored::Codes(_) => stride * size_of::<f32>(),
        };
        let narrow = matches!(image.stored, Stored::Rows { .. }) && element != ElementType::F32;
        let copy = queries.saturating_mul(image.copy_stride as usize);
        let cosine = image.metric_code() == prepare::METRIC_COSINE;
        let lists = image.lists as usize;
        let pair_count = queries.saturating_mul(ask.probes as usize);
        let columns = resident.columns(ask.dense_probes);
        let appends = ask.dense_probes < ask.probes;
        let tables = match image.stored {
            Stored::Codes(codes) if ask.by_tables => {
                let (queries, probes) = (ask.queries, ask.probes);
                let plan =
                    TablePlan::new(&mut layout, &codes.tables, codes.terms, Precision::Auto, queries, probes, limits)?;
                Some((plan, layout.array::<f32>(queries as usize)))
            }
            _ => None,
        };
        let plan = SearchPlan {
            ask,
            queries: layout.array::<u8>(queries.saturating_mul(query_bytes)),
            wide: narrow.then(|| layout.array::<f32>(queries.saturating_mul(stride))),
            copies: layout.array::<u16>(copy),
            factors: layout.array::<f32>(queries),
            errors: layout.array::<f32>(2 * queries),
            shifts: layout.array::<f32>(queries),
            coarse_copies: cosine.then(|| {
                [
                    layout.array::<u16>(copy),
                    layout.array::<f32>(queries),
                    layout.array::<f32>(2 * queries),
                    layout.array::<f32>(queries),
                ]
            }),
            coarse_scores: layout.array::<f32>(queries.saturating_mul(pairs::padded(image.lists) as usize)),
            coarse: Stage::reserve(
                &mut layout,
                ask.queries,
                image.lists.into(),
                ask.probes,
                selected_probes(ask.probes, image.lists, ask.attempt),
                limits,
            ),
            probe_keys: layout.array::<f32>(pair_count),
            probes: layout.array::<u32>(pair_count),
            filter: layout.array::<u32>(ask.filter_words.unwrap_or(0)),
            live: layout.array::<u32>(if ask.filtered() { lists } else { 0 }),
            counts: layout.array::<u32>(lists),
            slots: layout.array::<u32>(pair_count),
            offsets: layout.array::<u32>(pair_count),
            row_lengths: layout.array::<u32>(queries),
            live_rows: layout.array::<u32>(queries),
            first_pairs: layout.array::<u32>(lists),
            first_items: layout.array::<u32>(lists),
            item_count: layout.array::<u32>(1),
            row_starts: layout.array::<u64>(queries + 1),
            grouped: layout.array::<U32x4>(pair_count),
            items: layout.array::<U32x4>(resident.most_items(ask)),
            scores: layout.array::<f32>(queries.saturating_mul(columns.most as usize)),
            tables,
            fine: {
                let reserve = if appends { Stage::reserve_appended } else { Stage::reserve };
                let selected = selected(ask.k, columns.most, ask.attempt);
                reserve(&mut layout, ask.queries, columns, ask.k, selected, limits)
            },
            results: layout.array::<u32>(result_words(queries, ask.k as usize)),
            bytes: 0,
        };
        Ok(SearchPlan { bytes: layout.bytes(), ..plan })
    }
}

impl SearchPlan {
    /// Candidates that a query's list has room for, where candidates are appended.
    pub fn room(&self) -> Option<u32> {
        self.fine.capacity()
    }
}

/// Words of the results of a search: two flags, k distances and ranks, and a number of candidates a query.
pub(super) fn result_words(queries: usize, k: usize) -> usize {
    queries.saturating_mul(3).saturating_add(queries.saturating_mul(k).saturating_mul(2))
}

impl Resident {
    /// Scores of a query with so many probes: at most, where they are the longest lists, and about.
    pub fn columns(&self, probes: u32) -> Columns {
        let at = (probes as usize).min(self.longest.len());
        // The rows of the storage are u32, and these are some of them.
        let most = at.checked_sub(1).map_or(0, |last| self.longest[last] as u32).max(1);
        let average = u64::from(self.image.rows) * at as u64 / u64::from(self.image.lists.max(1));
        Columns { most, typical: (average as u32).clamp(1, most) }
    }

    /// Probes whose scores are all kept: all, unless there are so many that appending pays ([`list_scan`]).
    pub fn dense_probes(&self, ask: Ask) -> u32 {
        let average = (u64::from(self.image.rows) / u64::from(self.image.lists.max(1))).max(1);
        let wanted = u64::from(selected(ask.k, u32::MAX, 0)) * DENSE_ROWS / average + DENSE_PROBES;
        let dense = u32::try_from(wanted).unwrap_or(u32::MAX);
        if self.small_tiles(ask) || ask.probes < dense.saturating_mul(APPEND_FROM) { ask.probes } else { dense }
    }

    /// Whether codes are scanned sooner by lookup tables, query by query, than list by list: tables cost a query, and rows to scan a pair;
    /// lists cost the decoding of all their rows. Measured on an H200, 2026-11-22, 1,000,000 vectors of 128 components in 4096 lists, k = 10,
    /// ms by tables and by lists:
    ///
    /// | queries, probes | 8 bytes | 16 bytes | 32 bytes | 64 bytes |
    /// |---|---|---|---|---|
    /// | 256, 64 | 0.16, 0.29 | 0.18, 0.32 | 0.22, 0.33 | 0.31, 0.26 |
    /// | 1,024, 8 | 0.19, 0.31 | 0.21, 0.32 | 0.24, 0.33 | 0.29, 0.27 |
    /// | 1,024, 64 | 0.38, 0.66 | 0.42, 0.70 | 0.56, 0.72 | 0.86, 0.57 |
    /// | 2,500, 16 | 0.38, 0.55 | 0.42, 0.56 | 0.51, 0.56 | 0.70, 0.47 |
    /// | 2,500, 32 | 0.48, 0.61 | 0.54, 0.62 | 0.70, 0.61 | 1.06, 0.52 |
    /// | 10,000, 1 | 0.84, 0.86 | 0.86, 0.82 | 1.02, 0.84 | 1.36, 0.81 |
    /// | 10,000, 8 | 0.94, 0.94 | 0.98, 0.94 | 1.23, 0.94 | 1.80, 0.88 |
    /// | 10,000, 32 | 1.38, 1.28 | 1.55, 1.27 | 2.29, 1.26 | 3.99, 1.15 |
    pub fn tables_pay(&self, queries: usize, probes: u32) -> bool {
        let Stored::Codes(codes) = self.image.stored else { return false };
        let (queries, lists) = (queries as u64, u64::from(self.image.lists.max(1)));
        let average = (u64::from(self.image.rows) / lists).max(1);
        let pairs = queries * u64::from(probes) + queries * TABLE_ROWS / average;
        // Codes of two components a byte are decoded fastest, and tables of so many sub-quantizers leave room for few blocks.
        let many = u64::from(codes.sub_quantizers.max(MANY_SUB_QUANTIZERS)).pow(2);
        let cost = pairs.saturating_mul(u64::from(codes.sub_quantizers)).saturating_mul(many);
        cost <= TABLES_UP_TO * lists * u64::from(MANY_SUB_QUANTIZERS).pow(2)
    }

    pub fn small_tiles(&self, ask: Ask) -> bool {
        let pairs = u64::from(ask.queries) * u64::from(ask.probes);
        pairs <= SMALL_TILES * u64::from(self.image.lists)
    }

    pub fn tile(&self, ask: Ask) -> u32 {
        if self.small_tiles(ask) { 16 } else { 64 }
    }

    /// Rows of an item of the lists.
    pub fn item_rows(ask: Ask) -> u32 {
        let pairs = u64::from(ask.queries) * u64::from(ask.probes);
        if pairs < 2048 { TILE_ROWS } else { ITEM_ROWS }
    }

    /// Items of a search, at most.
    pub fn most_items(&self, ask: Ask) -> usize {
        let pairs = u64::from(ask.queries) * u64::from(ask.probes);
        // A few pairs are an item each.
        let few = pairs.min(u64::from(pairs::FEW));
        let tiles = (pairs / u64::from(self.tile(ask)) + pairs.min(u64::from(self.image.lists))).max(few);
        usize::try_from(tiles * u64::from(self.longest_list.div_ceil(Self::item_rows(ask)))).unwrap_or(usize::MAX)
    }
}
