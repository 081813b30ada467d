"""QU-SAC: model-based actor-critic that learns and uses the variance of its values.

The verbs for a training loop of one's own, as pure functions of a state:

| verb | what it does |
| --- | --- |
| `init` | random networks and empty buffers |
| `observe` | stores transitions |
| `refresh` | fits the dynamics and rolls them out |
| `learn` | G gradient updates |
| `act` | an action of the policy |
| `train_step` | observe, learn and act in one call |
| `collect` | observe and act in one call: a step of the warm-up |

`schedule` says which of them is due at a step, `presets` has the algorithms of the paper's
comparison as values of `Config`, `diagnostics` tells how a run is doing.
"""

from qusac_jax.qusac import diagnostics, presets, schedule
from qusac_jax.qusac.agent import (
    TrainState,
    act,
    check_ready,
    collect,
    init,
    learn,
    observe,
    refresh,
    train_step,
)
from qusac_jax.qusac.config import Config, DynamicsConfig
from qusac_jax.qusac.replay import Transition
from qusac_jax.task import Task

__all__ = [
    "Config",
    "DynamicsConfig",
    "Task",
    "TrainState",
    "Transition",
    "act",
    "check_ready",
    "collect",
    "diagnostics",
    "init",
    "learn",
    "observe",
    "presets",
    "refresh",
    "schedule",
    "train_step",
]
