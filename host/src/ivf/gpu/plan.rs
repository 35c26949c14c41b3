//! The scratch of a search, and the choices that follow from sizes.

use cuda_std::global::U32x4;
use warpann_kernels::ivf::list_scan::TILE_ROWS;
use warpann_kernels::ivf::pairs::{self, PAD, SHARING};
use warpann_kernels::ivf::rerank::THREADS;
use warpann_kernels::ivf::rescan::{BLOCK_ROWS, MOST_COUNTERS, PASS, completing_blocks};
use warpann_kernels::product::canonical::BATCH;

use super::image::Resident;
use super::stage::{Stage, selected, selected_probes};
use super::stored::ScanOperands;
use super::tables::{Precision, TablePlan};
use crate::device::lanes::COUNTERS;
use crate::device::limits::Limits;
use crate::device::scratch::{Layout, Reserved};
use crate::select::gpu::Columns;
use crate::{ElementType, Result};

/// Largest mean number of pairs for each list with which tiles of 16 queries are used, and the same if these are
/// scanned by strips of rows (`warpann_kernels::ivf::strip_scan`).
const SMALL_TILES: u64 = 12;
const SMALL_STRIPS: u64 = 24;
/// Limits of the scan by tables. It is used up to `TABLES_UP_TO` pairs for each list, times the number of
/// sub-quantizers. Making the tables of a query costs as much as scanning `TABLE_ROWS` rows by tables. Beyond
/// `MANY_SUB_QUANTIZERS` sub-quantizers the limit falls.
const TABLES_UP_TO: u64 = 625;
const TABLE_ROWS: u64 = 2_440;
const MANY_SUB_QUANTIZERS: u32 = 32;
/// Limits of appending. `DENSE_ROWS` rows for each wanted candidate are scored before there is a threshold, from at
/// least `DENSE_PROBES` lists. Appending is faster if there are `APPEND_FROM` times more lists.
const DENSE_ROWS: u64 = 16;
const DENSE_PROBES: u64 = 16;
const APPEND_FROM: u32 = 3;
/// Limits of exact comparison, instead of scores and a proof: the number of queries; and the number of components of
/// all centroids, or of all vectors in as many lists of mean length as a query probes. For the probes that takes two
/// launches instead of four: 4.4 µs less for one query of 4,096 lists, by a captured graph (36.4 to 32.0, H200,
/// 2026-11-26; predicted: 5). For the neighbours it takes one instead of five ([`warpann_kernels::ivf::rescan`] has the
/// times). Exact distances are sums of f64, of which some devices compute few.
const COMPARED_QUERIES: u32 = 2;
const COMPARED_COMPONENTS: u64 = 1 << 22;
const _: () = assert!(COMPARED_QUERIES as usize <= COUNTERS && MOST_COUNTERS as usize <= COUNTERS);
/// Codes that are costly to decode are compared up to this part of [`COMPARED_COMPONENTS`].
const COSTLY_PART: u64 = 4;
/// Number of blocks for each multiprocessor that compare all vectors of lists.
const LISTS_BLOCKS: u32 = 2;
/// Smallest typical number of rows of a query, for each selected score and each byte of a code, with which rows share
/// scores. Four times as many vectors are then compared exactly, and that costs as much as the scores of so many rows.
/// 1,000 queries of 4 lists of 7,630 vectors with 68 bytes, k = 10, take as long either way, of 64 such lists 3.47 ms
/// instead of 4.00, and 256 queries of 32 lists of 244 vectors with 244 bytes .298 instead of .267 (H200, 2026-12-01).
const SHARED_FROM: u64 = 16;
/// The same for the emulator, without the bytes: few, so that small tests take both ways.
const SHARED_FROM_EMULATED: u64 = 4;
/// Number of rows of an item if there are many pairs. With few pairs, items are short, so that there are more of them.
pub(super) const ITEM_ROWS: u32 = 1024;

