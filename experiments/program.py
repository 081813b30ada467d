"""What the programs that train an agent share: their flags, and a run from start to end."""

import contextlib
import dataclasses
import datetime
import math
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from absl import flags

from experiments import (
    cli,
    config_file,
    config_flags,
    cost,
    evaluation,
    files,
    interrupts,
    jax_settings,
    own_cores,
    path_flag,
    processes,
    unread,
    wandb_logger,
)
from experiments.processes import Processes
from experiments.provenance import describe_program
from experiments.run import Run
from experiments.run_directory import FollowedDirectory, RunDirectory
from experiments.run_setup import Setup
from experiments.trace import Trace
from qusac_jax import environments, qusac
from qusac_jax.qusac.config import METHODS
from qusac_jax.qusac.presets import PRESETS, SIZES

_LEARNED = "learned"  # a value of --termination
_ABOUT_CONFIG = "hyperparameters; the defaults shown are those of the preset 'qusac', {where}"
# Flags that decide a run's results, beside those of one program and the hyperparameters.
_NAMED = ("seed", "num_seeds", "num_steps", "eval_every", "eval_episodes", "checkpoint_every")


def define_flags(
    values: flags.FlagValues,
    *,
    is_offline: bool,
    num_steps: int,
    eval_every: int,
    eval_episodes: int,
    checkpoint_every: int,
) -> None:
    """Adds the flags of every run.

    Args:
        values: where they are added.
        is_offline: whether it learns from a dataset, where a step is an update.
        num_steps: default, like those that follow.
        eval_every: steps.
        eval_episodes: per evaluation and seed.
        checkpoint_every: steps.
    """
    define: dict[str, Any] = {"flag_values": values}
    unit = "gradient updates" if is_offline else "environment steps"
    flags.DEFINE_string("method", None, f"qvariance: {', '.join(METHODS)}", **define)
    flags.DEFINE_string("preset", "qusac", f"algorithm: {', '.join(PRESETS)}", **define)
    flags.DEFINE_enum("size", "paper", list(SIZES), "of networks, batches and model data", **define)
    flags.DEFINE_integer("num_steps", num_steps, f"{unit} per seed", 1, **define)
    flags.DEFINE_integer("seed", 0, "first seed", 0, cli.MAX_SEED, **define)
    flags.DEFINE_integer("num_seeds", 1, "seeds trained together: seed, seed + 1, ...", 1, **define)
    path_flag.define(values, "workdir", None, "default runs/ENV-METHOD-DATE")
    flags.DEFINE_float("action_cost", None, "rho; default the paper's for its tasks", **define)
    flags.DEFINE_string(
        "termination",
        None,
        "when an episode ends, for rollouts of the model; known for dmc: and Gymnasium's own "
        f"tasks. One of {', '.join(environments.TERMINATIONS)}; {_LEARNED}, by the dynamics from "
        "the data; or MODULE:FUNCTION for one of your own, which imports and so executes that "
        "module",
        **define,
    )
    flags.DEFINE_float(
        "reward_threshold",
        qusac.diagnostics.REWARD_THRESHOLD,
        "a step with a larger reward counts as rewarded in the log",
        **define,
    )
    flags.DEFINE_integer("eval_every", eval_every, f"{unit} between evaluations", 1, **define)
    flags.DEFINE_integer(
        "eval_episodes", eval_episodes, "episodes per evaluation and seed", 1, **define
    )
    flags.DEFINE_integer(
        "checkpoint_every", checkpoint_every, f"{unit} between checkpoints", 1, **define
    )
    flags.DEFINE_integer("keep_checkpoints", 2, "how many of the last stay", 1, **define)
    flags.DEFINE_enum(
        "resume",
        "latest",
        ["latest", "latest_good", "never"],
        "which checkpoint of the workdir to continue from; never: refuse a workdir that has one",
        **define,
    )
    flags.DEFINE_enum(
        "resume_env",
        "exact",
        ["exact", "restart"],
        "exact: environments go on where they were; restart: a continued run begins its episodes "
        "anew, for environments that cannot be saved",
        **define,
    )
    flags.DEFINE_integer(
        "env_processes",
        1,
        "that step environments at the same time, and as many for those of evaluations; 0: one for "
        "each core",
        0,
        **define,
    )
    jax_settings.define_flags(values)
    processes.define_flags(values)
    flags.DEFINE_boolean("video", False, "at the end write an episode as mp4 and GIF", **define)
    flags.DEFINE_boolean(
        "wandb", False, "log to Weights & Biases too; WANDB_MODE=offline needs no account", **define
    )
    flags.DEFINE_boolean("memory", False, "print what the run would take, and stop", **define)
    about_profile = "folder for a trace of some learning steps, for TensorBoard"
    path_flag.define(values, "profile", None, about_profile)
    config_file.define_flag(values)
    about_config = _ABOUT_CONFIG.format(where="offline" if is_offline else "online")
    shown = qusac.presets.get("qusac", is_offline=is_offline)
    config_flags.define_config(values, "config", shown, about_config)


