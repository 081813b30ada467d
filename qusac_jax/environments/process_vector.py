"""Several copies of one environment in processes of their own, which step at the same time.

Axes: R environments, O observation size, A action size.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any, NoReturn

import numpy as np

from qusac_jax.environments import state as environment_state
from qusac_jax.environments.make import Spec
from qusac_jax.environments.streams import StepResult
from qusac_jax.environments.vector_checks import check_actions_shape, check_seeds, which_active

# What stops a run, or says that its time is up, reaches its processes, too. They go on: it still
# asks them for their state.
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_PATIENCE = 10.0  # seconds for a process to end by itself
_PROGRAM = "qusac_jax.environments.worker"
_OBSERVATIONS = ("next_observation", "observation")


@functools.cache
def step_record(observation_size: int) -> np.dtype:
    """One environment's row of a `StepResult`, whose bytes a process answers with."""
    kinds = {name: np.float32 for name in ("reward", "task_reward")}
    kinds |= {name: np.bool_ for name in ("terminated", "truncated")}
    kinds |= {name: (np.float32, (observation_size,)) for name in _OBSERVATIONS}
    return np.dtype([(name, kinds.get(name, np.float64)) for name in StepResult._fields])


class ProcessVector:
    """R environments with automatic reset, shared out over processes.

    Its interface and its results are those of `VectorEnvironment`, bit by bit: environment i gives
    the same trajectory as when it is alone. It is faster where environments take longer than the
    messages, some 0.1 ms a step, and there are cores for the processes. What JAX computes in an
    environment, it computes on the CPU. Environments that the calling script registers are found
    as `gym:MODULE:ID` only. After an exception that is none of the environments' own it is closed.
    """

    spec: Spec

    def __init__(
        self,
        name: str,
        seeds: Sequence[int],
        *,
        action_cost: float | None = None,
        num_processes: int,
    ):
        """Starts the processes, each of which builds its environments.

        Args:
            name: as for `make`.
            seeds: R >= 1 different streams of initial states, each in [0, 2**32).
            action_cost: as for `make`.
            num_processes: at least 1; no more than R are started.

        Raises:
            ValueError: as `VectorEnvironment`.
            ChildProcessError: here and later, if a process has ended.
        """
        check_seeds(seeds)
        count = min(num_processes, len(seeds))
        self._parts = np.array_split(np.arange(len(seeds)), count)
        self._workers: list[_Worker] = []
        self._is_closed = False
        parts = [(name, [int(seeds[i]) for i in part], action_cost) for part in self._parts]
        try:
            for _ in parts:
                self._workers.append(_Worker())
            self.spec = self._ask("build", parts)[0]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """R, the number of environments."""
        return sum(len(part) for part in self._parts)

    def reset(self) -> np.ndarray:
        """Starts a new episode everywhere.

        Returns:
            Observations `[R, O]`, float32.
        """
        return np.concatenate(self._ask("reset"))

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepResult:
        """Steps environments and resets those whose episode ended; see `VectorEnvironment.step`."""
        actions = np.asarray(actions)
        check_actions_shape(actions, len(self), self.spec)
        chosen = which_active(active, len(self))
        # Bytes are sent much faster than arrays.
        parts = [
            (actions[part].tobytes(), actions.dtype.str, chosen[part].tobytes())
            for part in self._parts
        ]
        answers = self._ask("step", parts)
        rows = np.frombuffer(b"".join(answers), step_record(self.spec.observation_size))
        return StepResult(*(rows[name].copy() for name in StepResult._fields))

    def state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on; see `VectorEnvironment.state`."""
        states = self._ask("state")
        return {key: np.concatenate([state[key] for state in states]) for key in states[0]}

    def set_state(self, tree: dict[str, np.ndarray]) -> np.ndarray:
        """Continues where `state` was called, here or of a `VectorEnvironment`, exactly.

        Args:
            tree: what `state` returned, for the same environment and R.

        Returns:
            Observations `[R, O]` to act on next.

        Raises:
            ValueError: as `VectorEnvironment.set_state`.
        """
        of_part = self._ask("state_shapes")[0]
        expected: dict[str, tuple[tuple[int | None, ...], type]] = {
            key: ((len(self), *shape[1:]), dtype) for key, (shape, dtype) in of_part.items()
        }
        environment_state.check_tree(tree, expected)
        parts = [({key: np.asarray(x)[part] for key, x in tree.items()},) for part in self._parts]
        return np.concatenate(self._ask("set_state", parts))

    def close(self) -> None:
        """Frees the simulators and ends the processes."""
        self._is_closed = True
        for worker in self._workers:
            worker.let_go()
        for worker in self._workers:
            worker.wait()

    def _ask(self, method: str, arguments: Any = None) -> list[Any]:
        """What the method of each process's environments returns, once all have answered.

        Where one fails, the others' answers are read all the same: the next question has its own.
        """
        if self._is_closed:
            raise RuntimeError("these environments are closed, or were interrupted; make new ones")
        arguments = [()] * len(self._workers) if arguments is None else list(arguments)
        try:
            for worker, given in zip(self._workers, arguments, strict=True):
                worker.send(method, given)
            answers = [worker.receive() for worker in self._workers]
        except BaseException:
            # What nobody has read would be taken for the answer to the next question.
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


class _Worker:
    """A process that `worker.main` runs in, and the way to it."""

    def __init__(self) -> None:
        """Starts it."""
        here, there = socket.socketpair()
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # The process has this mask, too, until it has handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(there.fileno())],
                pass_fds=[there.fileno()],
                env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        there.close()
        self._connection = connection.Connection(here.detach())

    def send(self, method: str, arguments: tuple[Any, ...]) -> None:
        """Asks."""
        try:
            self._connection.send((method, arguments))
        except OSError:
            self._has_ended()

    def receive(self) -> Any:
        """The answer, or the exception that it came to."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self._has_ended()

    def let_go(self) -> None:
        """It ends by itself when there is nobody to answer."""
        self._connection.close()

    def wait(self) -> int:
        """Until it has ended; one that does not is killed. Returns its exit status."""
        try:
            return self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _has_ended(self) -> NoReturn:
        raise ChildProcessError(
            f"a process with environments has ended, exit status {self.wait()}; continue "
            "from the last checkpoint, with fewer processes if memory was short"
        ) from None
