//! The choice of the method of k-selection for a shape, from a table of measurements.
//!
//! `dispatch.csv` lists, for a device, shapes (rows, columns, k) with the fastest method for each, as
//! `warpann bench select --tune` measured and wrote them. A shape that is not listed gets the method of the nearest
//! listed shape; the distance is the sum of the differences of the logarithms. A device that is not listed gets the
//! first table with clusters, or if it has none, the first without them. Every method gives the same results, so a
//! wrong choice only costs time.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use warpann_kernels::select::short_select;

use crate::UnknownName;
use crate::serialised::serialised_as_text;

/// A method of k-selection on a GPU. Its names in the table are such as `warp`, `block-128`, `grid` and `cluster-8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// WarpSelect, for f32 keys: one warp for each row. A long row is cut into segments; a large k takes several
    /// passes.
    Warp,
    /// ThresholdSelect with one block for each row.
    Block {
        /// Number of threads of a block: 32 to 512, a multiple of 32.
        threads: u32,
    },
    /// ThresholdSelect with many blocks for each row.
    Grid,
    /// ClusterSelect: a cluster of blocks for each row. Devices without clusters of this size, and rows whose survivors
    /// do not fit into shared memory, take `Grid` instead, or `Block` with 512 threads if there is one block.
    Cluster {
        /// Number of blocks of a row: 1, 2, 4, 8 or 16.
        blocks: u32,
    },
    /// ShortSelect with one block for each row, for k up to three quarters of the threads. For larger k it equals
    /// `Block`.
    Short {
        /// Number of threads of a block: 32 to 512, a multiple of 32.
        threads: u32,
    },
}

impl Method {
    /// Every method that the table may name.
    pub const ALL: [Method; 17] = [
        Method::Warp,
        Method::Block { threads: 32 },
        Method::Block { threads: 64 },
        Method::Block { threads: 128 },
        Method::Block { threads: 256 },
        Method::Block { threads: 512 },
        Method::Grid,
        Method::Cluster { blocks: 1 },
        Method::Cluster { blocks: 2 },
        Method::Cluster { blocks: 4 },
        Method::Cluster { blocks: 8 },
        Method::Cluster { blocks: 16 },
        Method::Short { threads: 32 },
        Method::Short { threads: 64 },
        Method::Short { threads: 128 },
        Method::Short { threads: 256 },
        Method::Short { threads: 512 },
    ];
}

impl Method {
    /// Whether the method selects `k` itself, and not as another method.
    pub fn serves(self, k: u32) -> bool {
        !matches!(self, Method::Short { threads } if k > short_select::most(threads))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Warp => f.write_str("warp"),
            Method::Block { threads } => write!(f, "block-{threads}"),
            Method::Grid => f.write_str("grid"),
            Method::Cluster { blocks } => write!(f, "cluster-{blocks}"),
            Method::Short { threads } => write!(f, "short-{threads}"),
        }
    }
}

impl FromStr for Method {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let named = Method::ALL.into_iter().find(|method| method.to_string() == text);
        named.ok_or_else(|| {
            UnknownName::new(text, "a method of selection", &["warp", "block-N", "grid", "cluster-N", "short-N"])
        })
    }
}

serialised_as_text!(Method);

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    device: String,
    rows: u32,
    columns: u32,
    k: u32,
    /// The fastest method, and the fastest method other than WarpSelect.
    methods: [Method; 2],
}

/// The columns of the table.
pub const HEADER: &str = "device,rows,columns,k,method,method_without_warp";

