"""Keeps Orbax, TensorStore and asyncio from printing what Orbax raises as well."""

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """Within it, Orbax logs no tracebacks of what fails in its threads: it raises that as well.

    What it has then given up waiting for may fail later; that is not reported from there on. All is
    where somebody asks for all messages (`--verbosity=0`).
    """
    logger = logging.getLogger("absl")
    if logger.isEnabledFor(logging.INFO):
        yield
        return
    keep = lambda record: "orbax" not in record.pathname
    tasks = logging.getLogger("asyncio")
    before = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    tasks.addFilter(_is_of_others)
    sys.unraisablehook = report
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
    tasks.removeFilter(_is_of_others)  # only where nothing was raised
    sys.unraisablehook = before


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether what asyncio reports of a task or a future has nothing to do with Orbax."""
    frames = traceback.extract_tb(record.exc_info[2]) if record.exc_info else ()
    return "orbax" not in record.getMessage() + "".join(frame.filename for frame in frames)