/// How a search reads the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Query by query, by lookup tables.
    Tables,
    /// List by list; candidates are appended if the pairs are many ([`Resident::dense_probes`]).
    Lists,
    /// List by list, and candidates are appended, so that the scores take less memory.
    Appending,
    /// List by list, with room for the scores of the lists that are probed, and not for those of the longest ones.
    Measured,
}

/// The sizes of a search, and the choices that follow from them.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchShape {
    pub queries: u32,
    pub k: u32,
    /// Number of lists to probe, at most the number of lists.
    pub probes: u32,
    /// Number of words of the filter, if there is one. The filter is for the whole index, of which the image may show a
    /// part.
    pub filter_words: Option<usize>,
    /// Whether codes are scanned by lookup tables, query by query.
    pub by_tables: bool,
    /// Whether tiles have 16 queries instead of 64. There are no kernels that append with such tiles.
    pub small_tiles: bool,
    /// Whether rows may share scores, and, in a plan, whether they do: the scan writes, and the selection reads, a part
    /// of the scores.
    pub shares_scores: bool,
    /// Whether scores of the vectors are needed, because the caller reads them or says how lists are read.
    pub needs_scores: bool,
    /// The bytes of a budget, if the scores get what the other arrays leave of it, up to the scores of the longest
    /// lists. Otherwise they get room for these. Lists of some thousand vectors differ by half of their length and
    /// more, so the scores of the lists that queries probe take a part of it.
    pub budget: Option<u64>,
    /// Number of probes whose scores are all kept. Candidates from the lists of the other probes are appended. If it
    /// equals `probes`, nothing is appended.
    pub dense_probes: u32,
}

impl SearchShape {
    /// Whether the search has a filter.
    pub fn filtered(&self) -> bool {
        self.filter_words.is_some()
    }
}

/// Queries as operands, and the other values of a query in a score (`warpann_kernels::ivf::queries`).
#[derive(Debug, Clone, Copy)]
pub(super) struct OperandsPlan {
    /// f16 components, or two planes of bytes for [`ScanOperands::Codes`].
    pub queries: Reserved<u16>,
    pub factors: Reserved<f32>,
    /// The error bounds of all queries against the vectors, then of all queries against the centroids.
    pub errors: Reserved<f32>,
    pub shifts: Reserved<f32>,
}

impl OperandsPlan {
    fn reserve(layout: &mut Layout, queries: usize, stride: u32) -> OperandsPlan {
        OperandsPlan {
            queries: layout.array(queries.saturating_mul(stride as usize)),
            factors: layout.array(queries),
            errors: layout.array(queries.saturating_mul(2)),
            shifts: layout.array(queries),
        }
    }
}

/// The exact comparison of queries with all vectors of their lists, instead of scores and a proof
/// ([`warpann_kernels::ivf::rescan`]).
#[derive(Debug, Clone, Copy)]
pub(super) struct ListsPlan {
    /// Number of blocks that share a query.
    pub shared_by: u32,
    /// Number of rows of a piece of a list.
    pub piece: u32,
    /// The best entries of each block.
    pub entries: Reserved<u64>,
}

impl ListsPlan {
    /// For `queries` queries, `rows` vectors of typical lists, and `k` results. Pieces are short, and blocks as many as
    /// there is work for.
    fn reserve(layout: &mut Layout, queries: u32, rows: u32, k: u32, limits: &Limits) -> ListsPlan {
        let most = (limits.multiprocessors * LISTS_BLOCKS / queries.max(1)).max(1);
        // The rows of a block if all blocks have one piece for each warp, which has at most a row for each lane.
        let rows_of_block = rows.div_ceil(most).next_multiple_of(BLOCK_ROWS).min(THREADS);
        let piece = rows_of_block / BLOCK_ROWS * BATCH as u32;
        let shared_by = rows.div_ceil(rows_of_block).clamp(1, most);
        let entries = [queries, shared_by, k].map(|count| count as usize).iter().product();
        ListsPlan { shared_by, piece, entries: layout.array(entries) }
    }
}

