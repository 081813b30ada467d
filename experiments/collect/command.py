"""Makes datasets for offline training of any environment: `python -m experiments.collect`.

Trains SAC, keeps its policies, and writes the Minari datasets NAME/random-v0, medium-v0,
medium-replay-v0, medium-expert-v0 and expert-v0, after those of D4RL. Starting again with the same
--workdir continues what was interrupted.
"""

import contextlib
import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import (
    cli,
    config_file,
    config_flags,
    files,
    interrupts,
    jax_settings,
    memory,
    path_flag,
    unread,
)
from experiments.collect.collect_run import CollectRun
from experiments.collect.maker import DatasetMaker, Stopped, table
from experiments.collect.shelf import Shelf
from experiments.provenance import describe_program
from experiments.run_directory import RunDirectory
from experiments.training.setup import Setup
from qusac_jax import environments, qusac
from qusac_jax.datasets.loading import local_root
from qusac_jax.qusac.config import LEAST_WARMUP
from qusac_jax.qusac.presets import SIZES

_NUM_STEPS = {"paper": 200_000, "small": 10_000}
_ABOUT_CONFIG = (
    "hyperparameters of SAC; the defaults shown are those of the preset 'sac', but the "
    "replay_capacity holds all steps, and the warm-up is at most a tenth of them"
)
_EVALUATIONS = 20  # of a run, unless --eval_every says otherwise


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    names = f"{', '.join(environments.PAPER_TASKS)}, dmc:DOMAIN:TASK, gym:ID, or gym:MODULE:ID, "
    names += "which imports and so executes that module"
    steps = ", ".join(f"{steps:,} for {size}" for size, steps in _NUM_STEPS.items())
    flags.DEFINE_string("env", None, names, **define)
    flags.DEFINE_enum("size", "paper", list(SIZES), "of networks and batches", **define)
    flags.DEFINE_integer("num_steps", None, f"of training; default {steps}", 1, **define)
    flags.DEFINE_integer(
        "num_transitions",
        None,
        "least number in each dataset but medium-replay; default num_steps, or an episode",
        1,
        **define,
    )
    flags.DEFINE_integer("seed", 0, "of everything that is drawn", 0, cli.MAX_SEED, **define)
    flags.DEFINE_string("name", None, "of the datasets; default the environment's", **define)
    flags.DEFINE_string("namespace", None, "before the name, as in NAMESPACE/NAME", **define)
    path_flag.define(values, "workdir", None, "of the training; default runs/collect-...")
    flags.DEFINE_float("action_cost", None, "rho; default the paper's for its tasks", **define)
    flags.DEFINE_integer(
        "eval_every",
        None,
        f"default num_steps / {_EVALUATIONS}; a policy is kept each",
        1,
        **define,
    )
    flags.DEFINE_integer("eval_episodes", 5, "episodes per evaluation", 1, **define)
    flags.DEFINE_integer(
        "reference_episodes", 100, "for the returns that are 0 and 100 percent", 2, **define
    )
    flags.DEFINE_integer("checkpoint_every", None, "steps; default as eval_every", 1, **define)
    flags.DEFINE_boolean(
        "exist_ok", False, "no error if this workdir has made all of its datasets", **define
    )
    flags.DEFINE_enum(
        "resume",
        "latest",
        ["latest", "latest_good"],
        "which checkpoint of the workdir to continue from",
        **define,
    )
    jax_settings.define_flags(values)
    flags.DEFINE_boolean("memory", False, "print the memory that the run needs, and exit", **define)
    config_file.define_flag(values)
    config_flags.define_config(values, "config", qusac.presets.get("sac"), _ABOUT_CONFIG)
    return values


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags, trains and writes datasets; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


def run(options: Any) -> int | None:
    """Trains as the flags say, writes the datasets, prints a table; returns the exit code."""
    _check_env(options.env)
    spec = environments.spec(options.env, options.action_cost)
    num_steps = options.num_steps or _NUM_STEPS[options.size]
    num_transitions = options.num_transitions or max(num_steps, spec.max_episode_steps)
    config = _config(options, num_steps)
    _check_num_transitions(num_transitions, options.env, spec)
    name = _dataset_name(options)
    workdir = pathlib.Path(options.workdir or _default_workdir(options))
    chosen = {
        "num_steps": num_steps,
        "num_transitions": num_transitions,
        "reference_episodes": options.reference_episodes,
    }
    shelf = Shelf(workdir, name, chosen, exist_ok=options.exist_ok)
    devices = cli.select_device(options.device)
    schedule = _schedule(options, spec, num_steps)
    environments.check_continues(options.env, seed=options.seed)
    unread.warn(config, config_file.given_fields(options), is_offline=False)
    task = spec.task("never")  # only rollouts of a model would ask
    if options.memory:
        print(memory.describe(config, task, 1, devices))
        return None
    memory.check(config, task, 1, devices)
    directory = RunDirectory(workdir, _description(options, config, schedule))
    _check_same_steps(directory, num_steps)
    setup = Setup(directory, options.env, config, task, [options.seed], devices=devices, **schedule)
    with contextlib.closing(directory):
        code = _train_and_write(options, spec, setup, shelf)
    if code is None:
        print(
            f"done: the datasets are in {local_root() / name}; summary.json, learning_curve.png "
            f"and policy in {workdir}"
        )
    return code


