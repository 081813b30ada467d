"""What rollouts of the model take off the reward where the model is uncertain: the table of ways.

One's own is a function of the members' predictions, and `Config(penalty="MODULE:NAME")` names it.
Rollouts store reward - λ penalty, so that every critic sees the penalized reward; λ is
`Config.penalty_scale`.

Axes: N members, B batch, O observation size.
"""

import types
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from qusac_jax import _importing

# (mean [N, B, O + 1], std [N, B, O + 1]) of (s', r) at B pairs (s, a), the reward last -> [B].
Penalty = Callable[[jax.Array, jax.Array], jax.Array]


def mopo(mean: jax.Array, std: jax.Array) -> jax.Array:
    """max over members of the norm of the predicted standard deviation, max_i ||Σ_i(s, a)||.

    The norm is over all that a member predicts: the next observation and the reward, each in its
    own units.

    Args:
        mean: `[N, B, O + 1]`, not read.
        std: `[N, B, O + 1]`, the members' standard deviations at (s, a).

    Returns:
        `[B]`, at least 0.

    Source: Yu et al. (2020), "MOPO: Model-based Offline Policy Optimization", section 4.3.
    """
    del mean
    return jnp.max(jnp.linalg.norm(std, axis=-1), axis=0)


PENALTIES: Mapping[str, Penalty] = types.MappingProxyType({"mopo": mopo})


def find(name: str) -> Penalty:
    """An entry of `PENALTIES`, or what `MODULE:NAME` names; the module is imported, so executed.

    Raises:
        ValueError: if there is none.
    """
    return _importing.find(name, "penalty", PENALTIES)
