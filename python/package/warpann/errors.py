"""The exceptions of warpann.

Every exception of a call is a :class:`WarpannError`, and has the numbers of the fault as attributes, so that a program
need not parse text. A failed call leaves index, file and output as they were, unless the call says otherwise.

=====================  ==================================================================================
class                  cause
=====================  ==================================================================================
``InputError``         arguments, files, or the order of calls: the call fails on every machine (also a ``ValueError``)
``DeviceError``        a GPU, its memory or its driver (also a ``RuntimeError``)
other subclasses       memory and files of the host, a call that was cancelled, a request that was refused, a bug
=====================  ==================================================================================
"""

from __future__ import annotations

from typing import Any


class WarpannError(Exception):
    """The base of all exceptions of warpann.

    ``kind`` is the name of the error in all interfaces of the library, such as ``wrong_dimension``. It stays the same
    in later versions; messages may change.
    """

    kind: str

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self._facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (type(self), str(self), self._facts))

    def __str__(self) -> str:
        # Subclasses of OSError and KeyError would show other texts.
        return str(self.args[0]) if self.args else ""


def _again(kind: type[WarpannError], message: str, facts: dict[str, Any]) -> WarpannError:
    return kind(message, **facts)


class InputError(WarpannError, ValueError):
    """Arguments, files or the order of calls are the cause: the same call fails on every machine."""


class DeviceError(WarpannError, RuntimeError):
    """A device, its memory or its driver is the cause: the call may succeed on another device."""


# Arguments.


class WrongType(InputError, TypeError):
    """An argument has another type, or an array another type of elements, than the call takes."""

    argument: str
    actual: str
    expected: str


class WrongShape(InputError):
    """An array has another number of axes, or another shape, than the call takes."""

    argument: str
    shape: tuple[int, ...]
    expected: str


class IdOutOfRange(InputError):
    """An id is negative, or above 2⁶³ − 1, the greatest id of this interface."""

    id: int


class UnknownName(InputError):
    """A text names no metric, device, encoding or element type."""

    text: str
    known: tuple[str, ...]


class Zero(InputError):
    """A number that must be at least 1 is 0."""

    what: str


class Ragged(InputError):
    """An array is not a whole number of rows."""

    what: str
    len: int
    size: int


class WrongDimension(InputError):
    """Vectors have another number of components than the index."""

    expected: int
    actual: int


class NotFinite(InputError):
    """A component is NaN or infinite. ``row`` and ``column`` count from 0."""

    input: str
    row: int
    column: int
    value: float


class Overflow(InputError):
    """A number computed from finite vectors exceeds the range of float32."""

    derived: str
    row: int
    column: int


class DoesNotFit(InputError):
    """A component is too large or too small for the encoding, by its training."""

    encoding: str
    row: int
    column: int
    value: float
    least: float
    greatest: float


class TooMany(InputError):
    """More of something than an index or a call can hold."""

    what: str
    asked: int
    limit: int


class UnknownId(InputError, LookupError):
    """No vector of the index has the id."""

    id: int
    len: int


class WrongLength(InputError):
    """An array has another length than the arrays or numbers that it belongs to need."""

    what: str
    expected: int
    actual: int


class ResultTooLarge(InputError):
    """The results, queries times k, do not fit in memory."""

    queries: int
    k: int


class NotTrained(InputError):
    """The index is not trained: call ``train`` first."""

    call: str


class NotEmpty(InputError):
    """An index with vectors cannot be trained."""

    len: int


class TooFewTrainingVectors(InputError):
    """Fewer training vectors than clusters or codewords."""

    have: int
    need: int


class NotDivisible(InputError):
    """The dimension is not divisible by the number of sub-quantizers, or that of devices by the number of shards."""

    what: str
    number: int
    by: str
    parts: int


class BadWeight(InputError):
    """A weight is negative, NaN or infinite, or all weights are 0."""

    row: int
    value: float


class BadNumber(InputError):
    """A number is NaN, or below the least one."""

    what: str
    value: float
    least: float


