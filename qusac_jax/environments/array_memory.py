"""Where the numbers of arrays are: in memory of their own, in that of others, in which order."""

from typing import Any

import numpy as np


def root_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one looks at; itself if that is not NumPy's to restore."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    is_whole = root.flags.c_contiguous or root.flags.f_contiguous
    return root if root.base is None and is_whole else array


def is_outside(array: np.ndarray) -> bool:
    """Whether it looks into memory that is not NumPy's, a part of it or all."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root.base is not None and array.flags.writeable


def to_outside(current: Any, array: np.ndarray) -> np.ndarray:
    """The current array with these values, if it looks into such memory; else a copy of `array`."""
    if not isinstance(current, np.ndarray) or not is_outside(current):
        return array.copy()
    if (current.shape, current.dtype.str) != (array.shape, array.dtype.str):
        return array.copy()
    current[...] = array
    return current


def into(current: Any, array: np.ndarray) -> np.ndarray:
    """The current array, if it can stay and have these values; else `array`."""
    if not isinstance(current, np.ndarray) or isinstance(current.base, np.ndarray):
        return array
    if (current.shape, current.dtype.str) != (array.shape, array.dtype.str):
        return array
    is_own = current.base is None
    if is_own and not _is_laid_out_alike(current, array):
        return array
    if current.tobytes() == array.tobytes():
        return current
    if is_own or not current.flags.writeable:
        return array
    current[...] = array  # a simulator's memory, in checkpoints of earlier versions
    return current


def strided(array: np.ndarray, strides: list[int]) -> np.ndarray:
    """The same values with these strides, between which nothing is."""
    ends = [stride * (length - 1) for stride, length in zip(strides, array.shape, strict=True)]
    first = -sum(end for end in ends if end < 0)
    memory = np.zeros(first + sum(end for end in ends if end > 0) + array.itemsize, np.uint8)
    placed = np.ndarray(array.shape, array.dtype, memory, first, strides)
    placed[...] = array
    return placed


def _is_laid_out_alike(a: np.ndarray, b: np.ndarray) -> bool:
    # Strides of axes of one element differ, and mean nothing.
    return a.strides == b.strides or (a.flags.c_contiguous and b.flags.c_contiguous)
