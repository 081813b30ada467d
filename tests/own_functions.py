"""What a user would write, to be named as `tests.own_functions:NAME`."""

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac.uncertainty import METHODS, Method

upper_bound = METHODS["upper_bound"]


def squared_range(values):
    """U `[B]`: as far apart as the most and the least hopeful critic are."""
    return jnp.square(jnp.max(values.q, axis=0) - jnp.min(values.q, axis=0))


spread = Method(direct=squared_range, min_groups=2)
expected_changes = Method(
    local=lambda values, discount: jnp.var(values.change, axis=0).mean(axis=-1),
    min_models=2,
    is_of_values=False,
)
next_values = Method(
    local=lambda values, discount: discount**2 * jnp.var(values.next_q, axis=(0, 1, 2)),
    min_groups=2,
    min_models=2,
    reads_next_values=True,
    compares_actions=True,
)


def apart(mean, std):
    """A penalty `[B]`: how far the members' means are apart."""
    return jnp.linalg.norm(jnp.std(mean, axis=0), axis=-1)


def small_values(q, is_real):
    """A regularizer `[]`, summed over critics."""
    return jnp.sum(jnp.mean(jnp.square(q), axis=-1))


# What a mistake makes of them.
both = Method(direct=squared_range, local=lambda values, discount: squared_range(values))
of_members = Method(direct=lambda values: jnp.var(values.q, axis=-1))
whole_numbers = Method(local=lambda values, discount: jnp.argmax(values.q, axis=0))
of_numpy = Method(direct=lambda values: np.asarray(values.q).var(axis=0))
of_the_model = Method(local=lambda values, discount: jnp.var(values.reward, axis=0))
without_gradient = Method(
    direct=lambda values: jax.lax.while_loop(
        lambda u: jnp.any(u > 1.0), lambda u: u / 2.0, squared_range(values)
    )
)


def apart_in_all(mean, std):
    return jnp.std(mean, axis=0)


def small_values_of_each(q, is_real):
    return jnp.mean(jnp.square(q), axis=-1)
