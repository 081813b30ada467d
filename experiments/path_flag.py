"""Flags that name a file or a folder."""

import os
from typing import Any

from absl import flags


class _PathParser(flags.ArgumentParser):
    """Takes `~` for the home directory: a shell leaves it as it is behind `--flag=`."""

    def parse(self, argument: Any) -> Any:
        """The path as text; None stays None."""
        return os.path.expanduser(argument) if isinstance(argument, str) else argument


def define(options: flags.FlagValues, name: str, default: str | None, about: str) -> None:
    """Adds one.

    Args:
        options: where it is added.
        name: of the flag.
        default: a path, or None.
        about: what `--help` says.
    """
    flags.DEFINE(_PathParser(), name, default, about, flag_values=options)
