"""Trains QU-SAC or a baseline on a dataset: `python -m experiments.offline --dataset=...`.

`--dataset=hopper_medium-v2.hdf5 --method=upper_bound` is the paper's offline experiment (section
5.4). Starting again with the same --workdir continues a run that was interrupted.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from experiments import cli, config_file, files, path_flag, run_directory
from experiments.training import program, run_flags
from experiments.training.offline_run import OfflineRun
from experiments.training.setup import Setup
from qusac_jax import datasets, environments, qusac
from qusac_jax.datasets.loading import MIN_TRANSITIONS

_UNUSED = {
    "replay_capacity": "D is the dataset, and as large as it",
    "warmup_steps": "offline there are no steps in the environment",
    "updates_per_step": "offline a step is an update",
}


class Prepared(NamedTuple):
    """What a run learns from, with what, and where it is evaluated: all checked."""

    dataset: datasets.Dataset
    spec: environments.Spec  # of the environment to evaluate in
    config: qusac.Config
    about: dict[str, Any]  # further values that define the run, JSON-compatible


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string(
        "dataset",
        None,
        "a Minari id, a D4RL HDF5 file or a folder of a Minari dataset; required",
        **define,
    )
    flags.DEFINE_string(
        "env",
        None,
        "to evaluate in; default what the dataset names; gym:MODULE:ID imports and so executes "
        "that module",
        **define,
    )
    flags.DEFINE_enum(
        "action_bounds",
        None,
        ["environment", "unit"],
        "range of the actions in an HDF5 file, which does not state it: environment, the bounds of "
        "--env's actions, or unit, [-1, 1]; required where the two differ",
        **define,
    )
    path_flag.define(
        values, "dynamics", None, "workdir of an offline run whose fitted dynamics are reused"
    )
    run_flags.define_flags(
        values,
        is_offline=True,
        num_steps=1_000_000,
        eval_every=10_000,
        eval_episodes=10,
        checkpoint_every=50_000,
    )
    values["action_cost"].help = "rho; default that of the dataset's rewards, if it is recorded"
    for name, why in _UNUSED.items():
        values[f"config.{name}"].help = f"not to be given: {why}"
    values["config.roll_out_every"].help = "0: offline the models are rolled out every fit_every"
    return values


def run(options: Any) -> int | None:
    """Trains as the flags say, and says where the results are; returns the exit code."""
    cli.select_device(options.device)  # before an environment on the device makes arrays
    prepared = prepare(options)

    def make(setup: Setup) -> OfflineRun:
        _tell(prepared.dataset, prepared.spec)
        return OfflineRun(setup, dataset=prepared.dataset, dynamics=options.dynamics)

    return program.train(
        options,
        prepared.spec,
        prepared.config,
        make,
        stops_within=f", after a compilation, up to {prepared.config.fit_every} updates or a fit "
        "of the dynamics",
        is_offline=True,
        **prepared.about,
    )


def prepare(options: Any, load: Callable[..., datasets.Dataset] | None = None) -> Prepared:
    """What the flags ask for.

    Args:
        options: the flags.
        load: in place of `datasets.load`, with the same arguments; None for that.

    Raises:
        ValueError: for anything that would end the run at its start.
    """
    if not options.dataset:
        raise ValueError(
            "dataset is missing: pass --dataset=ID or --dataset=FILE; "
            "`python -m experiments.collect` makes some"
        )
    _check_used(options)
    config = run_flags.read_config(options, is_offline=True)
    _check_multiples(options, config)
    _check_dynamics(options, config)
    dataset = (load or datasets.load)(options.dataset, action_bounds=_action_bounds(options))
    _check_known(dataset, config)
    _check_ends(dataset, config)
    env = _env(options, dataset)
    spec = environments.spec(env, _action_cost(options.action_cost, dataset))
    datasets.check_matches(dataset, spec)
    _check_bounds(dataset, spec)
    count = dataset.num_transitions
    config = dataclasses.replace(
        config, replay_capacity=count, warmup_steps=min(config.warmup_steps, count)
    )
    about = datasets.describe(dataset)
    # config.json has the run's own action cost already. Recorded here as well, it would make older
    # runs, whose config.json lacks it, differ, so that they could not be continued.
    del about["action_cost"]
    return Prepared(dataset, spec, config, {"dataset": about, "dynamics": options.dynamics})


def _check_dynamics(options: Any, config: qusac.Config) -> None:
    """Raises `ValueError` if there are none to take over; warns if nobody would read them."""
    if not options.dynamics:
        return
    is_continued = run_directory.has_checkpoint(options.workdir)
    if not is_continued and not (pathlib.Path(options.dynamics) / "dynamics").is_dir():
        raise ValueError(
            f"dynamics: {options.dynamics!r} holds none; pass the workdir of an offline run that "
            "has fitted its own, or leave it out"
        )
    if not config.uses_model:
        files.warn("dynamics has no effect: critic_data 'replay' fits and rolls out none")


def _env(options: Any, dataset: datasets.Dataset) -> str:
    """The environment to evaluate in: that of the flags, or the one that the dataset names.

    Raises:
        ValueError: if neither names one, or if only the dataset names one whose code would be run.
    """
    if options.env:
        return options.env
    if dataset.env is None:
        raise ValueError(
            f"env: {options.dataset!r} does not name the environment that it comes from "
            f"({dataset.env_note}); pass --env"
        )
    if environments.executes_code(dataset.env):
        raise ValueError(
            f"env: {options.dataset!r} names {dataset.env!r}, and importing that module executes "
            f"it; if it is one that you would run, pass --env={dataset.env}"
        )
    return dataset.env


def _check_used(options: Any) -> None:
    """Raises `ValueError` for hyperparameters that mean nothing here."""
    given = config_file.given_fields(options)
    for name, why in _UNUSED.items():
        if name in given:
            raise ValueError(f"config.{name}: {why}; leave it out")


def _check_multiples(options: Any, config: qusac.Config) -> None:
    """Raises `ValueError` unless all intervals are multiples of F, and `roll_out_every` is 0.

    The F updates between two rollouts are one compiled call, and nothing else happens within it.
    """
    if config.roll_out_every:
        raise ValueError(
            f"config.roll_out_every counts steps between fits, got {config.roll_out_every}, and "
            "offline the models are fitted once; use --config.roll_out_every=0, and "
            "--config.fit_every for how often they are rolled out"
        )
    for name in ("num_steps", "eval_every", "checkpoint_every"):
        value = getattr(options, name)
        if value % config.fit_every:
            raise ValueError(
                f"{name} must be a multiple of config.fit_every = {config.fit_every}, got {value}; "
                f"use --{name}={-(-value // config.fit_every) * config.fit_every}"
            )


def _check_bounds(dataset: datasets.Dataset, spec: environments.Spec) -> None:
    """Warns where the same action of the agent is one in the data and another in the environment.

    Those of HDF5 files are checked by `datasets.check_matches`.
    """
    bounds = (dataset.action_low, dataset.action_high)
    # `datasets.save` writes [-1, 1], the agent's own, for what is not of Gymnasium.
    is_scaled = dataset.env == spec.name and not spec.name.startswith("gym:")
    if dataset.source == "d4rl" or not spec.action_low or is_scaled:
        return
    if not np.allclose(bounds, (spec.action_low, spec.action_high)):
        files.warn(
            f"the actions of {dataset.name!r} lie in {bounds[0].tolist()} to {bounds[1].tolist()}, "
            f"those of {spec.name!r} in {list(spec.action_low)} to {list(spec.action_high)}; both "
            "become [-1, 1], which is right only if the data were recorded through a wrapper that "
            "scales actions"
        )


def _action_bounds(options: Any) -> tuple[Any, Any] | None:
    """What `datasets.load` is told of the actions of an HDF5 file."""
    if options.action_bounds is None:
        return None
    if options.action_bounds == "unit":
        return -1.0, 1.0
    if not options.env:
        raise ValueError("action_bounds is 'environment', but env is missing; pass --env, too")
    spec = environments.spec(options.env)
    if not spec.action_low:
        raise ValueError(
            f"action_bounds: those of {options.env!r} are not known; scale the file's actions to "
            "[-1, 1] and use --action_bounds=unit"
        )
    return spec.action_low, spec.action_high


def _action_cost(given: float | None, dataset: datasets.Dataset) -> float | None:
    """The cost to evaluate with: returns are scored against references that have the data's."""
    recorded = dataset.action_cost
    if recorded is not None and given is not None and given != recorded:
        raise ValueError(
            f"action_cost: the rewards of {dataset.name!r} and its reference returns have the "
            f"action cost {recorded:g}, got {given:g}; leave --action_cost out, or collect a "
            "dataset with that cost"
        )
    return recorded if given is None else given


