"""Writes the files in `parquet/` beside this script: `python parquet.py`.

Three programs write them, which have nothing in common with the program's reader: pyarrow 26.0.1, polars 2.1.0 and
duckdb 2.0.1. Row r has the id 100 + 3 r, and component c of its vector is ((7 r + 3 c) mod 31 - 15) / 4, or 4 times as
much in files of whole numbers.
"""

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, DIM = 50, 4
OUT = Path(__file__).parent / "parquet"

rows, columns = np.arange(ROWS)[:, None], np.arange(DIM)[None, :]
whole = (7 * rows + 3 * columns) % 31 - 15
vectors = whole / 4
ids = 100 + 3 * np.arange(ROWS)


def fixed(values: np.ndarray, type: pa.DataType) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), type), DIM)


def table(embedding: pa.Array, **further: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(ids[: len(embedding)]), "embedding": embedding, **further})


def with_none(row: int, value: object) -> pa.Array:
    lists = vectors.tolist()
    lists[row] = value
    return pa.array(lists, pa.list_(pa.float32()))


OUT.mkdir(exist_ok=True)
lists = pa.array(vectors.tolist(), pa.list_(pa.float32()))
texts = pa.array([f"text {row}" for row in range(ROWS)])
pq.write_table(table(lists, text=texts), OUT / "pyarrow.parquet", row_group_size=17)
half = fixed(vectors.astype(np.float16), pa.float16())
pq.write_table(table(half), OUT / "half.parquet", compression="gzip", data_page_version="2.0")
pq.write_table(table(fixed(whole + 15, pa.uint8())), OUT / "bytes.parquet", compression="lz4")
pq.write_table(table(fixed(whole, pa.int8())), OUT / "signed.parquet", compression="none", use_dictionary=False)
split = {"compression": "zstd", "column_encoding": {"embedding.list.element": "BYTE_STREAM_SPLIT"}}
pq.write_table(table(lists), OUT / "split.parquet", use_dictionary=["id"], **split)

# A row without a vector, a vector without a component, an empty one, and one that is longer.
pq.write_table(table(with_none(20, None)), OUT / "null.parquet", row_group_size=17)
pq.write_table(table(with_none(20, [1, 2, None, 4])), OUT / "null-component.parquet")
pq.write_table(table(with_none(20, [])), OUT / "empty-list.parquet")
pq.write_table(table(with_none(20, [1, 2, 3, 4, 5])), OUT / "uneven.parquet")
pq.write_table(table(pa.array([[1e300, 0, 0, 0]], pa.list_(pa.float64()))), OUT / "large.parquet")
pq.write_table(table(lists, other=lists).slice(0, 5), OUT / "two.parquet")
pq.write_table(table(lists).slice(0, 0), OUT / "no-rows.parquet")

# The three nearest of each of the first ten vectors, with an empty slot in each row.
distances = ((vectors[:10, None] - vectors[None]) ** 2).sum(-1)
nearest = [[*map(int, ids[np.argsort(row, kind="stable")[:3]]), -1] for row in distances]
neighbors = pa.table({"id": pa.array(range(10)), "neighbors_id": pa.array(nearest, pa.list_(pa.int64()))})
pq.write_table(neighbors, OUT / "neighbors.parquet")

frame = pl.DataFrame({"id": ids, "embedding": pl.Series(vectors, dtype=pl.Array(pl.Float64, DIM))})
frame.write_parquet(OUT / "polars.parquet", row_group_size=20)
frame.with_columns(pl.col("embedding").cast(pl.List(pl.Float32)), pl.col("id").cast(pl.UInt32)).write_parquet(
    OUT / "polars-list.parquet"
)

arrow = table(lists)  # duckdb reads it by its name
duckdb.sql(
    f"COPY (SELECT id::INTEGER AS id, embedding::FLOAT[{DIM}] AS embedding FROM arrow) TO '{OUT}/duckdb.parquet'"
    " (ROW_GROUP_SIZE 2048)"
)
for file in sorted(OUT.iterdir()):
    print(file.name, file.stat().st_size)
