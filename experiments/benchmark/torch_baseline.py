"""Updates per second of the plain PyTorch agent, on batches from buffers of the agent's sizes."""

import functools
import statistics

from experiments import own_cores
from experiments.benchmark import measure
from experiments.benchmark.jobs import Baseline
from experiments.benchmark.torch_agent import Batch, Learner, Noise, device, is_known, torch
from qusac_jax.qusac import state as state_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task

INSTALL = "PyTorch is not installed, so some ratios are missing: pip install -e '.[bench]'"
_UPDATES = 10  # of a call that is timed


@functools.lru_cache
def baseline(config: Config, task: Task, repeat: int) -> Baseline | None:
    """Updates per second of one seed, batches drawn from buffers of the same sizes.

    Several seeds would be trained one after the other, at the same rate.

    Returns:
        None where PyTorch is not installed or the configuration is not known.
    """
    if torch is None or not is_known(config):
        return None
    torch.set_num_threads(own_cores.count())
    torch.set_float32_matmul_precision("high")  # on GPUs the precision that JAX takes by default
    learner = Learner.new(config, task)
    data = _Data(config, task)

    def call() -> None:
        losses = [learner.update(*data.batches(), data.noise()) for _ in range(_UPDATES)]
        losses[-1]["actor_loss"].item()

    timing = measure.timed(call, repeat)
    place = device()
    name = f"PyTorch {torch.__version__.split('+')[0]} on {place}"
    if place == "cpu":
        name = f"{name}, {measure.threads_in_words(torch.get_num_threads())}"
    return Baseline(name, _UPDATES / statistics.median(timing.seconds))


class _Data:
    """Random buffers of the sizes that the agent has, and batches from them."""

    def __init__(self, config: Config, task: Task):
        self._config, self._task = config, task
        draw = lambda size: {
            "observation": torch.rand(size, task.observation_size, device=device()),
            "action": 2 * torch.rand(size, task.action_size, device=device()) - 1,
            "reward": torch.rand(size, device=device()),
            "next_observation": torch.rand(size, task.observation_size, device=device()),
            "terminated": torch.zeros(size, dtype=torch.bool, device=device()),
        }
        self._real = draw(config.replay_capacity)
        self._buffers = [self._real]
        if config.uses_model:
            capacity = state_lib.model_capacity(config)
            self._buffers = [draw(capacity) for _ in range(config.num_model_buffers)]

    def batches(self) -> tuple[list[Batch], Batch]:
        """One for each critic group, and one for U-net and actor."""
        shared, *members = self._buffers
        return [self._batch(buffer) for buffer in members or [shared]], self._batch(shared)

    def _batch(self, buffer: Batch) -> Batch:
        real = self._config.num_real if self._config.uses_model else 0
        parts = [_sample(buffer, self._config.batch_size - real)]
        if real:
            parts.insert(0, _sample(self._real, real))
        return {name: torch.cat([part[name] for part in parts]) for name in buffer}

    def noise(self) -> Noise:
        """Of one update."""
        shape = (self._config.batch_size, self._task.action_size)
        draw = lambda *leading: torch.randn(*leading, *shape, device=device())
        return Noise(draw(), draw(self._config.gap_samples), draw(self._config.num_groups), draw())


def _sample(buffer: Batch, count: int) -> Batch:
    slots = torch.randint(len(buffer["reward"]), (count,), device=device())
    return {name: values[slots] for name, values in buffer.items()}
