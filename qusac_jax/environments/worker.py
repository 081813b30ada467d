"""A process with some of the environments of a `ProcessVector`, which starts it."""

import sys
from multiprocessing import connection
from typing import Any

from qusac_jax.environments.vector import VectorEnvironment


class _Environments:
    """What can be asked of a worker: the methods of a `VectorEnvironment`, once it is built."""

    def __init__(self) -> None:
        """Nothing is built."""
        self._vector: VectorEnvironment | None = None

    def build(self, name: str, seeds: Any, action_cost: float | None) -> Any:
        self._vector = VectorEnvironment(name, seeds, action_cost=action_cost)
        return self._vector.spec

    def __getattr__(self, method: str) -> Any:
        """Of the environments."""
        return getattr(self._vector, method)


def main(descriptor: int) -> None:
    """Answers until the other end is closed, or its process has ended.

    Args:
        descriptor: of a socket. It receives a method of `_Environments` with its arguments and is
            sent what that returned, or the exception that it raised.
    """
    environments = _Environments()
    with connection.Connection(descriptor) as pipe:
        while True:
            try:
                method, arguments = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                answer = getattr(environments, method)(*arguments)
            except Exception as error:  # it is the other end's to handle
                answer = _sendable(error)
            try:
                pipe.send(answer)
            except OSError:
                return


def _sendable(error: Exception) -> Exception:
    """The exception, or its text where an environment raises one that only it can make."""
    if type(error).__module__.partition(".")[0] in ("builtins", "qusac_jax"):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