/// Reads a table. The error contains the number of the line.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(format!("line 1: expected {HEADER}"));
    }
    let mut entries = Vec::new();
    for (at, line) in lines.enumerate() {
        let failed = |reason: &dyn fmt::Display| format!("line {}: {reason}", at + 2);
        let &[device, rows, columns, k, method, without_warp] = line.split(',').collect::<Vec<_>>().as_slice() else {
            return Err(failed(&"expected six fields"));
        };
        let size = |field: &str| match field.parse() {
            Ok(0) => Err(failed(&"a size is zero")),
            Ok(size) => Ok(size),
            Err(error) => Err(failed(&error)),
        };
        let parsed = |field: &str| field.parse::<Method>().map_err(|error| failed(&error));
        let methods = [parsed(method)?, parsed(without_warp)?];
        if methods[1] == Method::Warp {
            return Err(failed(&"the last field is the choice without warp"));
        }
        entries.push(Entry {
            device: device.to_owned(),
            rows: size(rows)?,
            columns: size(columns)?,
            k: size(k)?,
            methods,
        });
    }
    if entries.is_empty() { Err("no entries".to_owned()) } else { Ok(entries) }
}

/// The entries of one device: the logarithms of each shape, and its methods as in [`Entry`]. A search chooses a method
/// for every selection, so the loop over the shapes reads nothing else: with the names in it, a choice took 1 µs on one
/// core of a server.
struct DeviceTable {
    device: String,
    /// Whether a method of the table needs clusters.
    clusters: bool,
    shapes: Vec<[f64; 3]>,
    methods: Vec<[Method; 2]>,
}

/// The stored table by devices, in the order in which they are listed. A test reads the table, so it always parses.
static TABLES: LazyLock<Vec<DeviceTable>> = LazyLock::new(|| {
    let mut tables: Vec<DeviceTable> = Vec::new();
    for Entry { device, rows, columns, k, methods } in parse(include_str!("dispatch.csv")).unwrap_or_default() {
        let at = tables.iter().position(|table| table.device == device).unwrap_or_else(|| {
            tables.push(DeviceTable { device, clusters: false, shapes: Vec::new(), methods: Vec::new() });
            tables.len() - 1
        });
        tables[at].clusters |= methods.iter().any(|method| matches!(method, Method::Cluster { .. }));
        tables[at].shapes.push(logarithms(rows, columns, k));
        tables[at].methods.push(methods);
    }
    tables
});

fn logarithms(rows: u32, columns: u32, k: u32) -> [f64; 3] {
    [rows, columns, k].map(|size| f64::from(size.max(1)).log2())
}

/// The method for `k` of `columns` keys in each of `rows` rows on `device`, which runs `clusters` or not; WarpSelect
/// only where `warp` holds.
pub(crate) fn choose((device, clusters): (&str, bool), [rows, columns, k]: [u32; 3], warp: bool) -> Method {
    let named = TABLES.iter().find(|table| table.device == device && (clusters || !table.clusters));
    let of_device = named.or_else(|| TABLES.iter().find(|table| table.clusters == clusters));
    let Some(table) = of_device else { return Method::Block { threads: 256 } };
    let [rows, columns, k] = logarithms(rows, columns, k);
    let (mut nearest, mut least) = (0, f64::INFINITY);
    for (at, shape) in table.shapes.iter().enumerate() {
        let by_rows = (shape[0] - rows).abs();
        // Most shapes have another number of rows, which is enough to leave them out.
        if by_rows < least {
            let distance = by_rows + (shape[1] - columns).abs() + (shape[2] - k).abs();
            if distance < least {
                (nearest, least) = (at, distance);
            }
        }
    }
    table.methods[nearest][usize::from(!warp)]
}

#[cfg(test)]
mod tests {
    use warpann_kernels::select::sample::BLOCK_GROUP_KEYS;
    use warpann_kernels::select::threshold_select::shared_bytes;

    use super::*;
    use crate::device::limits::Limits;
    use crate::device::runtime::Runtime;
    use crate::select::gpu::{enough_threads, survivors};

