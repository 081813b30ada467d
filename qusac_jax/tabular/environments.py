"""Tabular environments: one of your own (`environment`), or of the paper (`problems.paper`).

`problems` has all others.
"""

from qusac_jax.tabular.environment import (
    REGRETS,
    Environment,
    best_returns,
    from_arrays,
    from_sparse,
    with_support,
)
from qusac_jax.tabular.problems.gridworlds import DOWN, LEFT, RIGHT, UP
from qusac_jax.tabular.problems.paper import ToyBelief, deep_sea, rooms, toy

__all__ = [
    "DOWN",
    "LEFT",
    "REGRETS",
    "RIGHT",
    "UP",
    "Environment",
    "ToyBelief",
    "best_returns",
    "deep_sea",
    "from_arrays",
    "from_sparse",
    "rooms",
    "toy",
    "with_support",
]
