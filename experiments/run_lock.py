"""Who writes to a run's directory: a file that is locked for as long as the process lives."""

import fcntl
import os
import pathlib
from typing import IO

NAME = ".lock"


def taken(path: pathlib.Path) -> IO[str]:
    """Locks a run's directory until the file that is returned is closed, or this process dies.

    Raises:
        ValueError: if another process has it.
        OSError: if it cannot be written.
    """
    file = _locked(path)
    file.truncate(0)
    file.write(f"{os.getpid()} {os.uname().nodename}")
    file.flush()
    return file


def is_in_use(path: pathlib.Path) -> bool:
    """Whether a process writes to a run's directory; looks by locking it for a moment."""
    if not (path / NAME).is_file():
        return False
    try:
        _locked(path).close()
    except ValueError:
        return True
    return False


def user(path: pathlib.Path) -> int | None:
    """The process that writes to a run's directory; None if none does, or one of another host."""
    if not is_in_use(path):
        return None
    number, _, host = (path / NAME).read_text(encoding="utf-8", errors="replace").partition(" ")
    return int(number) if host == os.uname().nodename and number.isdecimal() else None


def _locked(path: pathlib.Path) -> IO[str]:
    file = (path / NAME).open("a+", encoding="utf-8")  # what it says is its owner's
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ValueError(
            f"workdir {str(path)!r} is in use by another process; wait for it, or choose another"
        ) from error
    return file