def read_config(
    options: Any,
    *,
    is_offline: bool = False,
    change: config_file.Change | None = None,
) -> qusac.Config:
    """The preset in its size with what the command line overrides.

    Args:
        options: the flags.
        is_offline: whether the program learns from a dataset.
        change: what a program makes of what preset, file and command line say.

    Raises:
        ValueError: for a value that is not allowed, and for seeds that are too large.
    """
    if not math.isfinite(options.reward_threshold):
        raise ValueError(f"reward_threshold must be finite, got {options.reward_threshold}; use 0")
    cli.check_seeds(options.seed, options.num_seeds)
    given = config_file.read(options.config_file) if options.config_file else None
    if given is not None and given.preset is not None:
        _take_preset(options, given.preset)
    preset = qusac.presets.get(options.preset, options.size, is_offline=is_offline)
    if options.method is not None:
        if options["config.method"].present and options["config.method"].value != options.method:
            raise ValueError(
                f"method is given twice: {options.method!r} and --config.method="
                f"{options['config.method'].value!r}; leave one out"
            )
        options["config.method"].parse(options.method)
    if options.termination == _LEARNED:
        options["config.dynamics.learn_termination"].parse("true")
    flags = config_flags.given_fields(options, "config").keys()
    return config_file.read_config(options, preset, given, change=_with_used_risk(change, flags))


def _with_used_risk(
    change: config_file.Change | None, flags: Collection[str]
) -> config_file.Change:
    """A change that refuses a λ which a schedule of preset or file would take the place of."""

    def checked(values: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
        values = values if change is None else change(values, given)
        schedule = values["risk_schedule"]
        is_replaced = any("risk" in by and "risk_schedule" not in by for by in (given, flags))
        if schedule is not None and is_replaced:
            raise ValueError(
                f"config.risk is {values['risk']}, but the preset or the file has risk_schedule "
                f"{schedule}, which takes its place; add --config.risk_schedule=none "
                "--config.risk_awaits_reward=False, or give another schedule"
            )
        return values

    return checked


def _take_preset(options: Any, preset: str) -> None:
    """The preset of the run that a --config_file is of, which has all hyperparameters."""
    for name in ("preset", "size"):
        value = getattr(options, name)
        if options[name].present and not (name == "preset" and value == preset):
            raise ValueError(
                f"{name} is {value!r}, but config_file is of a run, which has every hyperparameter "
                f"(preset {preset!r}); leave --{name} out"
            )
    options.preset = preset


def check_environment(options: Any, env: str) -> None:
    """Raises `ValueError` for what would end a run later: before a directory is made for it."""
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
        copies.step(np.zeros((1, copies.spec.action_size)))
        copies.close()
    cost.check_copies(state_size, options.num_seeds, options.eval_episodes)


def task_of(termination: str | None, spec: environments.Spec, config: qusac.Config) -> qusac.Task:
    """What the agent must know; only rollouts of a model ask when an episode ends.

    Args:
        termination: as the flag says it.
        spec: of the environment.
        config: hyperparameters.

    Raises:
        ValueError: if termination is given twice, or nothing says when an episode ends.
    """
    is_asked = config.uses_model and not config.dynamics.learn_termination
    given = None if termination == _LEARNED else termination
    if given is not None and config.dynamics.learn_termination:
        raise ValueError(
            f"termination is given twice: {given!r} and --config.dynamics.learn_termination; leave "
            "one out"
        )
    return spec.task(given or (None if is_asked else "never"))


def train(
    options: Any,
    spec: environments.Spec,
    config: qusac.Config,
    make: Callable[[Setup], Run],
    stops_within: str = "",
    **about: Any,
) -> int | None:
    """A run from its directory to its results.

    Args:
        options: the flags.
        spec: of the environment.
        config: hyperparameters.
        make: makes the run.
        stops_within: how soon a signal is answered, for the line that says so.
        about: further values that define the run, JSON-compatible.

    Returns:
        The exit code, None for 0.
    """
    devices = cli.select_device(options.device)
    everyone = Processes()
    with everyone.together(), everyone.quiet():
        own_seeds = everyone.share(range(options.seed, options.seed + options.num_seeds))
        devices = everyone.devices(len(own_seeds), devices)
        task = task_of(options.termination, spec, config)
        check_environment(options, spec.name)
        if options.env_processes != 1 and environments.functional.is_functional(spec.name):
            files.warn(f"env_processes has no effect: {spec.name!r} steps on the device")
        if options.termination not in (None, _LEARNED) and not config.uses_model:
            files.warn("termination has no effect: without a model nothing is rolled out")
        unread.warn(config, config_file.given_fields(options), is_offline="dataset" in about)
        if options.memory:
            print(cost.describe_memory(config, task, len(own_seeds), devices))
            return None
        cost.check_memory(config, task, len(own_seeds), devices, has_dataset="dataset" in about)
        workdir = pathlib.Path(options.workdir or _default_workdir(options, spec, config))
        trace = Trace(options.profile)
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
        # From here on: an exception that Ctrl-C raises while JAX compiles can get lost there.
        with interrupts.stop_signals(interrupts.saving(stops_within)) as came, trace:
            print(f"run directory: {workdir}", flush=True)  # from here on Ctrl-C saves
            with contextlib.closing(make(setup)) as run:
                run.resume(options.resume)
                stopped = processes.stopped_together(everyone, came)
                if stopped() is None:
                    run.prepare()
                signal_number = run.train(stopped)
                if signal_number is None:  # all is saved, what is left takes seconds
                    named = {"env": spec.name, "method": config.method, "preset": options.preset}
                    run.finish({**named, "num_seeds": options.num_seeds})
        if signal_number is not None:
            again = f"the same command with --workdir={workdir} continues"
            print(f"stopped at step {run.step}; {again}")
            return 128 + signal_number
        print(f"done: summary.json, learning_curve.png and policy are in {workdir}")
        if options.video and everyone.is_first:
            run.record_video(directory.path / "episode.mp4")
        directory.close()
        return None


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
    label = config.method if options.preset == "qusac" else options.preset
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return pathlib.Path("runs") / f"{spec.name.replace(':', '_').replace('/', '_')}-{label}-{date}"
