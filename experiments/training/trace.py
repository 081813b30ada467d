"""A profile of some learning steps, for TensorBoard."""

import contextlib
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

import jax
from tqdm import tqdm

from experiments.training.compilations import CompilationCounter

_SKIPPED = 2  # calls of this process that learn, which compile
STEPS = 10  # learning steps in a trace
_SECONDS = 1.0  # of a trace at most; one step may take minutes, and makes gigabytes
_STEP = "learning_step"  # what TensorBoard knows it as


class Trace:
    """Records learning steps once they do nothing but compute; a context around a run."""

    def __init__(self, folder: str | None = None):
        """Records nothing yet.

        Args:
            folder: where the trace goes, made if needed; None for none.

        Raises:
            ValueError: if it cannot be written to.
        """
        self._folder = None if folder is None else pathlib.Path(folder)
        self.is_wanted = folder is not None  # still to be recorded
        self._skipped = 0
        self._recording: _Recording | None = None
        self._compilations = CompilationCounter()
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._unfinished = tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished")
            except OSError as error:
                raise ValueError(
                    f"profile: {folder} cannot be written to ({error}); choose another folder"
                ) from error

    def __enter__(self) -> "Trace":
        """The trace itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Writes what has been recorded so far."""
        if self._folder is None:
            return
        self._keep()
        if self.is_wanted:
            tqdm.write(
                "profile: no trace, the run ended before learning steps without compilation; use a "
                "larger num_steps"
            )
        self._unfinished.cleanup()

    @contextlib.contextmanager
    def learning_step(self, count: int = 1) -> Iterator[None]:
        """Around a call that learns, which must have ended on the device too.

        Args:
            count: learning steps in it. A call that takes longer than a trace is recorded in part.
        """
        if self.is_wanted and self._recording is None:
            self._skipped += 1
            if self._skipped > _SKIPPED:
                self._recording = _Recording(self._unfinished.name, self._compilations.total)
        recording = self._recording
        if recording is None:
            yield
            return
        with jax.profiler.StepTraceAnnotation(_STEP, step_num=recording.num_steps):
            yield
        recording.num_steps += count
        if recording.num_steps >= STEPS or recording.seconds is not None:
            self._keep()

    def _keep(self) -> None:
        """Ends the recording and keeps it, unless something was compiled in it."""
        recording, self._recording = self._recording, None
        if recording is None or self._folder is None:
            return
        seconds = recording.stop()
        written = pathlib.Path(self._unfinished.name) / "plugins"
        if recording.num_steps and self._compilations.total == recording.compilations_before:
            shutil.copytree(written, self._folder / "plugins", dirs_exist_ok=True)
            self.is_wanted = False
            tqdm.write(f"profile: {seconds:.2g} s of learning steps in {self._folder}")
        shutil.rmtree(written, ignore_errors=True)


class _Recording:
    """From now on, until it is stopped or has taken long."""

    def __init__(self, folder: str, compilations_before: int):
        """Begins, and counts no steps yet."""
        self.num_steps = 0
        self.compilations_before = compilations_before
        self.seconds: float | None = None  # that were recorded; None while it goes on
        self._lock = threading.Lock()
        jax.profiler.start_trace(folder)
        self._since = time.perf_counter()
        self._timer = threading.Timer(_SECONDS, self.stop)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> float:
        """Ends it, if it has not ended; returns its seconds."""
        self._timer.cancel()
        with self._lock:
            if self.seconds is None:
                seconds = time.perf_counter() - self._since
                jax.profiler.stop_trace()
                self.seconds = seconds
            return self.seconds
