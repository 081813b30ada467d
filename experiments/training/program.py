"""What the programs that train an agent share: a run from start to end."""

import contextlib
import dataclasses
import datetime
import pathlib
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments import (
    cli,
    config_file,
    evaluation,
    files,
    interrupts,
    memory,
    own_cores,
    processes,
    run_settings,
    unread,
    wandb_logger,
)
from experiments.processes import Processes
from experiments.provenance import describe_program
from experiments.run_directory import FollowedDirectory, RunDirectory
from experiments.training import run_flags
from experiments.training.run import Run
from experiments.training.setup import Setup
from experiments.training.trace import Trace
from qusac_jax import environments, qusac

# What may change from start to start of a run, but not from process to process.
_ALIKE = ("num_steps", "eval_every", "checkpoint_every", "resume", "resume_env")
# Flags that decide a run's results, beside those of one program and the hyperparameters.
_NAMED = ("seed", "num_seeds", "num_steps", "eval_every", "eval_episodes", "checkpoint_every")


def check_environment(options: Any, env: str, num_seeds: int) -> None:
    """Raises `ValueError` for what would end a run later: before a directory is made for it.

    Args:
        options: the flags.
        env: the environment.
        num_seeds: whose copies of it this process has.
    """
    if options.wandb:
        wandb_logger.check_package()
    if options.video:
        evaluation.check_video(env)
    if environments.functional.is_functional(env):  # checked as it was loaded
        return
    state_size = 0
    if options.resume_env == "exact":
        state_size = environments.check_continues(env, seed=options.seed)
    else:
        copies = environments.VectorEnvironment(env, [options.seed])
        copies.reset()
        copies.step(np.zeros((1, copies.spec.action_size), np.float32))
        copies.close()
    memory.check_copies(state_size, num_seeds, options.eval_episodes)


def train(
    options: Any,
    spec: environments.Spec,
    config: qusac.Config,
    make: Callable[[Setup], Run],
    stops_within: str = "",
    *,
    is_offline: bool = False,
    **about: Any,
) -> int | None:
    """A run from its directory to its results.

    Args:
        options: the flags.
        spec: of the environment.
        config: hyperparameters.
        make: makes the run.
        stops_within: how soon a signal is answered, for the line that says so.
        is_offline: whether D is a dataset.
        about: further values that define the run, JSON-compatible.

    Returns:
        The exit code, None for 0.
    """
    devices = cli.select_device(options.device)
    everyone = Processes()
    with everyone.together(), everyone.quiet():
        own_seeds = everyone.share(range(options.seed, options.seed + options.num_seeds))
        devices = everyone.devices(len(own_seeds), devices)
        task = run_flags.task_of(options.termination, spec, config)
        check_environment(options, spec.name, len(own_seeds))
        if options.env_processes != 1 and environments.functional.is_functional(spec.name):
            files.warn(f"env_processes has no effect: {spec.name!r} steps on the device")
        if options.termination not in (None, run_flags.LEARNED) and not config.uses_model:
            files.warn("termination has no effect: without a model nothing is rolled out")
        unread.warn(config, config_file.given_fields(options), is_offline=is_offline)
        streams_size = memory.stream_bytes(spec.name, options.eval_episodes)
        of_run = config, task, len(own_seeds), devices
        if options.memory:
            print(memory.describe(*of_run, streams_size=streams_size))
            return None
        memory.check(*of_run, has_dataset=is_offline, streams_size=streams_size)
        workdir = pathlib.Path(options.workdir or _default_workdir(options, spec, config))
        trace = Trace(options.profile)
        check_agreement(everyone, {name: options[name].value for name in _ALIKE})
        directory = _open(everyone, workdir, description(options, spec, config, about))
        if options.wandb:
            directory.add_logger(wandb_logger.Wandb)
        setup = Setup(
            directory,
            spec.name,
            config,
            task,
            seeds=own_seeds,
            num_steps=options.num_steps,
            action_cost=spec.action_cost,
            eval_every=options.eval_every,
            eval_episodes=options.eval_episodes,
            checkpoint_every=options.checkpoint_every,
            reward_threshold=options.reward_threshold,
            devices=devices,
            keep_checkpoints=options.keep_checkpoints,
            env_processes=options.env_processes or own_cores.count(),
            restarts_env=options.resume_env == "restart",
            processes=everyone,
            trace=trace,
        )
        with contextlib.closing(directory):
            return _run(options, setup, make, workdir, stops_within)


