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

from experiments import cli, config_file, files, path_flag, processes, run_directory
from experiments.training import handover, program, run_flags
from experiments.training.device_run import DeviceRun
from experiments.training.online_run import OnlineRun
from experiments.training.run import Run
from qusac_jax import environments, qusac


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    flags.DEFINE_string(
        "env",
        "cartpole_swingup",
        f"{', '.join(environments.PAPER_TASKS)}, dmc:DOMAIN:TASK, gym:ID, or on the device "
        "brax:NAME or playground:NAME; gym:MODULE:ID and functional:MODULE:NAME import and so "
        "execute that module",
        flag_values=values,
    )
    path_flag.define(
        values,
        "init_from",
        None,
        "workdir of an offline run: its agent goes on learning here, with its dataset in D",
    )
    run_flags.define_flags(
        values,
        is_offline=False,
        num_steps=500_000,
        eval_every=1_000,
        eval_episodes=5,
        checkpoint_every=5_000,
    )
    return values


def run(options: Any) -> int | None:
    """Trains as the flags say, and says where the results are; returns the exit code."""
    source = pathlib.Path(options.init_from) if options.init_from else None
    is_gone = _is_gone(source, options.workdir)
    change = None
    if is_gone:
        own = config_file.of_run(
            pathlib.Path(options.workdir), argument="workdir", remedy="choose another workdir"
        )
        change = functools.partial(handover.resumed, own)
    elif source is not None:
        offline = config_file.of_run(source, argument="init_from", remedy=handover.REMEDY)
        handover.check_is_offline(source)
        change = functools.partial(handover.continued, offline)
    config = run_flags.read_config(options, change=change)
    environments.check_name(options.env)
    action_cost = options.action_cost
    if source is not None:
        action_cost = handover.action_cost(source, options.env, action_cost, options.workdir)
    cli.select_device(options.device)  # before an environment on the device makes arrays
    spec = environments.spec(options.env, action_cost)
    if shortfall := too_few_steps(options.num_steps, config):
        files.warn(shortfall)
    kind = DeviceRun if environments.functional.is_functional(options.env) else OnlineRun
    within = _stops_within(options, config, kind)
    if source is None:
        return program.train(options, spec, config, kind, within)
    if not is_gone:
        handover.check_seeds(source, options.seed, options.num_seeds)
        handover.check_sizes(source, spec)
    make = functools.partial(kind, init_from=source)
    about = {"init_from": options.init_from, "init_from_dataset": handover.dataset_hash(source)}
    return program.train(options, spec, config, make, within, **about)


def too_few_steps(num_steps: int, config: qusac.Config) -> str:
    """What to do about a run that ends before it learns; empty for others."""
    if num_steps >= config.warmup_steps:
        return ""
    return (
        f"num_steps is {num_steps} and config.warmup_steps {config.warmup_steps}, so nothing is "
        "learned; use a larger --num_steps or a smaller --config.warmup_steps"
    )


def _is_gone(source: pathlib.Path | None, workdir: str | None) -> bool:
    """Whether an offline run is not there any more, and not needed: its agent is in checkpoints."""
    if source is None or (source / "config.json").is_file():
        return False
    return run_directory.has_checkpoint(workdir)


def _stops_within(options: Any, config: qusac.Config, kind: type[Run]) -> str:
    """How soon Ctrl-C is answered."""
    if kind is DeviceRun:
        steps = min(options.eval_every, options.checkpoint_every, options.num_steps)
        return f", after up to {steps} steps and an evaluation, which are one call each"
    refresh = ", a fit of the models" if config.uses_model else ""
    steps = f"up to {processes.EVERY} steps and " if options.distributed else ""
    return f", after {steps}a compilation{refresh} or an evaluation that is under way"


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and trains; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
