"""Trains QU-SAC or a baseline on a dataset: `python -m experiments.offline --dataset=...`.

`--dataset=hopper_medium-v2.hdf5 --method=upper_bound` is the paper's offline experiment (section
5.4). Starting again with the same --workdir continues a run that was interrupted.
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import cli, program
from experiments.offline_run import OfflineRun
from qusac_jax import datasets, environments, qusac

_UNUSED = {
    "replay_capacity": "D is the dataset, and as large as it",
    "warmup_steps": "offline there are no steps in the environment",
    "updates_per_step": "offline a step is an update",
}


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
    flags.DEFINE_string(
        "dynamics", None, "workdir of a run whose fitted dynamics are taken", **define
    )
    program.define_flags(
        values,
        unit="gradient updates",
        num_steps=1_000_000,
        eval_every=10_000,
        eval_episodes=10,
        checkpoint_every=50_000,
    )
    return values


def run(options: Any) -> int | None:
    """Trains as the flags say, and says where the results are; returns the exit code."""
    if not options.dataset:
        raise ValueError(
            "dataset is missing: pass --dataset=ID or --dataset=FILE; "
            "`python -m experiments.collect` makes some"
        )
    _check_used(options)
    config = program.read_config(options, is_offline=True)
    _check_multiples(options, config)
    dataset = datasets.load(options.dataset)
    env = options.env or dataset.env
    if env is None:
        raise ValueError(
            f"env: {options.dataset!r} does not name the environment that it comes from "
            f"({dataset.env_note}); pass --env"
        )
    spec = environments.spec(env, options.action_cost)
    datasets.check_matches(dataset, spec)
    count = dataset.num_transitions
    config = dataclasses.replace(
        config, replay_capacity=count, warmup_steps=min(config.warmup_steps, count)
    )
    _tell(dataset, env)
    make = functools.partial(OfflineRun, dataset=dataset, dynamics=options.dynamics)
    return program.train(
        options,
        spec,
        config,
        make,
        stops_within=f", after up to {config.fit_every} updates or a fit of the dynamics",
        dataset=datasets.describe(dataset),
        dynamics=options.dynamics,
    )


def _check_used(options: Any) -> None:
    """Raises `ValueError` for hyperparameters that mean nothing here."""
    for name, why in _UNUSED.items():
        if options[f"config.{name}"].present:
            raise ValueError(f"config.{name}: {why}; leave it out")


def _check_multiples(options: Any, config: qusac.Config) -> None:
    """Between two rollouts nothing is looked at, so everything happens every F updates."""
    if config.roll_out_every:
        raise ValueError(
            f"config.roll_out_every counts steps between fits, got {config.roll_out_every}, and "
            "offline the models are fitted once; use --config.fit_every for how often they are "
            "rolled out"
        )
    for name in ("num_steps", "eval_every", "checkpoint_every"):
        value = getattr(options, name)
        if value % config.fit_every:
            raise ValueError(
                f"{name} must be a multiple of config.fit_every = {config.fit_every}, got {value}; "
                f"use --{name}={-(-value // config.fit_every) * config.fit_every}"
            )


def _tell(dataset: datasets.Dataset, env: str) -> None:
    print(
        f"dataset: {dataset.num_transitions} transitions, {dataset.num_episodes} episodes from "
        f"{dataset.path} (sha256 {dataset.sha256[:12]})"
    )
    note = f" ({dataset.env_note})" if env == dataset.env and dataset.env_note else ""
    print(f"evaluated in {env}{note}")
    reference = dataset.reference
    if reference is None:
        print("no reference returns, so no normalized scores")
    else:
        print(
            f"scores: 0 % is {reference.min_return:.6g}, 100 % is {reference.max_return:.6g} "
            f"({reference.origin})"
        )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and trains; returns the exit code."""
    options = make_flags()
    return cli.run_with(lambda: run(options), options, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
