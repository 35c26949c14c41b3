"""The exceptions: classes, attributes, and that there is one for each error of the library."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpann
from warpann import errors

LIBRARY = Path(__file__).parents[2] / "host/src/error.rs"


def library_errors() -> dict[str, set[str]]:
    """The fields of each error of the library, by its source."""
    text = LIBRARY.read_text().split("pub enum Error {")[1].split("\n}\n")[0]
    variants = re.findall(r"(?m)^    ([A-Z]\w*)((?: \{\n(?:        .*\n)+)?)", text)
    return {name: set(re.findall(r"(?m)^        (\w+):", fields)) for name, fields in variants}


def test_every_error_of_the_library_has_a_class() -> None:
    found = library_errors()
    assert len(found) >= 45
    for name, fields in found.items():
        kind = getattr(errors, name)
        assert issubclass(kind, errors.WarpannError), name
        # A source is the cause of the exception or its `errno`, and a keyword cannot be declared.
        missing = fields - {"source", "from"} - set(inspect.get_annotations(kind))
        assert not missing, f"{name} lacks {missing}"


def test_the_classes_say_whose_fault_it_is() -> None:
    text = LIBRARY.read_text()
    for name, kind in re.findall(r"Error::(\w+)[^=]*=> \(\"\w+\", Class::(\w+)\)", text):
        base = {"Input": errors.InputError, "Device": errors.DeviceError, "Other": errors.WarpannError}[kind]
        found = getattr(errors, name)
        assert issubclass(found, base)
        assert issubclass(found, (errors.InputError, errors.DeviceError)) == (kind != "Other"), name
    assert issubclass(errors.InputError, ValueError) and issubclass(errors.DeviceError, RuntimeError)


def raised(call: Any) -> Any:
    with pytest.raises(errors.WarpannError) as caught:
        call()
    return caught.value


def test_attributes_are_the_numbers_of_the_fault() -> None:
    index = warpann.FlatIndex(4, device="cpu")
    index.add(np.zeros((3, 4), np.float32), [5, 6, 7])
    bad = np.zeros((2, 4), np.float32)
    bad[1, 2] = np.inf
    error = raised(lambda: index.add(bad))
    assert (error.kind, error.input, error.row, error.column, error.value) == ("not_finite", "base", 1, 2, np.inf)
    assert str(error) == "component inf at row 1, column 2 of the base is not finite"
    error = raised(lambda: index.search(np.zeros((2, 5)), 1))
    assert (type(error), error.expected, error.actual) == (errors.WrongDimension, 4, 5)
    error = raised(lambda: index.remove([6, 9]))
    assert (type(error), error.id, error.len) == (errors.UnknownId, 9, 3) and isinstance(error, LookupError)
    error = raised(lambda: index.search(np.zeros(4), 2**60))
    assert (type(error), error.queries, error.k) == (errors.ResultTooLarge, 1, 2**60)
    error = raised(lambda: warpann.FlatIndex(4, metric="euclid"))
    assert (error.text, error.known) == ("euclid", ("l2", "ip", "cosine", "hamming"))
    error = raised(lambda: warpann.FlatIndex(4, device="cpu+cpu,cpu"))
    assert isinstance(error, errors.UnknownName)
    error = raised(lambda: warpann.load("/no/such/file"))
    assert (type(error), error.errno, error.path) == (errors.Io, 2, "/no/such/file") and isinstance(error, OSError)
    error = raised(lambda: warpann.from_bytes(b"no index"))
    assert isinstance(error, errors.BadFile) and error.path == "(an index in memory)" and error.defect
    error = raised(lambda: warpann.FlatIndex(4, device="gpu:99"))
    assert isinstance(error, errors.NoDevice) and error.reason
    error = raised(lambda: warpann.IvfIndex(6, 2, encoding="pq:4"))
    assert (error.number, error.parts, error.by) == (6, 4, "sub-quantizers")
    error = raised(lambda: warpann.GraphIndex(6, degree=1000))
    assert (error.value, error.most) == (1000, 256)
    error = raised(lambda: index.merge(warpann.FlatIndex(4, dtype="uint8", device="cpu")))
    assert (type(error), error.expected, error.actual) == (errors.Mismatch, "f32", "u8")
    error = raised(lambda: index.merge(warpann.FlatIndex(5, device="cpu")))
    assert (type(error), error.what) == (errors.Incompatible, "dimension")
    assert len(index) == 3


def test_exceptions_are_pickled_and_copied() -> None:
    index = warpann.FlatIndex(4, device="cpu")
    for error in [
        raised(lambda: index.search(np.zeros(5), 1)),
        raised(lambda: warpann.load("/no/such/file")),
        raised(lambda: index.remove([1])),
    ]:
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
