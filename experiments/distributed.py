"""Finds the other processes of a run (`--distributed`), before JAX looks for devices.

`processes` has what they then do together.
"""

import os
import sys
import threading
import time
from concurrent import futures
from typing import Any

import jax
from absl import flags

from experiments import interrupts

_WAIT = 300  # seconds in which all processes must be started
_HEARTBEAT = 100  # seconds after which JAX ends processes because one does not answer
_NOT_FOUND = (
    "distributed: the processes did not find each other ({}); start all of them within "
    f"{_WAIT // 60} minutes, where no cluster is detected with --coordinator=HOST:PORT "
    "--num_processes=P --process_id=0, 1, ..."
)


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of runs of several processes."""
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_boolean(
        "distributed",
        False,
        "train with the other processes that were started with the same command, each its share "
        "of the seeds; on SLURM, Open MPI, Kubernetes and TPU pods they find each other",
        **define,
    )
    flags.DEFINE_string(
        "coordinator",
        None,
        "HOST:PORT on the first process's host, where no cluster is detected",
        **define,
    )
    flags.DEFINE_integer(
        "num_processes", None, "how many there are, where no cluster is detected", 1, **define
    )
    flags.DEFINE_integer("process_id", None, "0, 1, ..., where no cluster is detected", 0, **define)


def connect(options: Any) -> None:
    """Finds the other processes, before JAX looks for devices.

    Args:
        options: the flags of `define_flags`, and `num_seeds`.

    Raises:
        ValueError: if they cannot be found, or the seeds cannot be divided among as many as the
            flags say.
    """
    given = {
        "coordinator_address": options.coordinator,
        "num_processes": options.num_processes,
        "process_id": options.process_id,
    }
    if not options.distributed:
        if any(value is not None for value in given.values()):
            raise ValueError(
                "coordinator, num_processes and process_id are for runs of several processes; add "
                "--distributed, or leave them out"
            )
        return
    if options.coordinator is not None:
        _check_address(options.coordinator)
    if options.num_processes is not None:  # before the others are waited for
        check_divisible(options.num_seeds, options.num_processes)
    # Signals are answered here, at steps that all agree on.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        _find_others(given)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise ValueError(_NOT_FOUND.format(str(error).strip().partition("\n")[0])) from error
    interrupts.leave_at_once()  # JAX has handlers of its own


def _find_others(given: dict[str, Any]) -> None:
    """In a thread of its own: signals are answered meanwhile, where JAX waits without Python."""
    found: futures.Future[None] = futures.Future()

    def find() -> None:
        try:
            # JAX ends the process with a stack trace when its own time is over.
            jax.distributed.initialize(
                **given,
                initialization_timeout=2 * _WAIT,
                heartbeat_timeout_seconds=_HEARTBEAT,
            )
        except BaseException as error:
            found.set_exception(error)
        else:
            found.set_result(None)

    threading.Thread(target=find, daemon=True).start()
    deadline = time.monotonic() + _WAIT
    # In short waits: a signal that comes just before one begins is answered after it.
    while not found.done() and time.monotonic() < deadline:
        futures.wait([found], 1)
    if not found.done():
        message = _NOT_FOUND.format(f"waited for {_WAIT} seconds")
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(2)  # an ordinary end would have JAX print what it was waiting for
    found.result()


def _check_address(coordinator: str) -> None:
    """JAX would read whatever it is given, and some of it ends the process."""
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(
            "coordinator must be HOST:PORT, such as 10.0.0.1:1234, the same for all processes; got "
            f"{coordinator!r}"
        )


def check_divisible(num_seeds: int, count: int) -> None:
    """Raises `ValueError` unless the processes can have equally many seeds."""
    if num_seeds % count:
        counts = ", ".join(str(count * each) for each in (1, 2, 3))
        raise ValueError(
            f"num_seeds must be a multiple of the {count} processes, got {num_seeds}; use "
            f"{counts}, ..."
        )
