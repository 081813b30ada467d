"""Trains QU-SAC, MBPO or SAC on a continuous-control task: `python -m experiments.online`.

`--env=cartpole_swingup --method=upper_bound` is the paper's main experiment (section 5.3). Starting
again with the same --workdir continues a run that was interrupted.
"""

import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import cli, files, handover, program
from experiments.device_run import DeviceRun
from experiments.online_run import OnlineRun
from qusac_jax import environments


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    flags.DEFINE_string(
        "env",
        "cartpole_swingup",
        f"{', '.join(environments.PAPER_TASKS)}, dmc:DOMAIN:TASK, gym:ID, or on the device "
        "brax:NAME or playground:NAME; gym:MODULE:ID and functional:MODULE:FUNCTION import and so "
        "execute that module",
        flag_values=values,
    )
    flags.DEFINE_string(
        "init_from",
        None,
        "workdir of an offline run: its agent goes on learning here, with its dataset in D",
        flag_values=values,
    )
    program.define_flags(
        values,
        unit="environment steps",
        num_steps=500_000,
        eval_every=1_000,
        eval_episodes=5,
        checkpoint_every=5_000,
    )
    return values


def run(options: Any) -> int | None:
    """Trains as the flags say, and says where the results are; returns the exit code."""
    source = pathlib.Path(options.init_from).expanduser() if options.init_from else None
    base = handover.config_of(source) if source else None
    change = functools.partial(handover.continued, base) if base else None
    config = program.read_config(options, change=change)
    environments.check_name(options.env)
    spec = environments.spec(options.env, options.action_cost)
    if options.num_steps < config.warmup_steps:
        files.warn(
            f"num_steps is {options.num_steps} and config.warmup_steps {config.warmup_steps}, so "
            "nothing is learned; use a larger --num_steps or a smaller --config.warmup_steps"
        )
    kind = DeviceRun if environments.functional.is_functional(options.env) else OnlineRun
    within = ", after a fit of the models or an evaluation that is under way"
    within = within if config.uses_model else ", after an evaluation that is under way"
    if source is None:
        return program.train(options, spec, config, kind, within)
    handover.check_seeds(source, options.seed, options.num_seeds)
    make = functools.partial(kind, init_from=source)
    return program.train(options, spec, config, make, within, init_from=options.init_from)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and trains; returns the exit code."""
    options = make_flags()
    return cli.run_with(lambda: run(options), options, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
