"""Whether a method of a user's own, `Config(method="MODULE:NAME")`, can estimate U.

Axes: N members, B batch, J actions per next state, O observation size.
"""

from typing import cast

import jax
import jax.numpy as jnp

from qusac_jax._messages import with_type
from qusac_jax.qusac import uncertainty
from qusac_jax.qusac.config import Config


def check(config: Config, observation_size: int) -> None:
    """Raises `ValueError` unless the method, if it is the user's own, estimates U of a batch.

    Its function is traced, not run, on what it will be given.

    Args:
        config: which names the method.
        observation_size: O.
    """
    method, name = config.qvariance, f"method {config.method!r}"
    if config.method in uncertainty.METHODS or not method.estimates_u:
        return
    if method.local is not None and method.direct is not None:
        raise ValueError(f"{name} has both local and direct; leave one of them out")
    # A length that no other axis has, so that a mistaken axis shows.
    batch = 1 + config.num_members + config.actions_drawn + observation_size
    values = _shapes_of_values(config, batch, observation_size)
    try:
        u = _shape_of_estimate(method, values, config.discount)
    except Exception as error:  # other people's functions raise anything
        raise ValueError(
            f"{name} cannot be traced, or has no gradient: {with_type(error)}; write it with "
            "jax.numpy, direct as a function of qusac.uncertainty.Values, local of these and the "
            "discount"
        ) from error
    given = (getattr(u, "shape", None), getattr(u, "dtype", None))
    if given != ((batch,), jnp.float32):
        described = f"{given[1]}{list(given[0])}" if given[0] is not None else repr(u)
        raise ValueError(
            f"{name} must return float32{[batch]} for a batch of {batch}, got {described}; take "
            "the variance over members, which are the first axis of q, reward, change and noise"
        )


def _shapes_of_values(config: Config, batch: int, observation_size: int) -> uncertainty.Values:
    """What the method is given of B = `batch` pairs."""
    like = lambda *shape: cast(jax.Array, jax.ShapeDtypeStruct(shape, jnp.float32))
    method, members = config.qvariance, config.num_members
    if method.local is None or not method.asks_model:
        return uncertainty.Values(q=like(config.num_groups, batch))
    next_q = like(config.num_groups, members, config.actions_drawn, batch)
    return uncertainty.Values(
        next_q=next_q if method.reads_next_values else None,
        reward=like(members, batch),
        change=like(members, batch, observation_size),
        noise=like(members, batch, observation_size),
    )


def _shape_of_estimate(
    method: uncertainty.Method, values: uncertainty.Values, discount: float
) -> jax.ShapeDtypeStruct:
    if (local := method.local) is not None:
        return jax.eval_shape(lambda values: local(values, discount), values)
    if (direct := method.direct) is None:
        raise ValueError("it estimates nothing")
    # The actor's gradient goes through it.
    jax.eval_shape(jax.grad(lambda values: jnp.sum(direct(values))), values)
    return jax.eval_shape(direct, values)
