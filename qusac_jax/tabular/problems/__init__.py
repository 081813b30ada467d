"""The environments that tabular agents are compared on, by where they come from.

`paper`: toy, deep_sea, rooms. `classic`: river_swim, chain, queue. `gridworlds`: grid, maze.
`bsuite`: bandit, catch, discounting_chain, umbrella.
"""

from qusac_jax.tabular.problems.bsuite import bandit, catch, discounting_chain, umbrella
from qusac_jax.tabular.problems.classic import chain, queue, river_swim
from qusac_jax.tabular.problems.gridworlds import grid, maze
from qusac_jax.tabular.problems.paper import deep_sea, rooms, toy

__all__ = [
    "bandit",
    "catch",
    "chain",
    "deep_sea",
    "discounting_chain",
    "grid",
    "maze",
    "queue",
    "river_swim",
    "rooms",
    "toy",
    "umbrella",
]