/// The results of a search, side by side, so that one copy brings them to the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResultsPlan {
    /// k distances for each query.
    pub keys: Reserved<f32>,
    /// k ranks for each query.
    pub ranks: Reserved<u32>,
    /// A flag for each query: whether its probes lack a certificate.
    pub probe_flags: Reserved<u32>,
    /// A flag for each query: whether its neighbours lack a certificate.
    pub flags: Reserved<u32>,
    /// Number of candidates of each query.
    pub counts: Reserved<u32>,
}

impl ResultsPlan {
    fn reserve(layout: &mut Layout, queries: usize, k: usize) -> ResultsPlan {
        let found = queries.saturating_mul(k);
        let words = queries.saturating_mul(3).saturating_add(found.saturating_mul(2));
        let (keys, rest) = layout.array::<u32>(words).split_at(found);
        let (ranks, rest) = rest.split_at(found);
        let (probe_flags, rest) = rest.split_at(queries);
        let (flags, counts) = rest.split_at(queries);
        // One array of words; the distances are read as f32.
        ResultsPlan { keys: keys.cast(), ranks, probe_flags, flags, counts }
    }
}

/// The scratch of a search.
pub(super) struct SearchPlan {
    pub search_shape: SearchShape,
    /// Whether the probes come from exact distances of all centroids, so that they need no proof.
    pub compares_centroids: bool,
    /// Set if the neighbours come from exact distances of all vectors of the lists, so that they need no proof. The
    /// probes then do as well.
    pub compares_lists: Option<ListsPlan>,
    /// The best entries of each of the blocks that share queries without a certificate.
    pub completed: Reserved<u64>,
    /// Queries with their element type, if stored vectors have this type and it is not f32.
    pub narrow_queries: Option<Reserved<u8>>,
    pub queries: Reserved<f32>,
    /// The queries before they are rotated; empty without a rotation.
    pub unrotated: Reserved<f32>,
    pub operands: OperandsPlan,
    /// The operands of the coarse quantizer, unless centroids are compared exactly or the operands are those of the
    /// list scan. They are not with operands of bytes, nor with cosine of vectors as they were added.
    pub coarse_operands: Option<OperandsPlan>,
    pub coarse_scores: Reserved<f32>,
    pub coarse: Stage,
    /// The distances of the probes, if centroids are compared exactly.
    pub probe_keys: Reserved<f32>,
    pub probed_lists: Reserved<u32>,
    pub filter: Reserved<u32>,
    pub live: Reserved<u32>,
    pub counts: Reserved<u32>,
    pub slots: Reserved<u32>,
    pub offsets: Reserved<u32>,
    pub row_lengths: Reserved<u32>,
    pub live_rows: Reserved<u32>,
    pub first_pairs: Reserved<u32>,
    pub first_items: Reserved<u32>,
    pub item_count: Reserved<u32>,
    pub row_starts: Reserved<u64>,
    pub grouped: Reserved<U32x4>,
    pub items: Reserved<U32x4>,
    /// The terms of the pairs, for [`ScanOperands::Codes`]; or those of the queries, if codes are of vectors.
    pub terms: Option<Reserved<f32>>,
    pub scores: Reserved<f32>,
    /// The scan by lookup tables, and the error bound of each query in this scan.
    pub tables: Option<(TablePlan, Reserved<f32>)>,
    pub fine: Stage,
    pub results: ResultsPlan,
    pub bytes: usize,
}