    #[test]
    fn the_stored_table_is_read() {
        let entries = parse(include_str!("dispatch.csv")).unwrap();
        assert!(!entries.is_empty());
        for entry in &entries {
            let &Entry { ref device, rows, columns, k, methods } = entry;
            let clusters = !device.ends_with("without clusters");
            assert_eq!(choose((device, clusters), [rows, columns, k], true), methods[0]);
            assert_eq!(choose((device, clusters), [rows, columns, k], false), methods[1]);
            assert!(clusters || methods.iter().all(|method| !matches!(method, Method::Cluster { .. })));
        }
        // With portable kernels a listed device has no clusters either.
        for device in ["NVIDIA H200", "a device nobody measured"] {
            assert_ne!(choose((device, false), [1, 1, 1], false), Method::Warp);
            let long = |clusters| choose((device, clusters), [1, 1_000_000, 2048], true);
            assert_eq!((long(false), long(true)), (Method::Grid, Method::Cluster { blocks: 16 }));
        }
    }

    /// Blocks get more threads than the method says only where rows are longer than those that were measured.
    #[test]
    fn measured_blocks_have_enough_threads() {
        let h200 = Limits { shared_bytes: 227 << 10, ..Runtime::EMULATOR.limits().clone() };
        let capacity = |columns, k| survivors(k, columns, BLOCK_GROUP_KEYS);
        let fits = |capacity: u32| capacity < 1 << 20 && shared_bytes(capacity) <= h200.shared_bytes;
        let mut blocks = 0;
        for Entry { columns, k, methods, .. } in parse(include_str!("dispatch.csv")).unwrap() {
            let capacity = capacity(columns, k);
            for method in methods {
                if let (Method::Block { threads }, true) = (method, fits(capacity)) {
                    assert_eq!(enough_threads(threads, capacity, &h200), threads, "{columns} columns, k = {k}");
                    blocks += 1;
                }
            }
        }
        assert!(blocks > 20, "{blocks} blocks");
        let of_longer = [244_000, 930_000, 2_400_000].map(|columns| enough_threads(128, capacity(columns, 18), &h200));
        assert_eq!(of_longer, [128, 384, 512]);
    }

    #[test]
    fn a_shape_that_is_not_listed_gets_the_method_of_the_nearest() {
        let mut entries = parse(include_str!("dispatch.csv")).unwrap();
        entries.retain(|entry| entry.device.ends_with("without clusters"));
        for (rows, columns, k) in [(1, 4096, 24), (3, 250, 18), (16, 60_000, 1), (400, 7, 7), (1 << 20, 1 << 20, 2000)]
        {
            // The factors between two shapes: their product is least for the nearest.
            let factor = |a: u32, b: u32| f64::from(a.max(b)) / f64::from(a.min(b));
            let apart = |entry: &Entry| factor(entry.rows, rows) * factor(entry.columns, columns) * factor(entry.k, k);
            let least = entries.iter().map(apart).fold(f64::INFINITY, f64::min);
            let mut nearest = entries.iter().filter(|entry| apart(entry) <= least * 1.000_001);
            let chosen = choose(("a device nobody measured", false), [rows, columns, k], true);
            assert!(nearest.any(|entry| entry.methods[0] == chosen), "{rows} x {columns}, k = {k}: {chosen}");
        }
    }

    #[test]
    fn bad_tables_are_refused_with_the_line() {
        let line = |line: &str| parse(&format!("{HEADER}\nD,1,2,3,warp,grid\n{line}")).unwrap_err();
        assert!(parse("").is_err());
        assert!(parse(&format!("{HEADER}\n")).is_err());
        assert!(line("D,1,2,3,warp").starts_with("line 3: expected six"));
        assert!(line("D,0,2,3,warp,grid").starts_with("line 3: a size"));
        assert!(line("D,1,2,x,warp,grid").starts_with("line 3"));
        assert!(line("D,1,2,3,sort,grid").contains("'sort'"));
        assert!(line("D,1,2,3,warp,warp").starts_with("line 3"));
    }

    #[test]
    fn methods_as_text() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("block-33".parse::<Method>().is_err() && "cluster-3".parse::<Method>().is_err());
    }
}