def _check_env(env: str | None) -> None:
    """Raises `ValueError` if it is none, or one whose steps nobody could write down."""
    if env is None:
        raise ValueError("env is missing; say which, such as --env=gym:Pendulum-v1")
    environments.check_name(env)
    if environments.functional.is_functional(env):
        raise ValueError(
            f"env: {env!r} is stepped on the device, but datasets are made of environments on the "
            "host; use one of dmc: or gym:"
        )


def _check_num_transitions(num_transitions: int, env: str, spec: environments.Spec) -> None:
    """Raises `ValueError` if they are fewer than those of one episode."""
    if num_transitions < spec.max_episode_steps:
        raise ValueError(
            f"num_transitions is {num_transitions}, fewer than the {spec.max_episode_steps} steps "
            f"of an episode of {env!r}; datasets hold whole episodes: use "
            f"--num_transitions={spec.max_episode_steps} or more"
        )


def _check_same_steps(directory: RunDirectory, num_steps: int) -> None:
    """Raises `ValueError` if the run that is there has trained for another number of steps."""
    trained = directory.previous.get("num_steps", num_steps)
    if trained != num_steps:
        raise ValueError(
            f"num_steps is {num_steps}, but the run in {str(directory.path)!r} has {trained}, and "
            f"its datasets are of all of them; use --num_steps={trained}, or another workdir"
        )


def _schedule(options: Any, spec: environments.Spec, num_steps: int) -> dict[str, Any]:
    """When the run evaluates and saves, and what counts as a reward, for `Setup`."""
    eval_every = options.eval_every or max(1, num_steps // _EVALUATIONS)
    return {
        "num_steps": num_steps,
        "eval_every": eval_every,
        "eval_episodes": options.eval_episodes,
        "checkpoint_every": options.checkpoint_every or eval_every,
        "action_cost": spec.action_cost,
        "reward_threshold": qusac.diagnostics.REWARD_THRESHOLD,
    }


def _train_and_write(
    options: Any, spec: environments.Spec, setup: Setup, shelf: Shelf
) -> int | None:
    """Trains and writes the datasets that are missing; returns the exit code, None for 0."""
    workdir = setup.directory.path
    again = f"the same command with --workdir={shlex.quote(str(workdir))}"
    with interrupts.stop_signals() as stopped:
        print(f"run directory: {workdir}", flush=True)
        with contextlib.closing(CollectRun(setup)) as training:
            training.resume(options.resume)
            if stopped() is None:
                training.prepare()
            number = training.train(stopped)
            if number is not None:
                goes_on = "continues" if training.step else "begins"
                print(f"stopped at step {training.step}; {again} {goes_on}")
                return 128 + number
            maker = DatasetMaker(
                options.env, spec, setup.config, options.seed, training, shelf, stopped
            )
            try:
                plan = maker.make_all()
            except Stopped as signal:
                print(
                    f"stopped while writing datasets; those that are complete stay, and {again} "
                    "makes the others"
                )
                return 128 + signal.number
            print(table(shelf, plan))
            training.finish({"env": options.env, "method": setup.config.method, "preset": "sac"})
        shelf.finish()
    return None


def _config(options: Any, num_steps: int) -> qusac.Config:
    """SAC with room for all its transitions."""
    preset = qusac.presets.get("sac", options.size)
    base = dataclasses.replace(
        preset,
        replay_capacity=max(num_steps, preset.warmup_steps),
        warmup_steps=max(LEAST_WARMUP, min(preset.warmup_steps, num_steps // 10)),
    )
    given = config_file.read(options.config_file) if options.config_file else None
    if given is not None and given.preset is not None and options["size"].present:
        raise ValueError(
            f"size is {options.size!r}, but config_file is of a run, which has every "
            "hyperparameter; leave --size out, and say --num_steps"
        )
    config = config_file.read_config(options, base, given)
    if config.uses_model:
        raise ValueError(
            f"config.critic_data is {config.critic_data!r}, but datasets are collected with SAC; "
            "leave it out"
        )
    if config.replay_capacity < num_steps:
        raise ValueError(
            f"config.replay_capacity is {config.replay_capacity}, but medium-replay may need all "
            f"{num_steps} steps; leave it out, or use --config.replay_capacity={num_steps} or more"
        )
    if config.warmup_steps >= num_steps:
        raise ValueError(
            f"config.warmup_steps is {config.warmup_steps}, so nothing is learned in num_steps = "
            f"{num_steps}; use a larger --num_steps or a smaller --config.warmup_steps"
        )
    return config


def _description(options: Any, config: qusac.Config, schedule: dict[str, Any]) -> dict[str, Any]:
    """config.json: the values that define the run."""
    return {
        "env": options.env,
        "method": config.method,
        "preset": "sac",
        "seed": options.seed,
        "num_seeds": 1,
        **schedule,
        "keeps_policies": True,
        "config": dataclasses.asdict(config),
        **describe_program(),
    }


def _dataset_name(options: Any) -> str:
    """What the ids begin with: the environment's name, as Minari allows it."""
    if options.env.startswith("gym:"):
        own = options.env.rpartition(":")[2]
    else:  # of the suite
        own = options.env.removeprefix("dmc:").replace(":", "-")
    name = options.name or own
    return f"{options.namespace}/{name}" if options.namespace else name


def _default_workdir(options: Any) -> pathlib.Path:
    env = files.as_name(options.env)
    return pathlib.Path("runs") / f"collect-{env}-{options.size}-{options.seed}"