class DuplicateId(InputError):
    """An id occurs twice, or the index has it already."""

    id: int


class ReservedId(InputError):
    """The id means "no neighbour" and cannot be that of a vector."""


class OutOfRange(InputError):
    """A number is not among those that are supported."""

    what: str
    value: int
    least: int
    most: int


class StaleFilter(InputError):
    """A filter was made for other ids than those in the index."""

    vectors: int


class Mismatch(InputError):
    """An element type or a metric is another one than the call needs."""

    what: str
    expected: str
    actual: str


class Incompatible(InputError):
    """Indexes, or the results of shards, cannot be merged."""

    what: str


class RecallOutOfReach(InputError):
    """No number of probes or width of the beam reaches the recall."""

    target: float
    best: float
    widest: str


class NoTrueNeighbors(InputError):
    """There is no recall to measure: there are no queries, or the index is empty."""

    queries: int
    vectors: int


class NotOrthogonal(InputError):
    """A matrix is not a rotation."""

    dim: int
    len: int
    error: float


class BadRow(InputError):
    """A row of keys, or a selection of them, is not possible."""

    what: str
    row: int
    value: int
    least: int
    most: int


class NotInDeviceMemory(InputError):
    """The vectors of the index are not in the memory of one GPU."""

    index: str


class StaleWorkspace(InputError):
    """The workspace is for another index, or for another version of this one."""


class BadMemory(InputError):
    """Memory of a GPU, or a tensor, cannot be used."""

    what: str
    defect: str


class NotConnected(InputError):
    """There is no path between two nodes."""

    to: int
    from_size: int
    to_size: int


class LaunchLimit(InputError):
    """A launch exceeds a limit of the kernel."""

    kernel: str
    what: str
    asked: int
    limit: int


class MpiStarted(InputError):
    """MPI was started before."""


class BadFile(InputError):
    """A file cannot be used: it does not follow its format, or holds an index of another kind."""

    path: str
    defect: str


# Devices.


class NoDevice(DeviceError):
    """There is no usable GPU, or not the one that was asked for."""

    reason: str


class OutOfDeviceMemory(DeviceError, MemoryError):
    """The memory of a device, or the budget for it, is too small."""

    device: str
    asked: int
    available: int


class PtxRefused(DeviceError):
    """The driver refused a kernel module."""

    module: str
    code: int
    log: str


class Driver(DeviceError):
    """The driver reports another failure."""

    call: str
    device: int
    code: int


class DeviceFailed(DeviceError):
    """One of several devices failed. ``__cause__`` is the error of its driver."""

    device: str
    shard: int
    left: int


class ShardLost(DeviceError):
    """All devices that hold a shard have failed."""

    shard: int
    replicas: int


# The host, the caller, and bugs.


class Cancelled(WarpannError, RuntimeError):
    """The progress function of the call returned False. Nothing has changed."""


class Busy(WarpannError, RuntimeError):
    """A function that a call of warpann calls (progress, filter, change) used the index of that call in a way that
    would wait for the call itself."""


class OutOfHostMemory(WarpannError, MemoryError):
    """The memory of the host is too small."""

    asked: int


class Refused(WarpannError, RuntimeError):
    """A batcher did not search for a request: ``reason`` is ``full``, ``expired`` or ``closed``."""

    reason: str


class Io(WarpannError, OSError):
    """The operating system refused a file operation; ``errno`` has its number."""

    path: str


class Thread(WarpannError, RuntimeError):
    """The operating system refused a thread."""


class RankFailed(WarpannError, RuntimeError):
    """Another rank of a distributed call failed."""

    rank: int
    reason: str


class WrongSelection(WarpannError, RuntimeError):
    """A measured selection differs from that of the CPU."""

    row: int


class KernelViolation(WarpannError, RuntimeError):
    """The emulator stopped a kernel that broke a rule of the hardware: a bug of the library."""

    violation: str


class InternalError(WarpannError, RuntimeError):
    """A bug of the library: please report the message."""
