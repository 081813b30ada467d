"""Arrays out of HDF5 files, checked: an error names the file, the key and the first bad row."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qusac_jax import _messages
from qusac_jax._actions import UNBOUNDED

ACTION_TOLERANCE = 1e-5  # float rounding, as a share of half the range of an action
MAX_EXACT_INTEGER = 2**24  # up to here float32 holds every integer
_DAMAGED = "the file is truncated or damaged: copy it, download it or make it again"
# What h5py raises for a damaged file, depending on the part that is damaged.
_H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)


def require(module: str) -> Any:
    """Imports an optional module; raises `ValueError` that says what to install."""
    install = 'pip install "minari[hdf5]"'
    return _messages.require(module, what="dataset: reading datasets", install=install)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """The HDF5 file opened for reading; raises `ValueError` if it is none or damaged."""
    h5py = require("h5py")
    try:
        file = h5py.File(path, "r")
    except _H5PY_ERRORS as error:
        raise ValueError(
            f"dataset: {path} cannot be opened as HDF5 ({error}); it is no HDF5 file, or {_DAMAGED}"
        ) from error
    with file:
        yield file


def keys(path: Path, group: Any) -> list[str]:
    """Names in an HDF5 group."""
    try:
        return [str(key) for key in group]  # h5py gives bytes for what is no UTF-8
    except _H5PY_ERRORS as error:
        raise ValueError(f"dataset: {path} cannot be read ({error}); {_DAMAGED}") from error


def entry(path: Path, group: Any, key: str) -> Any:
    """The dataset or group under `key`; raises `ValueError` if it is missing or damaged."""
    try:
        return group[key]
    except _H5PY_ERRORS as error:
        if key in keys(path, group):
            raise ValueError(
                f"dataset: {_where(path, group, key)} cannot be read ({error}); {_DAMAGED}"
            ) from error
    raise ValueError(
        f"dataset: {path} has no key {_label(group, key)!r} (it has: "
        f"{', '.join(keys(path, group)) or 'nothing'}); {_REMEDIES.get(key, 'add it')}"
    )


_REMEDIES = {
    "timeouts": "add it (true where a time limit cut the episode), or two episodes run together",
    "terminals": "add it (true where the task ended), or values are bootstrapped past the end",
}


def is_array(node: Any) -> bool:
    """Whether an HDF5 node holds an array, not a group or a type."""
    return isinstance(node, require("h5py").Dataset)


def shape(path: Path, group: Any, key: str) -> tuple[int, ...]:
    """The shape of an array without reading it."""
    return _array(path, group, key).shape


def floats(path: Path, group: Any, key: str, *, ndim: int) -> np.ndarray:
    """Reads a float32 array.

    Args:
        path: of the file, for messages.
        group: an open HDF5 file or group.
        key: of the array.
        ndim: the number of axes it must have; its last axis must not be empty where it has two.

    Raises:
        ValueError: if it is missing or damaged, has another number of axes, holds anything but
            floats and integers that float32 represents exactly, or holds NaN or Inf, also where
            a float64 number overflows in float32.
    """
    node = _array(path, group, key)
    where = _where(path, group, key)
    # HDF5 converts float64 while reading, block by block: no copy of twice the size.
    raw = _read(node.astype(np.float32) if node.dtype.kind == "f" else node, where)
    return as_floats(where, raw, ndim=ndim)


def flags(path: Path, group: Any, key: str) -> np.ndarray:
    """Reads booleans `[T]`, stored as such or as numbers 0 and 1; else raises `ValueError`."""
    node = _array(path, group, key)
    where = _where(path, group, key)
    return as_flags(where, _read(node, where))


def as_floats(where: str, raw: Any, *, ndim: int) -> np.ndarray:
    """A float32 array of finite numbers; see `floats`."""
    raw = np.asarray(raw)
    _check_ndim(where, raw, ndim)
    if raw.dtype.kind not in "fiu":
        raise ValueError(
            f"dataset: {where} has the dtype {raw.dtype}; store it as float32 or float64"
        )
    if raw.dtype.kind in "iu":
        _check_rows(
            where,
            raw,
            (raw > MAX_EXACT_INTEGER) | (raw < -MAX_EXACT_INTEGER),
            "is an integer that float32 does not hold exactly; store it as float64 if rounding is "
            "meant",
        )
    with np.errstate(over="ignore"):
        values = raw.astype(np.float32, copy=False)
    _check_rows(
        where, values, ~np.isfinite(values), "is not finite in float32; remove or mend that episode"
    )
    return values


def as_flags(where: str, raw: Any) -> np.ndarray:
    """Booleans `[T]`; see `flags`."""
    raw = np.asarray(raw)
    _check_ndim(where, raw, 1)
    if raw.dtype.kind == "b":
        return raw
    if raw.dtype.kind not in "fiu":
        raise ValueError(f"dataset: {where} has the dtype {raw.dtype}; store it as bool")
    _check_rows(where, raw, (raw != 0) & (raw != 1), "is neither 0 nor 1; store booleans")
    return raw.astype(bool)


def check_lengths(path: Path | str, lengths: dict[str, int]) -> None:
    """Raises `ValueError` unless all keys have as many rows."""
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{key!r} {length}" for key, length in lengths.items())
        raise ValueError(
            f"dataset: {path} has unequal numbers of rows: {found}; the file is cut short or was "
            "put together wrongly: cut all keys to the same episodes"
        )


def check_bounds(where: str, low: np.ndarray, high: np.ndarray) -> None:
    """Raises `ValueError` unless `low < high` holds everywhere and all bounds are finite."""
    bounded = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED) & (low < high)
    if not np.all(bounded):
        component = int(np.flatnonzero(~bounded)[0])
        raise ValueError(
            f"dataset: {where} has the action bounds {low[component]} and {high[component]} in "
            f"component {component}; actions are scaled to [-1, 1], so give finite bounds with "
            "low < high"
        )


def to_unit(
    where: str, action: np.ndarray, low: np.ndarray, high: np.ndarray, remedy: str
) -> np.ndarray:
    """Maps actions from [low, high] to [-1, 1], in place.

    Args:
        where: file and key, for the message.
        action: `[T, A]` float32, overwritten.
        low: `[A]`.
        high: `[A]`.
        remedy: what to do about an action outside, for the message.

    Returns:
        `2 (action - low) / (high - low) - 1`; what lies outside by no more than float rounding
        (`ACTION_TOLERANCE`) is clipped.

    Raises:
        ValueError: if an action lies outside by more.
    """
    if not action.flags.writeable:
        action = action.copy()
    margin = (0.5 * ACTION_TOLERANCE * (high - low)).astype(np.float32)
    outside = (action < low - margin) | (action > high + margin)
    problem = f"is outside the bounds {low.tolist()} to {high.tolist()}; {remedy}"
    _check_rows(where, action, outside, problem)
    if np.any(low != -1) or np.any(high != 1):
        action -= low
        action *= 2.0 / (high - low)
        action -= 1.0
    return np.clip(action, -1.0, 1.0, out=action)


def _array(path: Path, group: Any, key: str) -> Any:
    node, where = entry(path, group, key), _where(path, group, key)
    if not is_array(node):
        raise ValueError(f"dataset: {where} is a group; an array is needed")
    try:
        dtype, shape = node.dtype, node.shape
    except _H5PY_ERRORS as error:
        raise ValueError(f"dataset: {where} cannot be read ({error}); {_DAMAGED}") from error
    if shape is None:  # HDF5's null dataspace
        raise ValueError(f"dataset: {where} is empty; {_DAMAGED}")
    if dtype.kind not in "fiub":  # strings and compounds can be long: look at no value
        raise ValueError(f"dataset: {where} has the dtype {dtype}; numbers are needed")
    return node


def _read(view: Any, where: str) -> np.ndarray:
    try:
        return view[()]
    except _H5PY_ERRORS as error:
        raise ValueError(f"dataset: {where} cannot be read ({error}); {_DAMAGED}") from error


def _check_ndim(where: str, values: np.ndarray, ndim: int) -> None:
    if values.ndim != ndim or 0 in values.shape[1:]:
        meant = "one row of numbers per step" if ndim == 2 else "one number per step"
        raise ValueError(f"dataset: {where} has the shape {values.shape}; store {meant}")


def _check_rows(where: str, values: np.ndarray, bad: np.ndarray, problem: str) -> None:
    if not bad.any():
        return
    row, *column = np.argwhere(bad)[0].tolist()
    value = values[tuple([row, *column])]
    place = f"row {row}" + (f", column {column[0]}" if column else "")
    raise ValueError(f"dataset: {where}, {place}: {value} {problem}")


def _label(group: Any, key: str) -> str:
    return f"{group.name}/{key}".lstrip("/")


def _where(path: Path, group: Any, key: str) -> str:
    return f"{path}, key {_label(group, key)!r}"
