"""Writes hdf5-chunks.hdf5: a dataset of each kind of chunk index of HDF5, whose maximum extent is larger than its extent where the kind allows it.

Needs h5py (a wheel, with its HDF5 library) and NumPy. Value (i, j) of a set is 16 i + j, except where a comment says otherwise. The tests of the program expect these values.
"""

import ctypes
import glob
import os

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

UNLIMITED = h5s.UNLIMITED
# h5py has no function for this property of chunks.
[LIBRARY] = glob.glob(os.path.join(os.path.dirname(h5py.__file__), "../h5py.libs/libhdf5-*.so*"))
DONT_FILTER_PARTIAL_CHUNKS = 2


def values(rows, columns):
    return (16 * np.arange(rows)[:, None] + np.arange(columns)).astype("<f4")


def dataset(file, name, shape, most, chunks, *, early=False, gzip=False, shuffle=False, fill=None, write=True, whole=False):
    """A set of `shape`, at most `most`, in chunks of `chunks`; `whole`: only chunks within the extent are filtered."""
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk(chunks)
    if early:
        properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    if shuffle:
        properties.set_shuffle()
    if gzip:
        properties.set_deflate(4)
    if fill is not None:
        properties.set_fill_value(np.array(fill, "<f4"))
    if whole:
        assert ctypes.CDLL(LIBRARY).H5Pset_chunk_opts(ctypes.c_int64(properties.id), DONT_FILTER_PARTIAL_CHUNKS) == 0
    space = h5s.create_simple(shape, most)
    made = h5py.Dataset(h5d.create(file.id, name.encode(), h5t.IEEE_F32LE, space, dcpl=properties))
    if write:
        made[...] = values(*shape)
    return made


with h5py.File("hdf5-chunks.hdf5", "w", libver=("v110", "v110")) as file:
    # Fixed arrays.
    dataset(file, "fixed", (5, 6), (5, 6), (2, 4))
    dataset(file, "fixed-wide", (5, 6), (5, 13), (2, 4))
    dataset(file, "fixed-high", (5, 6), (11, 6), (2, 4))
    dataset(file, "fixed-gzip", (5, 6), (11, 13), (2, 4), gzip=True, shuffle=True)
    # 2048 entries are two pages of 1024.
    dataset(file, "fixed-pages", (5, 6), (64, 64), (2, 1))
    # Implicit indexes.
    dataset(file, "implicit", (5, 6), (5, 6), (2, 4), early=True)
    dataset(file, "implicit-wide", (5, 6), (5, 13), (2, 4), early=True)
    dataset(file, "implicit-high", (5, 6), (11, 13), (2, 4), early=True)
    # One chunk.
    dataset(file, "single", (5, 6), (5, 6), (5, 6))
    dataset(file, "single-gzip", (5, 6), (5, 6), (5, 6), gzip=True)
    # Extensible arrays.
    dataset(file, "extensible-high", (5, 6), (UNLIMITED, 13), (2, 4))
    dataset(file, "extensible-wide", (5, 6), (11, UNLIMITED), (2, 4), gzip=True)
    dataset(file, "extensible-early", (5, 6), (UNLIMITED, 13), (2, 4), early=True)
    # B-trees of version 2.
    dataset(file, "tree", (5, 6), (UNLIMITED, UNLIMITED), (2, 4))
    dataset(file, "tree-gzip", (5, 6), (UNLIMITED, UNLIMITED), (2, 4), gzip=True, shuffle=True)
    # Shrunk from 9 rows of 11.
    for name, most in [("shrunk-fixed", (9, 11)), ("shrunk-tree", (UNLIMITED, UNLIMITED)), ("shrunk-extensible", (UNLIMITED, 11))]:
        dataset(file, name, (9, 11), most, (2, 4)).resize((5, 6))
    dataset(file, "shrunk-implicit", (9, 11), (9, 11), (2, 4), early=True).resize((5, 6))
    dataset(file, "shrunk-single", (9, 11), (9, 11), (9, 11)).resize((5, 6))
    # Shrunk to 3 rows of 5 and grown again: the fill value 7 beyond these.
    grown = dataset(file, "grown", (5, 6), (9, 11), (2, 4), fill=7)
    grown.resize((3, 5))
    grown.resize((5, 6))
    # Only the first row was written: the fill value 7 in chunks that do not exist, and 7 in the rest of the first row of chunks.
    dataset(file, "partial", (5, 6), (11, 13), (2, 4), fill=7, write=False)[0] = values(1, 6)
    # Nothing was written. An attribute of NetCDF says otherwise, but it is not the fill value of HDF5.
    dataset(file, "nothing", (5, 6), (11, 13), (2, 4), fill=7, write=False)
    file.create_dataset("attribute", (5, 6), "<f4", chunks=(2, 4), maxshape=(11, 13)).attrs["_FillValue"] = np.float32(3)
    file.create_dataset("attribute-whole", (5, 6), "<f4").attrs["_FillValue"] = np.float32(3)
    # One dimension: value i is i.
    file.create_dataset("line", data=np.arange(10, dtype="<f4"), chunks=(4,), maxshape=(23,))
    # Only shuffled, in complete chunks and in chunks that reach beyond the extent.
    dataset(file, "shuffled", (4, 8), (11, 13), (2, 4), shuffle=True)
    dataset(file, "shuffled-edge", (5, 6), (11, 13), (2, 4), shuffle=True)
    dataset(file, "unfiltered-edge", (5, 6), (11, 13), (2, 4), shuffle=True, whole=True)
    dataset(file, "unfiltered-edge-gzip", (5, 6), (11, 13), (2, 4), gzip=True, whole=True)
    # In another file, which is not there.
    file.create_dataset("external", (2, 3), "<f4", external=[("hdf5-chunks.raw", 0, 24)])
    # Numbers of 32 bits that are not those of IEEE 754 or not of 32 bits precision.
    odd = h5t.IEEE_F32LE.copy()
    odd.set_ebias(120)
    h5py.Dataset(h5d.create(file.id, b"other-bias", odd, h5s.create_simple((2, 3))))[...] = values(2, 3)
    narrow = h5t.STD_I32LE.copy()
    narrow.set_precision(20)
    h5py.Dataset(h5d.create(file.id, b"narrow", narrow, h5s.create_simple((2, 3))))[...] = values(2, 3).astype("<i4")

with h5py.File("hdf5-chunks.hdf5", "a") as file:
    # B-trees of version 1, as the other sets of the default version of files.
    old = file.create_dataset("old", data=values(9, 11), chunks=(2, 4), maxshape=(11, 13), compression="gzip")
    old.resize((5, 6))
