"""Paths that a user passes."""

import pathlib
from typing import Any

from qusac_jax._messages import first_line


def as_path(argument: str, given: Any, *, expands: bool = True) -> pathlib.Path:
    """The absolute path.

    Args:
        argument: what it was given for, for the message.
        given: text or a path.
        expands: whether the home directory takes the place of `~`.

    Raises:
        ValueError: if it is neither, if there is no such home or no current directory any more, or
            if it is no UTF-8, which is all that Orbax writes to.
    """
    try:
        path = pathlib.Path(given)
        path = (path.expanduser() if expands else path).absolute()
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{argument} {str(given)!r} is no path in UTF-8; choose another, or set PYTHONUTF8=1"
        ) from error
    except (OSError, RuntimeError, TypeError) as error:
        shown = str(given) if isinstance(given, pathlib.PurePath) else given
        raise ValueError(
            f"{argument} {shown!r} is no path ({first_line(error)}); pass another"
        ) from error
    return path
