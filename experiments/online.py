"""Trains QU-SAC, MBPO or SAC on a continuous-control task: `python -m experiments.online`.

`--env=cartpole_swingup --method=upper_bound` is the paper's main experiment (section 5.3). Starting
again with the same --workdir continues a run that was interrupted.
"""

import dataclasses
import datetime
import pathlib
import sys

from absl import flags
from ml_collections import config_flags

from experiments import cli
from experiments.online_run import OnlineRun
from experiments.run_directory import RunDirectory, describe_program
from qusac_jax import environments
from qusac_jax.qusac import presets
from qusac_jax.qusac.config import Config

_ENV = flags.DEFINE_string(
    "env",
    "cartpole_swingup",
    f"{', '.join(environments.PAPER_TASKS)}, dmc:DOMAIN:TASK, or gym:ID",
)
_METHOD = flags.DEFINE_string(
    "method", None, "qvariance: ensemble_mean, ensemble_var, upper_bound, pombu, exact_ube"
)
_PRESET = flags.DEFINE_string("preset", "qusac", f"algorithm: {', '.join(presets.PRESETS)}")
_NUM_STEPS = flags.DEFINE_integer("num_steps", 500_000, "environment steps per seed")
_SEED = flags.DEFINE_integer("seed", 0, "first seed", lower_bound=0, upper_bound=2**31 - 1)
_NUM_SEEDS = flags.DEFINE_integer("num_seeds", 1, "seeds trained together: seed, seed + 1, ...")
_WORKDIR = flags.DEFINE_string("workdir", None, "default runs/ENV-METHOD-DATE")
_ACTION_COST = flags.DEFINE_float("action_cost", None, "rho; default the paper's for its tasks")
_TERMINATION = flags.DEFINE_enum(
    "termination",
    None,
    list(environments.TERMINATIONS),
    "when an episode ends, for rollouts of the model; known for dmc: and Gymnasium's own tasks",
)
_EVAL_EVERY = flags.DEFINE_integer("eval_every", 1_000, "environment steps between evaluations")
_EVAL_EPISODES = flags.DEFINE_integer("eval_episodes", 5, "episodes per evaluation and seed")
_CHECKPOINT_EVERY = flags.DEFINE_integer("checkpoint_every", 5_000, "steps between checkpoints")
_RESUME = flags.DEFINE_enum(
    "resume",
    "latest",
    ["latest", "latest_good", "never"],
    "which checkpoint of the workdir to continue from; never: refuse a workdir that has one",
)
_DEVICE = flags.DEFINE_enum("device", "auto", ["auto", "cpu", "gpu", "tpu"], "where to compute")
_VIDEO = flags.DEFINE_boolean("video", False, "write an mp4 of an episode at the end")
# A placeholder value per field: only what the command line sets is taken from it, so that presets
# keep their own defaults.
cli.define_config_at_import("config", Config(), "hyperparameters, --config.FIELD=VALUE")


def main() -> int | None:
    """Reads the flags, trains, and says where the results are."""
    config = _config()
    _check_positive("num_steps", "num_seeds", "eval_every", "eval_episodes", "checkpoint_every")
    last = _SEED.value + _NUM_SEEDS.value - 1
    if last >= 2**31:
        raise ValueError(f"seed + num_seeds - 1 must be below 2**31, got {last}; use smaller seeds")
    environments.check_name(_ENV.value)
    spec = environments.spec(_ENV.value, _ACTION_COST.value)
    devices = cli.select_device(_DEVICE.value)

    label = config.method if _PRESET.value == "qusac" else _PRESET.value
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{_ENV.value.replace(':', '_').replace('/', '_')}-{label}-{date}"
    workdir = pathlib.Path(_WORKDIR.value or pathlib.Path("runs") / name)
    _check_environment(config)
    directory = RunDirectory(
        workdir,
        {
            "env": _ENV.value,
            "method": config.method,
            "preset": _PRESET.value,
            "seed": _SEED.value,
            "num_seeds": _NUM_SEEDS.value,
            "num_steps": _NUM_STEPS.value,
            "action_cost": spec.action_cost,
            **({"termination": _TERMINATION.value} if _TERMINATION.value else {}),
            "eval_every": _EVAL_EVERY.value,
            "eval_episodes": _EVAL_EPISODES.value,
            "checkpoint_every": _CHECKPOINT_EVERY.value,
            "config": dataclasses.asdict(config),
            **describe_program(),
        },
    )
    # From here on: an exception that Ctrl-C raises while JAX compiles can get lost there.
    with cli.stop_signals() as stopped:
        print(f"run directory: {workdir}", flush=True)
        run = OnlineRun(
            directory,
            _ENV.value,
            config,
            seeds=range(_SEED.value, _SEED.value + _NUM_SEEDS.value),
            num_steps=_NUM_STEPS.value,
            action_cost=spec.action_cost,
            termination=_termination(config),
            eval_every=_EVAL_EVERY.value,
            eval_episodes=_EVAL_EPISODES.value,
            checkpoint_every=_CHECKPOINT_EVERY.value,
            devices=devices,
        )
        run.resume(_RESUME.value)
        signal_number = run.train(stopped)
        if signal_number is None:  # all is saved, what is left takes seconds
            run.finish(
                {
                    "env": _ENV.value,
                    "method": config.method,
                    "preset": _PRESET.value,
                    "num_seeds": _NUM_SEEDS.value,
                }
            )
    if signal_number is not None:
        print(f"stopped at step {run.step}; the same command with --workdir={workdir} continues")
        return 128 + signal_number
    print(f"done: summary.json, learning_curve.png and policy are in {workdir}")
    if _VIDEO.value:
        try:
            run.record_video(directory.path / "episode.mp4")
        except RuntimeError as error:
            raise ValueError(f"video: {error}") from error
    return None


def _check_environment(config: Config) -> None:
    """Raises `ValueError` for what would end a run later: before a directory is made for it."""
    _termination(config)
    env = environments.VectorEnvironment(_ENV.value, [_SEED.value])
    env.reset()
    env.state()
    env.close()
    if _VIDEO.value:
        try:
            environments.check_video_packages()
        except RuntimeError as error:
            raise ValueError(f"video: {error}") from error


def _termination(config: Config) -> environments.TerminationFn:
    if _TERMINATION.value is None and not config.uses_model:
        return environments.TERMINATIONS["never"]  # only rollouts of a model ask
    return environments.termination_fn(_ENV.value, _TERMINATION.value)


def _config() -> Config:
    """The preset with what the command line overrides."""
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    if _METHOD.value is not None:
        if overrides.get("method", _METHOD.value) != _METHOD.value:
            raise ValueError(
                f"method is given twice: {_METHOD.value!r} and --config.method="
                f"{overrides['method']!r}; leave one out"
            )
        overrides["method"] = _METHOD.value
    overrides = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
    return dataclasses.replace(presets.get(_PRESET.value), **overrides)


def _check_positive(*names: str) -> None:
    for name in names:
        value = int(flags.FLAGS[name].value or 0)
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
