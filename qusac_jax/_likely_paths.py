"""Approximate inverses of I - discount * P, from where each state most likely leads.

P is approximated by one likely next state of each state, and a rest that is uniform over states. In
a belief over a nearly deterministic problem these are what was seen, and a uniform prior. To apply
the inverse to a vector takes S log S operations: each step follows paths of twice the length.

Axes: S states, A actions, N systems.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

_LEAST_DOUBLINGS = 10  # of a path's length: cycles are followed for 1024 steps
_ROUNDING_ERRORS = 10  # in machine epsilons, of a row or of where paths end


class Likely(NamedTuple):
    """The likeliest next state of each state, or of each state and action."""

    next_state: jax.Array  # [...] index
    excess: jax.Array  # [...] how much likelier it is than the others on average
    others: jax.Array  # [...] average probability of the others
    unexplained: jax.Array  # [...] sum of the others' distances from their average


def likeliest(transition: jax.Array) -> Likely:
    """Of `[..., S]` probabilities of the next state."""
    num_states = transition.shape[-1]
    next_state = jnp.argmax(transition, -1)
    is_likeliest = jax.nn.one_hot(next_state, num_states, dtype=bool)
    probability = jnp.take_along_axis(transition, next_state[..., None], -1)[..., 0]
    others = jnp.where(is_likeliest, 0, transition).sum(-1) / max(num_states - 1, 1)
    distance = jnp.where(is_likeliest, 0, jnp.abs(transition - others[..., None]))
    return Likely(next_state, probability - others, others, distance.sum(-1))


def preconditioner(likely: Likely, discount: chex.Numeric) -> Callable[[jax.Array], jax.Array]:
    """A function from `[N, S]` to `[N, S]` that is linear and nearly the inverse.

    It is the inverse where the others are equally likely, up to what comes late in cycles.

    Args:
        likely: `[S]` each.
        discount: in [0, 1].
    """
    hops, _ = _hops(likely, discount)

    def along_paths(x):
        for hop, weight in hops:
            x = x + jnp.expand_dims(weight, range(x.ndim - 1)) * x[..., hop]
        return x

    spread = along_paths(discount * likely.others)
    stays = 1 - spread.sum()

    def precondition(x):
        x = along_paths(x)
        # Sherman and Morrison: the others are a matrix of rank one.
        return x + spread * (x.sum(-1, keepdims=True) / stays)

    return precondition


def inverse(likely: Likely, discount: chex.Numeric) -> tuple[jax.Array, jax.Array]:
    """The same as a matrix `[S, S]`, and its error `[]`: what is left out of a step at most."""
    hops, left = _hops(likely, discount)
    x = jnp.eye(len(likely.excess), dtype=likely.excess.dtype)
    spread = discount * likely.others
    for hop, weight in hops:
        x = x + weight[:, None] * x[hop]  # whole rows
        spread = spread + weight * spread[hop]
    x = x + spread[:, None] * (x.sum(0) / (1 - spread.sum()))
    return x, jnp.maximum(jnp.max(likely.unexplained), jnp.max(left))


def is_rounding(error: jax.Array) -> jax.Array:
    """Whether what is left out of a step is no more than the rounding of a row."""
    return error <= _ROUNDING_ERRORS * jnp.finfo(error.dtype).eps


def next_rows(likely: Likely, x: jax.Array) -> jax.Array:
    """Product `[..., J]` of the transition and `x` `[S, J]`, without what is unexplained."""
    return likely.excess[..., None] * x[likely.next_state] + likely.others[..., None] * x.sum(0)


def _hops(likely, discount):
    """Steps of 1, 2, 4, ... with their weights, and the weights of the next."""
    hop, weight = likely.next_state, discount * likely.excess
    hops = []
    for _ in range(max(_LEAST_DOUBLINGS, (len(hop) - 1).bit_length())):
        hops.append((hop, weight))
        hop, weight = hop[hop], weight * weight[hop]
    return hops, weight
