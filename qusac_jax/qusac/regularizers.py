"""What the critics' loss asks for beside small Bellman residuals: the table of ways.

One's own is a function of the critics' values, and `Config(regularizer="MODULE:NAME")` names it.
Its value times `Config.regularizer_weight` is added to `losses.critic_loss`, which is a sum over
the N x M critics, as the value must be: then each critic's share does not depend on how many there
are.

Axes: N members, M critics per member, B batch.
"""

import types
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from qusac_jax import _importing

# (q [N, M, B] at a batch of real and model transitions, is_real [B] bool) -> [], to be minimized.
Regularizer = Callable[[jax.Array, jax.Array], jax.Array]


def combo(q: jax.Array, is_real: jax.Array) -> jax.Array:
    """E_ρ[Q] - E_D[Q]: lowers values on model data and raises them on real data.

    ρ(s, a) are the states that the policy visits in the model with its actions there, as the
    rollouts stored them. The source adds β times this to half the squared residuals, and
    `losses.critic_loss` is not halved: `regularizer_weight` is 2 β.

    Args:
        q: `[N, M, B]`.
        is_real: `[B]`, with at least one true and one false entry.

    Returns:
        `[]`, summed over critics, in units of Q.

    Source: Yu et al. (2021), "COMBO: Conservative Offline Model-Based Policy Optimization", its
    conservative policy evaluation.
    """
    on_model = jnp.mean(q, axis=-1, where=~is_real)
    on_real = jnp.mean(q, axis=-1, where=is_real)
    return jnp.sum(on_model - on_real)


REGULARIZERS: Mapping[str, Regularizer] = types.MappingProxyType({"combo": combo})


def find(name: str) -> Regularizer:
    """An entry of `REGULARIZERS`, or what `MODULE:NAME` names; the module is imported, so executed.

    Raises:
        ValueError: if there is none.
    """
    return _importing.find(name, "regularizer", REGULARIZERS)