def _run(
    options: Any,
    setup: Setup,
    make: Callable[[Setup], Run],
    workdir: pathlib.Path,
    stops_within: str,
) -> int | None:
    """Trains and writes the results; returns the exit code, None for 0."""
    # Signals are noted, not raised: an exception by Ctrl-C while JAX compiles can get lost there.
    with interrupts.stop_signals(interrupts.saving(stops_within)) as came, setup.trace:
        print(f"run directory: {workdir}", flush=True)  # from here on Ctrl-C saves
        with contextlib.closing(make(setup)) as run:
            run.resume(options.resume)
            stopped = processes.stopped_together(setup.processes, came)
            if stopped() is None:
                run.prepare()
            signal_number = run.train(stopped)
            if signal_number is None:  # all is saved, what is left takes seconds
                named = {"env": setup.env, "method": setup.config.method, "preset": options.preset}
                run.finish({**named, "num_seeds": options.num_seeds})
    if signal_number is not None:
        again = f"the same command with --workdir={shlex.quote(str(workdir))}"
        print(f"stopped at step {run.step}; {again} {'continues' if run.step else 'begins'}")
        return 128 + signal_number
    print(f"done: summary.json, learning_curve.png and policy are in {workdir}")
    if options.video and setup.processes.is_first:
        path = setup.directory.path / "episode.mp4"
        run.record_video(path)
        print(f"video -> {path} and .gif")
    return None


def check_agreement(everyone: Processes, values: dict[str, Any]) -> None:
    """Raises `ValueError` on all processes if one of them was started with other values."""
    for index, theirs in enumerate(everyone.gather(values)):
        for name, value in values.items():
            if theirs[name] != value:
                raise ValueError(
                    f"{name} must be the same for all processes, got {theirs[name]!r} for process "
                    f"{index} and {value!r} for process {everyone.index}"
                )


def _open(everyone: Processes, path: pathlib.Path, about: dict[str, Any]) -> RunDirectory:
    """The run's directory, made by the first process."""
    about |= describe_program()
    first = RunDirectory(path, about) if everyone.is_first else None
    path = pathlib.Path(everyone.gather(str(path.absolute()))[0])  # its name may have the time
    return first or FollowedDirectory(path, about)


def description(
    options: Any, spec: environments.Spec, config: qusac.Config, about: dict[str, Any]
) -> dict[str, Any]:
    """The values that define a run, for config.json.

    Args:
        options: the flags.
        spec: of the environment.
        config: hyperparameters.
        about: further values of the program, JSON-compatible.
    """
    return {
        "env": spec.name,
        "method": config.method,
        "preset": options.preset,
        **{name: getattr(options, name) for name in _NAMED},
        "action_cost": spec.action_cost,
        "reward_threshold": options.reward_threshold,
        **({"resume_env": "restart"} if options.resume_env == "restart" else {}),
        **({"termination": options.termination} if options.termination else {}),
        **about,
        "config": dataclasses.asdict(config),
    }


def _default_workdir(options: Any, spec: environments.Spec, config: qusac.Config) -> pathlib.Path:
    label = options.preset
    if label == "qusac":
        label = run_settings.name_of(label, config.method, config.critic_data)
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{files.as_name(spec.name)}-{files.as_name(label)}-seed{options.seed}-{date}"
    return pathlib.Path("runs") / name
