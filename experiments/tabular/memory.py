"""What a tabular run takes: memory, from its sizes alone.

Axes: S states, A actions, K successors of a pair in sparse form, N sampled MDPs, R seeds,
E episodes.
"""

from typing import NamedTuple

import jax

from experiments import memory, seeds
from qusac_jax import _memory, posterior
from qusac_jax.sparse import Sparse
from qusac_jax.tabular import environments, experiment

_FLOAT, _DOUBLE = 4, 8  # bytes
_SEA_ACTIONS = 2
_ENVIRONMENT_ARRAYS = 2  # of size [S, A, S]: on the host and on the device, also summed up
_STATE_COPIES = 2  # while the seeds' states are stacked
_PLANNING_ARRAYS = 6  # [S, A, S] or N x [S, S]: mean MDP, its system, factors and their like
_METRIC_BYTES = 48  # per seed and episode: three columns, twice while they grow, and the regret
_ONE_MDP = ("psrl", "ensemble_mean")  # methods without an ensemble
_TO_LOWER = {  # the flags behind each part of `Memory`
    "environment": ("--length or --size",),
    "beliefs": ("--length or --size", "--num_seeds"),
    "planning": ("--length or --size", "--num_members"),
    "metrics": ("--num_episodes", "--num_seeds"),
}


class Memory(NamedTuple):
    """Bytes of a run, about."""

    environment: int  # the MDP's arrays
    beliefs: int  # of all seeds, which begin on one device
    planning: int  # sampled MDPs and linear systems of the seeds that plan at once
    metrics: int  # of all episodes, and the policies of those between two reports

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)

    def describe(self) -> str:
        """A line for a person."""
        parts = (f"{name} {_memory.in_words(size)}" for name, size in self._asdict().items())
        free = _memory.available()
        left = "" if free is None else f", {_memory.in_words(free)} are free"
        return f"{_memory.in_words(self.total)} of memory ({', '.join(parts)}){left}"


def check_deep_sea(length: int) -> None:
    """Raises `ValueError` if a DeepSea of L = `length` is too large to be built."""
    num_states = length**2
    _memory.check(
        _DOUBLE * num_states**2 * _SEA_ACTIONS,
        f"DeepSea with length {length}, so {num_states} states,",
        "lower --length",
        is_on_host=True,
    )


def expected(
    environment: environments.Environment, config: experiment.Config, num_seeds: int
) -> Memory:
    """What a run takes; nothing is allocated to find out.

    Args:
        environment: with S states and A actions; in sparse form, with K successors per pair.
        config: of the run.
        num_seeds: R.
    """
    num_states, num_actions = environment.num_states, environment.num_actions
    transition = environment.transition
    is_sparse = isinstance(transition, Sparse)
    successors = transition.probability.shape[-1] if is_sparse else num_states
    entries = num_states * num_actions * successors
    # Of the matrix of a policy: its rows, which stay apart by action in sparse form.
    system = entries if is_sparse else num_states**2
    at_once = _seeds_at_once(config, num_seeds)
    members = 1 if config.agent.method in _ONE_MDP else config.agent.num_members
    sampled = posterior.SAMPLE_ARRAYS * members * entries
    systems = _PLANNING_ARRAYS * (entries + members * system)
    chunk = -(-config.num_episodes // config.num_chunks)
    policies = at_once * chunk * num_states * (1 + 3 * num_actions)
    return Memory(
        environment=_ENVIRONMENT_ARRAYS * (_FLOAT + _DOUBLE) * entries,
        beliefs=num_seeds * _STATE_COPIES * _FLOAT * entries,
        planning=at_once * _FLOAT * (sampled + systems),
        metrics=num_seeds * config.num_episodes * _METRIC_BYTES + _FLOAT * policies,
    )


def _seeds_at_once(config: experiment.Config, num_seeds: int) -> int:
    """Seeds that plan at the same time in one memory."""
    devices = jax.devices()
    each = seeds.per_device(num_seeds, len(devices)) if config.seed_axis == "vmap" else 1
    return each * memory.devices_in_one_memory(num_seeds, devices)


def check(environment: environments.Environment, config: experiment.Config, num_seeds: int) -> None:
    """Raises `ValueError` if a run does not fit into memory; arguments are those of `expected`."""
    needed = expected(environment, config, num_seeds)
    free = _memory.available()
    if free is not None and needed.total > free:
        flags = memory.to_lower(needed, _TO_LOWER)
        raise ValueError(f"the run needs {needed.describe()}; lower {flags}")
