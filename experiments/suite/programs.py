"""The programs whose runs a suite is made of, and what ends such a run at its start."""

import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from experiments import files, offline, online, run_settings
from experiments.training import program, run_flags
from qusac_jax import datasets, environments
from qusac_jax.qusac import own_functions
from qusac_jax.qusac.config import Config

_BY_HAND = "a run at a time"


class Checked(NamedTuple):
    """What is known of a run that can begin."""

    num_steps: int
    values: dict[str, Any]  # that define it, as in its config.json
    shortfall: str = ""  # what is to be said if the steps are too few
    fit: str = ""  # of runs with the same seeds and the same of this, the fits of the models agree


class Program(NamedTuple):
    """A program that trains, as a suite sees it."""

    name: str  # `experiments.NAME`
    tasks: str  # the suite's flag for what the runs learn on
    task: str  # that of a run
    task_name: Callable[[str], str]  # what a task is called
    methods: Sequence[str]  # by default
    # Flags of a run that the suite says itself, and what to use in their place.
    own: Mapping[str, str]
    make_flags: Callable[[], flags.FlagValues]
    # Raises `ValueError` for flags of a run that would end at its start.
    check: Callable[[Any], Checked]


def of_run(path: pathlib.Path) -> str:
    """The name of the program that a run is of; empty if its config.json cannot be read."""
    try:
        config = files.read_json(path / "config.json")
    except ValueError:
        return ""
    return (OFFLINE if isinstance(config.get("dataset"), dict) else ONLINE).name


def _check_online(options: Any) -> Checked:
    config = run_flags.read_config(options)
    environments.check_name(options.env)
    spec = environments.spec(options.env, options.action_cost)
    values = _checked_values(options, spec, config, {})
    return Checked(options.num_steps, values, online.too_few_steps(options.num_steps, config))


def _check_offline(options: Any) -> Checked:
    prepared = offline.prepare(options, _load)
    config = prepared.config
    values = _checked_values(options, prepared.spec, config, prepared.about)
    dynamics = values["config"]["dynamics"]
    fit = (options.dataset, config.num_members, config.fit_batch_size, dynamics)
    return Checked(options.num_steps, values, fit=json.dumps(fit) if config.uses_model else "")


# Runs on one dataset are checked one after the other.
_load = functools.lru_cache(maxsize=1)(datasets.load)


def forget() -> None:
    """Frees the memory of the dataset that was checked last."""
    _load.cache_clear()


def _checked_values(
    options: Any, spec: environments.Spec, config: Config, about: dict[str, Any]
) -> dict[str, Any]:
    task = run_flags.task_of(options.termination, spec, config)
    own_functions.check(config, task.observation_size)
    program.check_environment(options, spec.name, options.num_seeds)
    return program.description(options, spec, config, about)


_OWN = {
    "method": "--methods",
    "preset": "--methods",
    "seed": "--seeds",
    "workdir": "the suite's own --workdir",
}
ONLINE = Program(
    "online",
    tasks="tasks",
    task="env",
    task_name=str,
    methods=("upper_bound", "ensemble_mean", "mbpo", "paper_sac"),
    own={
        "env": "--tasks",
        **_OWN,
        "init_from": f"experiments.online, {_BY_HAND}",
        "memory": f"experiments.online, {_BY_HAND}",
    },
    make_flags=online.make_flags,
    check=_check_online,
)
OFFLINE = Program(
    "offline",
    tasks="datasets",
    task="dataset",
    task_name=run_settings.dataset_name,
    methods=("upper_bound", "ensemble_var", "ensemble_mean", "mopo"),
    own={
        "dataset": "--datasets",
        **_OWN,
        "dynamics": f"experiments.offline, {_BY_HAND}; runs of a suite share them by themselves",
        "memory": f"experiments.offline, {_BY_HAND}",
    },
    make_flags=offline.make_flags,
    check=_check_offline,
)
