"""Wording of errors in one place, with the import of optional packages, which fails in words."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


def did_you_mean(name: object, known: Iterable[str], *, prefix: str = "") -> str:
    """The known names nearest to a mistyped one, as a clause for an error message.

    Args:
        name: what was given.
        known: what could have been meant.
        prefix: put before each suggestion, such as `dmc:`.

    Returns:
        For example " (did you mean 'mbpo'?)"; empty where nothing is near.
    """
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(prefix + match) for match in near)}?)" if near else ""


def require(module: str, *, what: str, install: str) -> Any:
    """Imports a module of an optional package.

    Args:
        module: its name.
        what: needs it, such as "dataset: reading datasets".
        install: what to do about it, such as a command.

    Raises:
        ValueError: if it cannot be imported; says so on behalf of `what`.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # what it imports can fail in many ways
        raise ValueError(f"{what} needs {module}; {install} ({error})") from error


def first_line(error: BaseException) -> str:
    """What an exception says, without what follows its first line."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def with_type(error: BaseException) -> str:
    """The same after the exception's type, for what other people's code raises."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def on_one_line(value: Any) -> str:
    """The text of a value, all on one line that is not too long."""
    return " ".join(str(value).split())[:300]
