"""Trains QU-SAC, MBPO or SAC on a continuous-control task: `python -m experiments.online`.

`--env=cartpole_swingup --method=upper_bound` is the paper's main experiment (section 5.3). Starting
again with the same --workdir continues a run that was interrupted.
"""

import dataclasses
import datetime
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import cli
from experiments.online_run import OnlineRun
from experiments.run_directory import RunDirectory, describe_program
from qusac_jax import environments, qusac
from qusac_jax.qusac.config import METHODS
from qusac_jax.qusac.presets import PRESETS, SIZES

_MAX_SEED = 2**31 - 1
_ABOUT_CONFIG = "hyperparameters; defaults of the preset 'qusac' in the paper's size"


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    names = f"{', '.join(environments.PAPER_TASKS)}, dmc:DOMAIN:TASK, or gym:ID"
    flags.DEFINE_string("env", "cartpole_swingup", names, **define)
    flags.DEFINE_string("method", None, f"qvariance: {', '.join(METHODS)}", **define)
    flags.DEFINE_string("preset", "qusac", f"algorithm: {', '.join(PRESETS)}", **define)
    flags.DEFINE_enum("size", "paper", list(SIZES), "of networks, batches and model data", **define)
    flags.DEFINE_integer("num_steps", 500_000, "environment steps per seed", 1, **define)
    flags.DEFINE_integer("seed", 0, "first seed", 0, _MAX_SEED, **define)
    flags.DEFINE_integer("num_seeds", 1, "seeds trained together: seed, seed + 1, ...", 1, **define)
    flags.DEFINE_string("workdir", None, "default runs/ENV-METHOD-DATE", **define)
    flags.DEFINE_float("action_cost", None, "rho; default the paper's for its tasks", **define)
    flags.DEFINE_string(
        "termination",
        None,
        "when an episode ends, for rollouts of the model; known for dmc: and Gymnasium's own "
        f"tasks. One of {', '.join(environments.TERMINATIONS)}, or MODULE:FUNCTION for one of your "
        "own, which imports and so executes that module",
        **define,
    )
    flags.DEFINE_float(
        "reward_threshold",
        qusac.diagnostics.REWARD_THRESHOLD,
        "a step with a larger reward counts as rewarded in the log",
        **define,
    )
    flags.DEFINE_integer("eval_every", 1_000, "environment steps between evaluations", 1, **define)
    flags.DEFINE_integer("eval_episodes", 5, "episodes per evaluation and seed", 1, **define)
    flags.DEFINE_integer("checkpoint_every", 5_000, "steps between checkpoints", 1, **define)
    flags.DEFINE_enum(
        "resume",
        "latest",
        ["latest", "latest_good", "never"],
        "which checkpoint of the workdir to continue from; never: refuse a workdir that has one",
        **define,
    )
    flags.DEFINE_enum("device", "auto", ["auto", "cpu", "gpu", "tpu"], "where to compute", **define)
    flags.DEFINE_boolean("video", False, "write an mp4 of an episode at the end", **define)
    cli.define_config(values, "config", qusac.Config(), _ABOUT_CONFIG)
    return values


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and trains; returns the exit code."""
    options = make_flags()
    return cli.run_with(lambda: run(options), options, argv, __doc__ or "")


def run(options: Any) -> int | None:
    """Trains as the flags say, and says where the results are; returns the exit code."""
    config = _config(options)
    last = options.seed + options.num_seeds - 1
    if last > _MAX_SEED:
        raise ValueError(f"seed + num_seeds - 1 must be below 2**31, got {last}; use smaller seeds")
    environments.check_name(options.env)
    spec = environments.spec(options.env, options.action_cost)
    devices = cli.select_device(options.device)
    # Only rollouts of a model ask when an episode ends.
    task = spec.task(options.termination or (None if config.uses_model else "never"))
    _check_environment(options)
    workdir = pathlib.Path(options.workdir or _default_workdir(options, config))
    directory = RunDirectory(workdir, _description(options, config, spec.action_cost))
    # From here on: an exception that Ctrl-C raises while JAX compiles can get lost there.
    with cli.stop_signals() as stopped:
        print(f"run directory: {workdir}", flush=True)
        training = OnlineRun(
            directory,
            options.env,
            config,
            task,
            run_seeds=range(options.seed, options.seed + options.num_seeds),
            num_steps=options.num_steps,
            action_cost=spec.action_cost,
            eval_every=options.eval_every,
            eval_episodes=options.eval_episodes,
            checkpoint_every=options.checkpoint_every,
            reward_threshold=options.reward_threshold,
            devices=devices,
        )
        training.resume(options.resume)
        if stopped() is None:
            training.announce_duration()
        signal_number = training.train(stopped)
        if signal_number is None:  # all is saved, what is left takes seconds
            about = {"env": options.env, "method": config.method, "preset": options.preset}
            training.finish({**about, "num_seeds": options.num_seeds})
    if signal_number is not None:
        print(
            f"stopped at step {training.step}; the same command with --workdir={workdir} continues"
        )
        return 128 + signal_number
    print(f"done: summary.json, learning_curve.png and policy are in {workdir}")
    if options.video:
        try:
            training.record_video(directory.path / "episode.mp4")
        except RuntimeError as error:
            raise ValueError(f"video: {error}") from error
    return None


def _config(options: Any) -> qusac.Config:
    """The preset in its size with what the command line overrides."""
    config = qusac.presets.get(options.preset, options.size)
    if options.method is not None:
        if options["config.method"].present and options["config.method"].value != options.method:
            raise ValueError(
                f"method is given twice: {options.method!r} and --config.method="
                f"{options['config.method'].value!r}; leave one out"
            )
        options["config.method"].parse(options.method)
    return cli.read_config(options, "config", config)


def _description(options: Any, config: qusac.Config, action_cost: float) -> dict[str, Any]:
    """config.json: the values that define the run."""
    named = ("seed", "num_seeds", "num_steps", "eval_every", "eval_episodes", "checkpoint_every")
    return {
        "env": options.env,
        "method": config.method,
        "preset": options.preset,
        **{name: getattr(options, name) for name in named},
        "action_cost": action_cost,
        "reward_threshold": options.reward_threshold,
        **({"termination": options.termination} if options.termination else {}),
        "config": dataclasses.asdict(config),
        **describe_program(),
    }


def _default_workdir(options: Any, config: qusac.Config) -> pathlib.Path:
    label = config.method if options.preset == "qusac" else options.preset
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    env = options.env.replace(":", "_").replace("/", "_")
    return pathlib.Path("runs") / f"{env}-{label}-{date}"


def _check_environment(options: Any) -> None:
    """Raises `ValueError` for what would end a run later: before a directory is made for it."""
    env = environments.VectorEnvironment(options.env, [options.seed])
    env.reset()
    env.state()
    env.close()
    if options.video:
        try:
            environments.check_video_packages()
        except RuntimeError as error:
            raise ValueError(f"video: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