impl SearchPlan {
    /// # Errors
    /// As [`TablePlan::new`].
    pub fn new(
        resident: &Resident,
        element: ElementType,
        search_shape: SearchShape,
        limits: &Limits,
    ) -> Result<SearchPlan> {
        let image = &resident.image;
        let shares_scores = search_shape.shares_scores && resident.shares_scores(search_shape, limits.emulated);
        let search_shape = SearchShape { shares_scores, ..search_shape };
        let queries = search_shape.queries as usize;
        let mut layout = Layout::default();
        let components = queries.saturating_mul(image.stride() as usize);
        let narrow = image.stored.in_place && element != ElementType::F32;
        let narrow_bytes = queries.saturating_mul(image.row_stride() as usize).saturating_mul(element.size());
        // The list scan multiplies other operands than the coarse quantizer. Queries of bytes are operands as they are;
        // two planes of bytes take the bytes of as many components of f16 as a plane has bytes.
        let (bytes, operand_stride) = match image.stored.operands {
            ScanOperands::Halves => (false, image.f16_stride),
            ScanOperands::Bytes(_) => (true, 0),
            ScanOperands::Codes { bytes } => (true, bytes),
        };
        let cosine = image.operand_metric().divides_by_norms();
        let lists = image.lists as usize;
        let pair_count = queries.saturating_mul(search_shape.probes as usize);
        let rows = resident.columns(search_shape.dense_probes);
        let columns = if search_shape.shares_scores { shared_columns(rows, search_shape.probes) } else { rows };
        let compares_centroids = search_shape.queries <= COMPARED_QUERIES
            && u64::from(image.lists) * u64::from(image.stride()) <= COMPARED_COMPONENTS;
        let selected_probes =
            if compares_centroids { search_shape.probes } else { selected_probes(search_shape.probes, image.lists) };
        let appends = search_shape.dense_probes < search_shape.probes;
        let part = if image.stored.costly { COSTLY_PART } else { 1 };
        let compares_lists = compares_centroids
            && !search_shape.needs_scores
            && search_shape.k <= PASS
            && u64::from(rows.typical) * u64::from(image.row_stride()) * part <= COMPARED_COMPONENTS
            && !appends;
        let compares_lists = compares_lists
            .then(|| ListsPlan::reserve(&mut layout, search_shape.queries, rows.typical, search_shape.k, limits));
        let tables = match image.stored.tables {
            Some(index) if search_shape.by_tables => {
                let (queries, probes) = (search_shape.queries, search_shape.probes);
                let plan =
                    TablePlan::new(&mut layout, &index.shape, index.kind, Precision::Auto, queries, probes, limits)?;
                Some((plan, layout.array(queries as usize)))
            }
            _ => None,
        };
        let plan = SearchPlan {
            search_shape,
            compares_centroids,
            compares_lists,
            completed: layout.array((completing_blocks(limits.multiprocessors) * search_shape.k.min(PASS)) as usize),
            narrow_queries: narrow.then(|| layout.array(narrow_bytes)),
            queries: layout.array(components),
            unrotated: layout.array(if image.turn.is_some() { components } else { 0 }),
            operands: OperandsPlan::reserve(&mut layout, queries, operand_stride),
            coarse_operands: ((cosine || bytes) && !compares_centroids)
                .then(|| OperandsPlan::reserve(&mut layout, queries, image.f16_stride)),
            coarse_scores: layout.array(queries.saturating_mul(pairs::padded(image.lists) as usize)),
            coarse: Stage::reserve(
                &mut layout,
                search_shape.queries,
                image.lists.into(),
                search_shape.probes,
                selected_probes,
                limits,
            ),
            probe_keys: layout.array(if compares_centroids { pair_count } else { 0 }),
            probed_lists: layout.array(pair_count),
            filter: layout.array(search_shape.filter_words.unwrap_or(0)),
            live: layout.array(if search_shape.filtered() { lists } else { 0 }),
            counts: layout.array(lists),
            slots: layout.array(pair_count),
            offsets: layout.array(pair_count),
            row_lengths: layout.array(queries),
            live_rows: layout.array(queries),
            first_pairs: layout.array(lists),
            first_items: layout.array(lists),
            item_count: layout.array(1),
            row_starts: layout.array(queries + 1),
            grouped: layout.array(pair_count),
            items: layout.array(resident.most_items(search_shape)),
            terms: matches!(image.stored.operands, ScanOperands::Codes { .. })
                .then(|| layout.array(if image.stored.no_centroid.is_some() { queries } else { pair_count })),
            scores: layout.array(0),
            tables,
            fine: {
                let shared = search_shape.shares_scores;
                let reserve = match (appends, shared) {
                    (true, _) => Stage::reserve_appended,
                    (false, true) => Stage::reserve_shared,
                    (false, false) => Stage::reserve,
                };
                let selected = selected(search_shape.k, columns.most, shared);
                reserve(&mut layout, search_shape.queries, columns, search_shape.k, selected, limits)
            },
            results: ResultsPlan::reserve(&mut layout, queries, search_shape.k as usize),
            bytes: 0,
        };
        let most = queries.saturating_mul(columns.most as usize);
        let scores = search_shape.budget.map_or(most, |budget| layout.room::<f32>(budget).min(most));
        let scores = layout.array(scores);
        Ok(SearchPlan { scores, bytes: layout.bytes(), ..plan })
    }
}

