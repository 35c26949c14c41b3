"""Writes ann-benchmarks.hdf5: the datasets of ann-benchmarks in small, and the storage layouts and types that HDF5 files have.

Needs h5py and NumPy. The tests of the program expect the values that this script writes.
"""

import h5py
import numpy as np

rows = np.arange(40).reshape(10, 4)
with h5py.File("ann-benchmarks.hdf5", "w") as file:
    # As ann-benchmarks writes them: contiguous.
    file.attrs["distance"] = "euclidean"
    file["train"] = (rows / 4).astype("<f4")
    file["test"] = (rows[:3] / 4 + 0.125).astype("<f4")
    file["neighbors"] = np.array([[0, 1], [1, -1], [2, 3]], "<i4")
    file["distances"] = np.array([[0.25, 3.75], [0.25, 3.75], [0.25, 3.75]], "<f4")
    # Compressed in chunks.
    file.create_dataset("packed", data=(rows / 4).astype("<f4"), chunks=(3, 4), compression="gzip", shuffle=True, fletcher32=True)
    # Types.
    file["double"] = rows / 4
    file["huge"] = np.array([[1.0, 2.0], [3.0, 1e39]])
    file["bytes"] = rows.astype("u1")
    file["signed"] = (rows - 20).astype("i1")
    file["wide"] = np.array([[5_000_000_000, 2**64 - 1]], "<u8")
    file["negative"] = np.array([[1, 2], [3, -4]], "<i8")
    file["big_endian"] = (rows / 4).astype(">f4")
    file["half"] = rows.astype("<f2")
    file["flags"] = np.ones((2, 2), bool)
    file["cube"] = np.zeros((2, 2, 2), "<f4")
    file["line"] = np.array([1.0, 2.0, 3.0], "<f4")
    ragged = file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.dtype("<i4")))
    ragged[0], ragged[1] = [1, 2], [3]
