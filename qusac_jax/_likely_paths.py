"""Approximate inverses of I - discount * P, from where each state most likely leads.

P is taken for one likely next state of each state, and a rest that goes anywhere. Most of a belief
over a nearly deterministic problem is that: what was seen, and an even prior. The inverse takes
S log S operations by following paths of twice the length in each step.

Axes: S states, A actions, N systems.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


_LEAST_DOUBLINGS = 10  # of a path's length: cycles are followed for 1024 steps


class Likely(NamedTuple):
    """The likeliest next state of each state, or of each state and action."""

    next_state: jax.Array  # [...] index
    excess: jax.Array  # [...] how much likelier it is than the others on average
    others: jax.Array  # [...] average probability of the others


def likeliest(transition: jax.Array) -> Likely:
    """Of `[..., S]` probabilities of the next state."""
    next_state = jnp.argmax(transition, -1)
    probability = jnp.take_along_axis(transition, next_state[..., None], -1)[..., 0]
    others = (transition.sum(-1) - probability) / max(transition.shape[-1] - 1, 1)
    return Likely(next_state, probability - others, others)


def preconditioner(likely: Likely, discount: chex.Numeric) -> Callable[[jax.Array], jax.Array]:
    """A function from `[N, S]` to `[N, S]` that is linear and nearly the inverse.

    It is the inverse where the others are equally likely, up to what comes late in cycles.

    Args:
        likely: `[S]` each.
        discount: in [0, 1].
    """
    hop, weight = likely.next_state, discount * likely.excess
    hops = [(hop, weight)]
    doublings = max(_LEAST_DOUBLINGS, (len(hop) - 1).bit_length())
    for _ in range(doublings - 1):
        hop, weight = hop[hop], weight * weight[hop]
        hops.append((hop, weight))

    def along_paths(x):
        for hop, weight in hops:
            x = x + weight * x.at[..., hop].get(mode="promise_in_bounds")
        return x

    # Sherman and Morrison: the others are a matrix of rank one.
    spread = along_paths(discount * likely.others)
    stays = 1 - spread.sum()

    def precondition(x):
        x = along_paths(x)
        return x + spread * (x.sum(-1, keepdims=True) / stays)

    return precondition
