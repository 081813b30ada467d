"""A process with some of the environments of a `ProcessVector`, which starts it."""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

from qusac_jax.environments.make import Spec
from qusac_jax.environments.process_vector import SIGNALS, step_record
from qusac_jax.environments.streams import StepResult
from qusac_jax.environments.vector import VectorEnvironment

_WATCH_EVERY = 1.0  # seconds


class _Environments:
    """What can be asked of a worker: the methods of a `VectorEnvironment`, once it is built."""

    _vector: VectorEnvironment | None = None  # `build` comes first

    def build(self, name: str, seeds: Sequence[int], action_cost: float | None) -> Spec:
        """Makes them, and says what they are."""
        self._vector = VectorEnvironment(name, seeds, action_cost=action_cost)
        return self._vector.spec

    def step(self, actions: bytes, dtype: str, active: bytes) -> bytes:
        """The rows of the result as `step_record` has them."""
        assert self._vector is not None
        spec = self._vector.spec
        given = np.frombuffer(actions, dtype).reshape(-1, spec.action_size)
        result = self._vector.step(given, np.frombuffer(active, bool))
        rows = np.empty(len(given), step_record(spec.observation_size))
        for name in StepResult._fields:
            rows[name] = getattr(result, name)
        return rows.tobytes()

    def close(self) -> None:
        """Frees the simulators, if there are any yet."""
        if self._vector is not None:
            self._vector.close()

    def __getattr__(self, method: str) -> Any:
        """Of the environments."""
        return getattr(self._vector, method)


def main(descriptor: int) -> None:
    """Answers until the other end is closed, or its process has ended.

    Args:
        descriptor: of a socket. It receives a method of `_Environments` with its arguments and is
            sent what that returned, or the exception that it raised.
    """
    _outlast_signals()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.set_inheritable(descriptor, False)  # by processes that an environment starts
    with (
        contextlib.closing(_Environments()) as environments,
        connection.Connection(descriptor) as pipe,
    ):
        while True:
            try:
                method, arguments = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                answer = getattr(environments, method)(*arguments)
            except Exception as error:  # it is the other end's to handle
                answer = _sendable(error)
                answer.add_note(traceback.format_exc())
            try:
                pipe.send(answer)
            except OSError:
                return


def _outlast_signals() -> None:
    """Ignores what stops the run, until the run lets go.

    With handlers that do nothing: processes that an environment starts begin with the defaults
    again, but would inherit signals that are ignored or blocked.
    """
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _end_with_parent(parent: int) -> None:
    """Ends this process where its parent has gone and an environment never returns."""
    while os.getppid() == parent:
        time.sleep(_WATCH_EVERY)
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """The exception, or its text where an environment raises one that only it can make."""
    if type(error).__module__.partition(".")[0] in ("builtins", "qusac_jax"):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
