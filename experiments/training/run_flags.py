"""Flags of the programs that train an agent, and the hyperparameters that they say."""

import math
from typing import Any

from absl import flags

from experiments import (
    cli,
    config_file,
    config_flags,
    distributed,
    files,
    jax_settings,
    path_flag,
)
from qusac_jax import environments, qusac
from qusac_jax.qusac.presets import PRESETS, SIZES
from qusac_jax.qusac.uncertainty import METHODS

LEARNED = "learned"  # a value of --termination
_ABOUT_CONFIG = "hyperparameters; the defaults shown are those of the preset 'qusac', {where}"


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
    about_method = (
        f"qvariance: {', '.join(METHODS)}; or MODULE:NAME for one of your own, which imports and "
        "so executes that module"
    )
    flags.DEFINE_string("method", None, about_method, **define)
    flags.DEFINE_string("preset", "qusac", f"algorithm: {', '.join(PRESETS)}", **define)
    flags.DEFINE_enum("size", "paper", list(SIZES), "of networks, batches and model data", **define)
    flags.DEFINE_integer("num_steps", num_steps, f"{unit} per seed", 1, **define)
    flags.DEFINE_integer("seed", 0, "first seed", 0, cli.MAX_SEED, **define)
    flags.DEFINE_integer("num_seeds", 1, "seeds trained together: seed, seed + 1, ...", 1, **define)
    path_flag.define(values, "workdir", None, "default runs/ENV-METHOD-seedSEED-DATE")
    flags.DEFINE_float("action_cost", None, "rho; default the paper's for its tasks", **define)
    flags.DEFINE_string(
        "termination",
        None,
        "when an episode ends, for rollouts of the model; known for dmc: and Gymnasium's MuJoCo "
        "tasks, Pendulum and MountainCarContinuous. One of "
        f"{', '.join(environments.TERMINATIONS)}; {LEARNED}, by the dynamics from the data; or "
        "MODULE:FUNCTION for one of your own, which imports and so executes that module",
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
    flags.DEFINE_integer("keep_checkpoints", 2, "latest checkpoints to keep", 1, **define)
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
        "processes that step environments in parallel, and as many again for evaluations; 0: one "
        "for each core",
        0,
        **define,
    )
    jax_settings.define_flags(values)
    distributed.define_flags(values)
    flags.DEFINE_boolean("video", False, "at the end write an episode as mp4 and GIF", **define)
    flags.DEFINE_boolean(
        "wandb", False, "log to Weights & Biases too; WANDB_MODE=offline needs no account", **define
    )
    flags.DEFINE_boolean("memory", False, "print the memory that the run needs, and exit", **define)
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
        if given.is_offline != is_offline:
            kinds = ("an offline", "an online") if given.is_offline else ("an online", "an offline")
            files.warn(
                f"config_file is of {kinds[0]} run, and all of its hyperparameters, the sign of "
                f"risk among them, are taken for {kinds[1]} one"
            )
    preset = qusac.presets.get(options.preset, options.size, is_offline=is_offline)
    if options.method is not None:
        if options["config.method"].present and options["config.method"].value != options.method:
            raise ValueError(
                f"method is given twice: {options.method!r} and --config.method="
                f"{options['config.method'].value!r}; leave one out"
            )
        options["config.method"].parse(options.method)
    if options.termination == LEARNED:
        learns = options["config.dynamics.learn_termination"]
        if learns.present and not learns.value:
            raise ValueError(
                f"termination is given twice: {LEARNED!r} and "
                "--config.dynamics.learn_termination=False; leave one out"
            )
        options["config.dynamics.learn_termination"].parse("true")
    return config_file.read_config(options, preset, given, change=change)


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
    given = None if termination == LEARNED else termination
    if given is not None and config.dynamics.learn_termination:
        raise ValueError(
            f"termination is given twice: {given!r} and --config.dynamics.learn_termination; leave "
            "one out"
        )
    return spec.task(given or (None if is_asked else "never"))
