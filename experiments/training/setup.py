"""What a run of the agent is made of, whatever it learns from."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from experiments.processes import Processes
from experiments.run_directory import RunDirectory
from experiments.training.trace import Trace
from qusac_jax import qusac


@dataclasses.dataclass(frozen=True)
class Setup:
    """The values that every run needs; a step is what its program counts, per seed."""

    directory: RunDirectory
    env: str  # to act in online, to evaluate in offline
    config: qusac.Config
    task: qusac.Task  # of the environment
    seeds: Sequence[int]  # R of this process, trained side by side
    num_steps: int
    action_cost: float  # rho >= 0
    eval_every: int  # steps
    eval_episodes: int  # E per seed
    checkpoint_every: int  # steps
    reward_threshold: float  # a step with a larger reward counts as rewarded
    devices: Sequence[Any]  # of this process
    keep_checkpoints: int = 2
    env_processes: int = 1  # that step environments on the host
    restarts_env: bool = False  # checkpoints do not hold environments: their episodes begin anew
    processes: Processes = dataclasses.field(default_factory=Processes)
    trace: Trace = dataclasses.field(default_factory=Trace)  # of its learning steps
