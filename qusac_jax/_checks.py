"""Checks of numbers, arrays of them, and keys that a user passes."""

import operator
import reprlib

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from qusac_jax.sparse import Sparse

ROW_TOLERANCE = 1e-5  # float32 rows of a thousand entries sum to 1 within this
_RAW_KEYS = ((2,), (4,))  # shapes of JAX's own implementations


def is_concrete(*values) -> bool:
    """Whether no value is being traced, so that it can be checked."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def check_real(**values) -> None:
    """Raises `ValueError` unless every value is a real number or an array of them.

    Lists count as arrays, and tracers are looked at too. Of a `Sparse`, it is the probabilities
    that count. None is no number. Neither is an array that is spread over explicit axes of a mesh:
    no function says how its results are to be spread.
    """
    for name, value in values.items():
        if isinstance(value, Sparse):
            value = value.probability
        if hasattr(value, "dtype"):
            dtype = value.dtype
        else:
            try:
                is_number = value is not None and not isinstance(value, str | bytes)
                dtype = jnp.asarray(value).dtype if is_number else None
            except (TypeError, ValueError, OverflowError):  # text, objects, rows that differ
                dtype = None
        is_real = dtype is not None and any(
            jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)
        )
        if not is_real:
            got = reprlib.repr(value) if dtype is None else f"{dtype}"
            raise ValueError(f"{name} must hold real numbers in rows of one length, got {got}")
        spread = jax.typeof(value).sharding.spec if isinstance(value, jax.Array) else ()
        if any(spread):
            raise ValueError(
                f"{name} must not be spread over explicit axes of a mesh, got {spread}; make the "
                "mesh with axis_types=(jax.sharding.AxisType.Auto,) for each axis, which "
                "jax.make_mesh does not by default"
            )


def check_scalars(**values) -> None:
    """Raises `ValueError` unless every value is None or a real number; works on tracers too."""
    check_real(**{name: value for name, value in values.items() if value is not None})
    for name, value in values.items():
        if value is not None and np.ndim(value):
            raise ValueError(
                f"{name} must be a scalar, got shape {np.shape(value)}; use `jax.vmap` for several"
            )


def check_discount(discount) -> None:
    """Raises `ValueError` unless the discount is in [0, 1]."""
    check_real(discount=discount)
    if not 0 <= float(discount) <= 1:
        raise ValueError(f"discount must be in [0, 1], got {float(discount)}")


def check_finite(name: str, array) -> None:
    """Raises `ValueError` if the array has an entry that is NaN or infinite."""
    if not np.all(np.isfinite(np.asarray(array))):
        raise ValueError(f"{name} must be finite, got NaN or infinity; remove those entries")


def check_count(name: str, value, least: int = 1) -> int:
    """The value as an `int`.

    Raises:
        ValueError: unless it is an integer (NumPy's too) of at least `least`.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return count


def check_key(key) -> None:
    """Raises `ValueError` unless it is one of JAX's keys, of either kind; works on tracers too."""
    dtype, shape = getattr(key, "dtype", None), np.shape(key)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_one = shape == () if is_typed else dtype == np.uint32 and shape in _RAW_KEYS
    if not is_one:
        got = f"keys of shape {shape}; map over them with jax.vmap" if is_typed else f"{key!r}"
        raise ValueError(f"key must be a key of JAX, such as jax.random.key(0), got {got}")


def integers(name: str, array) -> jax.Array:
    """The array as int32.

    Raises:
        ValueError: unless its dtype is of integers that int32 can hold.
    """
    if not isinstance(array, jax.Array):
        array = np.asarray(array)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    if isinstance(array, np.ndarray) and array.size:
        least, most = int(array.min()), int(array.max())
        if max(-least, most) > np.iinfo(np.int32).max:
            raise ValueError(f"{name} must fit into int32, got values from {least} to {most}")
    return jnp.asarray(array, jnp.int32)
