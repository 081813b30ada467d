"""Flags that name a file or a folder."""

import os
import pathlib
from typing import Any

from absl import flags

_FILES = (".png", ".pdf", ".svg", ".csv", ".json", ".md")


class _PathParser(flags.ArgumentParser):
    """Takes `~` for the home directory: a shell leaves it as it is behind `--flag=`."""

    def parse(self, argument: Any) -> Any:
        """The path as text; None stays None."""
        return os.path.expanduser(argument) if isinstance(argument, str) else argument


class _OutputFolderParser(_PathParser):
    """Refuses what is meant for a file: a folder of that name would be made."""

    def parse(self, argument: Any) -> Any:
        """The path as text; None stays None."""
        path = super().parse(argument)
        suffix = "" if path is None else pathlib.PurePath(path).suffix
        if suffix.lower() in _FILES:
            raise ValueError(
                f"it names a folder, whose files have names of their own; leave {suffix} out"
            )
        return path


def define(options: flags.FlagValues, name: str, default: str | None, about: str) -> None:
    """Adds one.

    Args:
        options: where it is added.
        name: of the flag.
        default: a path, or None.
        about: what `--help` says.
    """
    flags.DEFINE(_PathParser(), name, default, about, flag_values=options)


def define_output(options: flags.FlagValues, default: str | None, about: str) -> None:
    """Adds `--output`, a folder to write to."""
    flags.DEFINE(_OutputFolderParser(), "output", default, about, flag_values=options)
