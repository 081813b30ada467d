"""Environments from their possible successors: arrays of small ones, large ones sparse.

Agents know nothing of an array `[S, A, S]`; of a sparse environment they are told which successors
are possible (`environment.with_support` does that for small ones).

Axes: S states, A actions, K successors.
"""

import numbers

import numpy as np

from qusac_jax.tabular.environment import Environment, from_arrays, from_sparse

_DENSE_STATES = 1000  # up to which an environment is an array


def build(next_state, probability, reward, start, **about) -> Environment:
    """An environment of `[S, A, K]` successors in 0 .. S and their probabilities.

    Args:
        next_state: S ends the episode.
        probability: of each successor.
        reward: `[S, A]`.
        start: state, or `[S]` distribution.
        about: keyword arguments of `from_arrays`.
    """
    if len(reward) > _DENSE_STATES:
        return from_sparse(next_state, probability, reward, start, **about)
    transition = np.zeros((*np.shape(reward), len(reward) + 1))
    pair = np.indices(next_state.shape)[:2]
    np.add.at(transition, (*pair, next_state), probability)
    return from_arrays(transition[..., :-1], reward, start, **about)


def check_probability(name: str, value: float) -> None:
    """Raises `ValueError` unless it is one."""
    if not isinstance(value, numbers.Real) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
