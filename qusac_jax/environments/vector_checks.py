"""Checks of what users give to several environments at once.

Axis: R environments.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qusac_jax.environments.make import Spec, check_seed


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises `ValueError` unless there is a seed, and all of them fit."""
    if np.ndim(seeds) != 1:
        raise ValueError(f"seeds must be a list of integers, got {seeds!r}; pass e.g. [0]")
    if len(seeds) == 0:
        raise ValueError("seeds must hold at least one seed, got none; pass e.g. [0]")
    for seed in seeds:
        check_seed(seed)


def check_actions_shape(actions: np.ndarray, num_envs: int, spec: Spec) -> None:
    """Raises `ValueError` unless there is one action of the right size for each environment."""
    shape = (num_envs, spec.action_size)
    if actions.shape != shape:
        raise ValueError(
            f"actions must have shape {shape} (environments, action size), got {actions.shape}"
        )


def which_active(active: Any, num_envs: int) -> np.ndarray:
    """Which environments to step, `[R]` bool; raises `ValueError` for another shape."""
    chosen = np.ones(num_envs, bool) if active is None else np.asarray(active, bool)
    if chosen.shape != (num_envs,):
        raise ValueError(
            f"active must have shape ({num_envs},), one for each environment, got {chosen.shape}"
        )
    return chosen
