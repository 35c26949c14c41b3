"""Arrays of any library as numpy arrays that the library reads in place.

The extension module reads contiguous numpy arrays of the right type by itself. It calls these functions for all others.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpann.errors import IdOutOfRange, UnknownName, WrongShape, WrongType

# bfloat16 is no type of numpy's: its bits travel as uint16.
_TYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("f4"),
    "f16": np.dtype("f2"),
    "bf16": np.dtype("u2"),
    "u8": np.dtype("u1"),
    "i8": np.dtype("i1"),
}
_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint8": "u8",
    "int8": "i8",
}


def element_name(dtype: Any) -> str:
    """The library's name of an element type: of a name, a numpy dtype, or a dtype of torch."""
    text = str(dtype)
    if isinstance(dtype, type) or hasattr(dtype, "name"):
        try:
            text = np.dtype(dtype).name
        except TypeError:
            pass
    text = text.removeprefix("torch.")
    if text in _TYPES:
        return text
    if text in _NAMES:
        return _NAMES[text]
    known = tuple(_NAMES)
    message = f"'{text}' is not an element type; known are {', '.join(known)}"
    raise UnknownName(message, kind="unknown_name", text=text, known=known)


def _wrong_type(argument: str, actual: object, expected: str) -> WrongType:
    message = f"{argument}: {actual}; {expected} is needed"
    return WrongType(message, kind="wrong_type", argument=argument, actual=str(actual), expected=expected)


def _to_numpy(value: Any, argument: str) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise _wrong_type(argument, "a masked array", "an array without a mask")
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__arrow_c_array__"):
        from warpann import _warpann

        return _warpann.arrow_vectors(value, argument)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise _wrong_type(argument, type(value).__name__, "an array of numbers in host memory") from error


def as_vectors(value: Any, element: str, argument: str) -> NDArray[Any]:
    """A contiguous, aligned array of one or two axes; the same memory if it is one already.

    Numbers of other types become the nearest ones of the index's type, once, if the index has floats. An index of
    bytes takes integers, all of which must be in its range.
    """
    array = _to_numpy(value, argument)
    wanted = _TYPES[element]
    if array.ndim not in (1, 2):
        message = f"{argument} of shape {array.shape}; (rows, components), or (components,) is needed"
        raise WrongShape(
            message, kind="wrong_shape", argument=argument, shape=array.shape, expected="(rows, components)"
        )
    if element == "bf16":
        if array.dtype.name != "bfloat16":
            array = _to_bfloat16(array, argument)
        array = np.ascontiguousarray(array).view(np.uint16)
    elif array.dtype != wanted:
        array = _cast(array, wanted, argument)
    return np.require(array, wanted, ("C", "A"))


def _cast(array: NDArray[Any], wanted: np.dtype[Any], argument: str) -> NDArray[Any]:
    floats = wanted.kind == "f"
    if array.dtype.kind not in ("fiu" if floats else "iu") and array.dtype.name != "bfloat16":
        raise _wrong_type(argument, array.dtype, f"{wanted}")
    if floats:
        # What exceeds the type becomes infinite, which the library refuses with its place.
        with np.errstate(over="ignore"):
            return array.astype(wanted)
    if array.dtype.name == "bfloat16":
        raise _wrong_type(argument, array.dtype, f"{wanted}")
    least, greatest = np.iinfo(wanted).min, np.iinfo(wanted).max
    if array.size and (array.min() < least or array.max() > greatest):
        raise _wrong_type(argument, f"{array.dtype} beyond {least} to {greatest}", f"{wanted}")
    return array.astype(wanted)


def _to_bfloat16(array: NDArray[Any], argument: str) -> NDArray[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise _wrong_type(argument, array.dtype, "bfloat16 of the package ml_dtypes") from None
    if array.dtype.kind not in "fiu":
        raise _wrong_type(argument, array.dtype, "bfloat16")
    with np.errstate(over="ignore"):
        return array.astype(ml_dtypes.bfloat16)


def as_ids(value: Any, argument: str) -> NDArray[np.int64]:
    """Ids as a contiguous array of int64 with one axis: of an array, a list, a set or a range."""
    if isinstance(value, (set, frozenset, range)) or (isinstance(value, Iterable) and not hasattr(value, "__len__")):
        value = list(value)
    if isinstance(value, list) and not value:
        return np.empty(0, np.int64)
    if isinstance(value, list) and all(isinstance(id, int) for id in value):
        # numpy would make floats of numbers beyond 64 bits, and of both signs.
        for id in value:
            _check_id(id)
        return np.array(value, np.int64)
    array = _to_numpy(value, argument)
    if array.dtype.kind not in "iu":
        raise _wrong_type(argument, array.dtype, "integers")
    if array.ndim != 1:
        message = f"{argument} of shape {array.shape}; one axis is needed"
        raise WrongShape(message, kind="wrong_shape", argument=argument, shape=array.shape, expected="(ids,)")
    if array.size:
        _check_id(operator.index(array.min()))
        _check_id(operator.index(array.max()))
    return np.require(array, np.int64, ("C", "A"))


def _check_id(id: int) -> None:
    if not 0 <= id < 2**63:
        raise IdOutOfRange(f"id {id} is not in 0 .. 2**63 - 1", kind="id_out_of_range", id=id)