/// The scores of a query with `probes` probes whose lists have these `rows`, if rows share scores.
fn shared_columns(rows: Columns, probes: u32) -> Columns {
    // The last rows of each list have a sector of scores.
    let most = (rows.most / SHARING).saturating_add(probes.saturating_mul(PAD));
    Columns { most, typical: rows.typical.div_ceil(SHARING) }
}

impl SearchPlan {
    /// Number of candidates for which a query's list has room, if candidates are appended.
    pub fn room(&self) -> Option<u32> {
        self.fine.capacity()
    }
}

impl Resident {
    /// Number of scores of a query with `probes` probes: the largest number, if these are the longest lists, and the
    /// typical number.
    pub fn columns(&self, probes: u32) -> Columns {
        let at = (probes as usize).min(self.longest.len());
        // The storage has a u32 number of rows, and these are some of its rows.
        let most = at.checked_sub(1).map_or(0, |last| self.longest[last] as u32).max(1);
        let average = u64::from(self.image.rows) * at as u64 / u64::from(self.image.lists.max(1));
        Columns { most, typical: (average as u32).clamp(1, most) }
    }

    /// Number of probes whose scores are all kept: all probes, unless there are so many that appending pays
    /// (`warpann_kernels::ivf::list_scan`).
    pub fn dense_probes(&self, search_shape: SearchShape) -> u32 {
        let average = (u64::from(self.image.rows) / u64::from(self.image.lists.max(1))).max(1);
        let wanted = u64::from(selected(search_shape.k, u32::MAX, false)) * DENSE_ROWS / average + DENSE_PROBES;
        let dense = u32::try_from(wanted).unwrap_or(u32::MAX);
        if search_shape.small_tiles || search_shape.probes < dense.saturating_mul(APPEND_FROM) {
            search_shape.probes
        } else {
            dense
        }
    }

