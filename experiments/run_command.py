"""What the commands share that look at one saved run."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import cli, jax_settings, path_flag
from experiments.saved_run import SavedRun

# Seeds of training begin at 0, of the evaluations during it at 1,000,003: no episode of D starts as
# one of these.
_FIRST_SEED = 2_000_003


def define_flags(values: flags.FlagValues, *, seed_of: str, folder: str) -> None:
    """Adds the flags of all of them.

    Args:
        values: where they are added.
        seed_of: what the seed is of.
        folder: of the run's workdir, where files go by default.
    """
    flags.DEFINE_integer("seed", _FIRST_SEED, f"of {seed_of}", 0, cli.MAX_SEED, flag_values=values)
    path_flag.define_output(values, None, f"folder to write to; default RUN/{folder}")
    jax_settings.define_flags(values)


def open_run(options: Any, paths: Sequence[str]) -> SavedRun:
    """The run that the command line names, on the device that it names.

    Raises:
        ValueError: if there is not one, or the device is not there.
    """
    if len(paths) != 1:
        raise ValueError(f"run must be one workdir, got {len(paths)}: {', '.join(paths)}")
    cli.select_device(options.device)
    return SavedRun(paths[0])
