"""Answers Ctrl-C and SIGTERM: from a program's first line on, and where there is something to save.

An exception that Ctrl-C raises while modules are imported, or while JAX compiles, gets lost there
or ends in a traceback. So this raises none, and imports nothing that takes time.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_unfinished: list[str] = []


@contextlib.contextmanager
def unfinished(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within it, a process that leaves at once removes this file, if it is there."""
    name = os.path.abspath(path)
    _unfinished.append(name)
    try:
        yield
    finally:
        _unfinished.remove(name)


def leave_at_once() -> None:
    """From now on both signals end the process, with one line on stderr and code 128 + number."""
    for number in _answered():
        signal.signal(number, _leave)


def _answered() -> list[signal.Signals]:
    """Both, but for one that is ignored, as scripts set it for `&`."""
    both = (signal.SIGINT, signal.SIGTERM)
    return [number for number in both if signal.getsignal(number) is not signal.SIG_IGN]


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    with contextlib.suppress(Exception):  # the signal may have come in the middle of a print
        sys.stdout.flush()
    for path in _unfinished:
        with contextlib.suppress(OSError):
            os.unlink(path)
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n" if number == signal.SIGINT else b"terminated\n")
    os._exit(128 + number)


def saving(when: str = "") -> str:
    """What a program that saves says to the first signal; `when` says how soon."""
    return f"stopping and saving{when}; Ctrl-C now leaves without saving"


@contextlib.contextmanager
def stop_signals(answer: str | None = None) -> Iterator[Callable[[], int | None]]:
    """Within it, Ctrl-C and SIGTERM are noted and answered; a second Ctrl-C acts as outside.

    In another thread than the main one, which alone Python lets answer signals, none is noted.

    Args:
        answer: a line that says what happens now; by default that of `saving`.

    Yields:
        A function that returns the number of the signal that came, or None.
    """
    received: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    outside = handler if callable(handler) else signal.default_int_handler
    message = f"\n{saving() if answer is None else answer}\n".encode()

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            outside(number, frame)
        if not received:
            with contextlib.suppress(OSError):  # not print, which the signal may interrupt
                os.write(2, message)
        received.append(number)

    answered = _answered() if threading.current_thread() is threading.main_thread() else []
    previous = {number: signal.signal(number, note) for number in answered}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