    /// Whether the scan by lookup tables, query by query, is faster than the list scan. Tables cost time for each
    /// query, and their scan for each pair; the list scan costs the decoding of all rows of the lists. Measured on an
    /// H200, 2026-11-22, 1,000,000 vectors of 128 components in 4096 lists, k = 10, ms by tables and by lists:
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
    ///
    /// # Bytes and operations
    /// A pair of a query and a list of R rows takes R · M lookups by tables, M being the number of sub-quantizers. By
    /// the table, between 8 and 32 lists of 10,000 queries, a lookup takes 5.8, 5.7 and 6.1 · 10⁻¹³ s with 64, 32 and
    /// 16 bytes: a warp loads from shared memory every 4.4 clocks. The same rate predicts another set: 10,000 queries
    /// of 64 of 65,536 lists, 10⁹ × 96, 48 bytes, are 4.7 · 10¹¹ lookups, or 277 ms; 263 were measured.
    ///
    /// A scan list by list decodes each row once for all queries of a batch. By the limits of this rule that is as much
    /// as 625 lookups with 32 bytes (`TABLES_UP_TO`) and 278 with 48, where a byte is two components. A pair then takes
    /// 5.5 · 10⁻¹² s for each row (10,000 queries, 8 to 32 lists), as much as nine lookups: its product, and the score
    /// of 4 bytes, which is written and read.
    ///
    /// # Batches
    /// The decoding is paid by each batch, and lookups are not. A search list by list that keeps all scores needs 4 · R
    /// bytes a pair: 39 GB in the example if lists have equal lengths, and more by a plan, which assumes the longest
    /// lists. This is cut into batches, and a rule that was asked for each batch saw half of the pairs and took the
    /// tables at five pairs a list. So 64 lists (263 ms) took longer than 128 (243 ms), with more than twelve pairs a
    /// list, where candidates are appended and most scores are not kept.
    ///
    /// So the rule is asked for all queries of a call, with the number of batches that list by list takes; and where
    /// all scores need several batches, candidates are appended with fewer pairs as well, if batches become fewer
    /// (`IvfDevice::reading`). For the example the figures above predict 0.19 s in one batch. The billion on an H200,
    /// 2026-11-27, in ms (`--scan` of `warpann-grid billion`; `benches/record/nvidia-h200/2026-11-27-billion-48.csv`):
    ///
    /// | lists of a query | chosen | list by list | by tables |
    /// |---|---|---|---|
    /// | 16 | 70 | 101 | 70 |
    /// | 32 | 142 | 141 | 142 |
    /// | 64 | 211 | 229 | 257 |
    /// | 128 | 253 | 261 | 508 |
    pub fn tables_pay(&self, queries: usize, probes: u32, batches: usize) -> bool {
        let Some(index) = self.image.stored.tables else { return false };
        let sub_quantizers = index.shape.sub_quantizers;
        let (queries, lists) = (queries as u64, u64::from(self.image.lists.max(1)));
        let average = (u64::from(self.image.rows) / lists).max(1);
        let pairs = queries * u64::from(probes) + queries * TABLE_ROWS / average;
        // The list scan decodes codes of two components a byte fastest, and tables of many sub-quantizers leave room
        // for few blocks.
        let many = u64::from(sub_quantizers.max(MANY_SUB_QUANTIZERS)).pow(2);
        let cost = pairs.saturating_mul(u64::from(sub_quantizers)).saturating_mul(many);
        let of_lists = TABLES_UP_TO * lists * u64::from(MANY_SUB_QUANTIZERS).pow(2);
        cost <= of_lists.saturating_mul(batches as u64)
    }

    /// Whether the rows that a lane of the scan by strips has share a score.
    pub fn shares_scores(&self, search_shape: SearchShape, emulated: bool) -> bool {
        let stored = &self.image.stored;
        let ScanOperands::Codes { bytes } = stored.operands else { return false };
        let strips = stored.scan.strips.filter(|_| search_shape.small_tiles && !search_shape.by_tables);
        let code_bytes = self.image.stored_rows().code_bytes;
        let each = if emulated { SHARED_FROM_EMULATED } else { SHARED_FROM * u64::from(code_bytes) };
        let from = each.saturating_mul(selected(search_shape.k, u32::MAX, true).into());
        strips.and_then(|strips| strips.room(code_bytes, bytes)).is_some()
            && u64::from(self.columns(search_shape.probes).typical) >= from
    }

    /// Whether tiles of 16 queries are faster than those of 64.
    pub fn small_tiles(&self, queries: usize, probes: u32) -> bool {
        let pairs = queries as u64 * u64::from(probes);
        let most = if self.image.stored.scan.strips.is_some() { SMALL_STRIPS } else { SMALL_TILES };
        pairs <= most * u64::from(self.image.lists)
    }

    pub fn tile(search_shape: SearchShape) -> u32 {
        if search_shape.small_tiles { 16 } else { 64 }
    }

    /// Number of rows of a list in one item.
    pub fn item_rows(search_shape: SearchShape) -> u32 {
        let pairs = u64::from(search_shape.queries) * u64::from(search_shape.probes);
        if pairs < 2048 { TILE_ROWS } else { ITEM_ROWS }
    }

    /// Largest number of items of a search.
    pub fn most_items(&self, search_shape: SearchShape) -> usize {
        let pairs = u64::from(search_shape.queries) * u64::from(search_shape.probes);
        // If there are few pairs, each pair is a separate item.
        let few = pairs.min(u64::from(pairs::FEW));
        let tiles = (pairs / u64::from(Self::tile(search_shape)) + pairs.min(u64::from(self.image.lists))).max(few);
        usize::try_from(tiles * u64::from(self.longest_list.div_ceil(Self::item_rows(search_shape))))
            .unwrap_or(usize::MAX)
    }
}
