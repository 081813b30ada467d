"""Answers Ctrl-C and SIGTERM where there is nothing to save: from a program's first line on.

An exception that Ctrl-C raises while modules are imported, or while JAX compiles, gets lost there
or ends in a traceback. So this raises none, and imports nothing that takes time.
"""

import contextlib
import os
import signal
import sys
from types import FrameType


def leave_at_once() -> None:
    """From now on both signals end the process, with one line on stderr and code 128 + number."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` and `&` set it
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    with contextlib.suppress(Exception):  # the signal may have come in the middle of a print
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n" if number == signal.SIGINT else b"terminated\n")
    os._exit(128 + number)
