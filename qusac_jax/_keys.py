"""Random keys as plain numbers, for what stores or moves arrays."""

from typing import Any

import jax
import jax.numpy as jnp


def is_key(x: Any) -> bool:
    """Whether it is an array of typed random keys; tracers and shapes of them are, too."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def to_data(x: Any) -> Any:
    """The numbers that keys are made of; anything else as it is."""
    return jax.random.key_data(x) if is_key(x) else x


def from_data(like: Any, data: Any) -> Any:
    """What `to_data` was given.

    Args:
        like: of the same kind, an array or what `jax.eval_shape` returns; its shape does not count.
        data: what `to_data` returned.
    """
    if not is_key(like):
        return data
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(data, impl=impls[0])
