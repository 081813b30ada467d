"""QU-SAC: model-based actor-critic that learns and uses the variance of its values.

The verbs for a training loop of one's own, as pure functions of a state:

| verb | what it does |
| --- | --- |
| `init` | random networks and empty buffers |
| `observe` | stores transitions |
| `refresh` | fits the dynamics and rolls them out; `fit` and `roll_out` are its halves |
| `learn` | G gradient updates |
| `act` | an action of the policy |
| `train_step` | observe, learn and act in one call |
| `collect` | observe and act in one call: a step of the warm-up |

They are to be compiled: `jax.jit(functools.partial(verb, config=config, task=task),
donate_argnums=0)`, once before the loop. Without `jax.jit` each call of `learn`, `refresh` and
`train_step` compiles its loops anew, which takes seconds. Numbers are float32, also where
`jax_enable_x64` is set for `qusac_jax.ube`. The strict settings that it works with,
`jax_numpy_rank_promotion="raise"` and `jax_numpy_dtype_promotion="strict"`, refuse the networks and
Optax. `jax_debug_infs` stops at ranges that do not bind, which are infinite, and `jax_debug_nans`
at the `sqrt_u_bound` of `diagnostics.diagnose` where there is no U-net.

`schedule` says which of them is due at a step, `presets` has the algorithms of the paper's
comparison as values of `Config`, `diagnostics` tells how a run is doing.
"""

from qusac_jax.qusac import diagnostics, presets, schedule
from qusac_jax.qusac.agent import (
    TrainState,
    act,
    check_ready,
    collect,
    fit,
    init,
    learn,
    observe,
    refresh,
    roll_out,
    train_step,
)
from qusac_jax.qusac.config import Config, DynamicsConfig
from qusac_jax.task import Task, Transition

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
    "fit",
    "init",
    "learn",
    "observe",
    "presets",
    "refresh",
    "roll_out",
    "schedule",
    "train_step",
]