def _check_known(dataset: datasets.Dataset, config: qusac.Config) -> None:
    """Raises `ValueError` if there is too little to fit the dynamics to."""
    known = int(dataset.next_observation_known.sum())
    if config.uses_model and known < MIN_TRANSITIONS:
        raise ValueError(
            f"dataset: {dataset.path} has {known} transitions whose next observation is known, of "
            f"{dataset.num_transitions}, and dynamics need {MIN_TRANSITIONS}; add the key "
            "'next_observations', or train without a model (--preset=sac)"
        )


def _check_ends(dataset: datasets.Dataset, config: qusac.Config) -> None:
    """Raises `ValueError` if the dynamics are to learn when an episode ends and no row shows it."""
    if not (config.uses_model and config.dynamics.learn_termination):
        return
    if not (dataset.terminated & dataset.next_observation_known).any():
        raise ValueError(
            f"termination is learned, but {dataset.path} has no end to learn from: "
            f"{int(dataset.terminated.sum())} of {dataset.num_transitions} transitions terminated, "
            "none with a known next observation; name a function with --termination, such as never"
        )


def _tell(dataset: datasets.Dataset, spec: environments.Spec) -> None:
    print(
        f"dataset: {dataset.num_transitions} transitions, {dataset.num_episodes} episodes from "
        f"{dataset.path} (sha256 {dataset.sha256[:12]})"
    )
    env = spec.name
    note = f" ({dataset.env_note})" if env == dataset.env and dataset.env_note else ""
    cost = f", action cost {spec.action_cost:g}" if spec.action_cost else ""
    print(f"evaluated in {env}{note}{cost}")
    reference = dataset.reference
    if dataset.env is not None and dataset.env != env:
        scored = "" if reference is None else ", and scores are against returns there"
        files.warn(f"env is {env!r}, but the data are of {dataset.env!r}{scored}")
    if reference is None:
        print("no reference returns, so no normalized scores")
    else:
        print(
            f"scores: 0 % is {reference.min_return:.6g}, 100 % is {reference.max_return:.6g} "
            f"({reference.origin})"
        )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and trains; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
