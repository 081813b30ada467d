"""The files of a run: config.json, metrics.csv, summary.json; loggers that follow it."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments import run_lock
from experiments.files import flatten, read_columns, read_json, warn, why, write_json
from experiments.loggers import Logger
from experiments.run_kind import is_tabular
from experiments.tensorboard_logger import TensorBoard
from qusac_jax._paths import as_path

_UNFINISHED = (run_lock.NAME, "config.partial")  # what a process that died at its start may leave
# All that a run's directory holds before anything was computed; until then, others may use it.
_AT_START = {*_UNFINISHED, "config.json", "checkpoints", "tensorboard", "wandb", "wandb.json"}
_MOST_NAMED = 6  # values that differ, in an error
_PROGRAM = ("versions", "git_commit", "device")  # what computes, `describe_program`
# Of other runs; what they gave is in the checkpoints of the run itself.
_NAMED = ("dynamics", "init_from")
_TAKEN_OVER = (*_NAMED, "init_from_dataset")
# What may differ when a run is continued; everything else decides its results.
_FREE = (
    *_PROGRAM,
    *("earlier", "num_steps", "num_episodes", "checkpoint_every", "resume_env"),
    *("dataset.dataset", "dataset.path", "dataset.env_note"),  # it has a checksum
    *_TAKEN_OVER,
)


class RunDirectory:
    """One run's directory. Opening it checks that it is new or belongs to the same run."""

    def __init__(self, path: str | pathlib.Path, config: dict[str, Any]):
        """Creates the directory with config.json, or checks the one that is there.

        Args:
            path: the directory.
            config: JSON-compatible values that define the run.

        Raises:
            ValueError: if it belongs to a run with other values, holds other files, cannot be
                written, or another process is writing to it.
        """
        self.path = as_path("workdir", path, expands=False)  # the flag has done it
        self._config = config = json.loads(json.dumps(config))
        self._loggers: list[Logger] = [TensorBoard(self.path / "tensorboard", config)]
        self.previous = previous_config(path, config)  # as the last process left it
        _check_is_for_runs(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = run_lock.taken(self.path)
            if not self.previous:
                write_json(self.path / "config.json", config)
        except OSError as error:
            raise ValueError(
                f"workdir {str(path)!r} cannot be written ({why(error)}); choose another"
            ) from error

    def add_logger(self, make: Callable[[pathlib.Path, dict[str, Any]], Logger]) -> None:
        """Lets a further logger follow the run; it is made from the directory and config.json."""
        self._loggers.append(make(self.path, self._config))

    def identity(self) -> dict[str, Any]:
        """The values that decide the run's results, to be kept in a checkpoint."""
        return {k: v for k, v in flatten(self._config).items() if not _is_free(k)}

    def check_checkpoint(self, step: int, metadata: dict[str, Any]) -> None:
        """Raises `ValueError` if a checkpoint was made by a run with other values than this one.

        Args:
            step: of the checkpoint.
            metadata: what was saved with it, `identity` among it.
        """
        what = f"checkpoint {step} in {self.checkpoints}"
        _check_same(what, metadata.get("identity", {}), self.identity())

    def accept(self, done: int) -> None:
        """Writes the new config.json, once it is clear that the run goes on with it.

        If another program or device computed the run so far, that is kept under `earlier`. The runs
        that something was taken over from stay those that were named when the run began.

        Args:
            done: steps or episodes that are kept of what was computed before.
        """
        before = {name: self.previous.get(name) for name in _PROGRAM}
        earlier = self.previous.get("earlier", []) if done else []
        if done and before != {name: self._config.get(name) for name in _PROGRAM}:
            earlier = [*earlier, {"until": done, **before}]
        content = self._config | ({"earlier": earlier} if earlier else {})
        if done:
            for name in _TAKEN_OVER:
                self._say_what_is_not_read(name, content.pop(name, None), done)
            content |= {name: self.previous[name] for name in _TAKEN_OVER if name in self.previous}
        write_json(self.path / "config.json", content)
        self._forget_summary(done)

    def _say_what_is_not_read(self, name: str, given: Any, done: int) -> None:
        """Warns if a run goes on that would have taken something else over."""
        began = self.previous.get(name)
        if name in _NAMED and given not in (None, began):
            warn(
                f"{name}={given} has no effect: the run goes on from {done} with what it began "
                f"with, {f'{name}={began}' if began else 'which is nothing of another run'}"
            )

    def _forget_summary(self, done: int) -> None:
        """Removes summary.json if it is damaged, or of more steps or episodes than are kept."""
        path = self.path / "summary.json"
        try:
            summary = self.read_summary()
        except ValueError:  # it would end the run where it is read before it is written anew
            path.unlink()
            return
        there = summary.get("steps", summary.get("num_episodes"))
        if isinstance(there, int) and there > done:
            path.unlink()

    @property
    def checkpoints(self) -> pathlib.Path:
        """Where the checkpoints go."""
        return self.path / "checkpoints"

    @property
    def _metrics(self) -> pathlib.Path:
        return self.path / "metrics.csv"

    def metrics_size(self) -> int:
        """Bytes written to metrics.csv so far, to be kept in a checkpoint."""
        return self._metrics.stat().st_size if self._metrics.exists() else 0

    def last_step(self) -> int:
        """The last step in metrics.csv, of a line that is complete; 0 where there is none."""
        if not self._metrics.exists():
            return 0
        remedy = "delete it to begin anew, or choose another workdir"
        steps = read_columns(self._metrics, ["step"], remedy=remedy)["step"]
        return int(np.max(steps[np.isfinite(steps)], initial=0))

    def rewind(self, metrics_size: int, step: int) -> None:
        """Forgets what was logged after a checkpoint, because the run will log it again.

        Args:
            metrics_size: as `metrics_size` returned then.
            step: of the checkpoint; -1 if there was none.

        Raises:
            ValueError: if metrics.csv is shorter than it was then, or damaged before that.
        """
        if self.metrics_size() < metrics_size:
            there = f"has {self.metrics_size()} bytes" if self._metrics.exists() else "is missing"
            raise ValueError(
                f"{self._metrics} {there}, and had {metrics_size} bytes when the checkpoint was "
                "saved; restore it, or start in another workdir"
            )
        # Before the run goes on, which it would end when it is over.
        remedy = "restore it, or start in another workdir"
        read_columns(self._metrics, size=metrics_size, remedy=remedy)
        if self._metrics.exists():
            os.truncate(self._metrics, metrics_size)
        for logger in self._loggers:
            logger.rewind(step)

    def log(self, rows: list[dict[str, float]], timing: dict[str, float]) -> None:
        """Appends one row per seed to metrics.csv, and gives all of it to the loggers.

        metrics.csv holds nothing that depends on the clock, so that it can be compared bit by bit.
        It keeps the columns that it began with, also where another version continues the run.

        Args:
            rows: the same keys in each, `step` and `seed` among them.
            timing: wall-clock figures, for the loggers only.
        """
        text = io.StringIO()
        is_new = self.metrics_size() == 0
        writer = csv.DictWriter(
            text,
            fieldnames=list(rows[0]) if is_new else self._columns(),
            restval="nan",
            extrasaction="ignore",
            lineterminator="\n",
        )
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
        try:
            with self._metrics.open("a") as file:
                file.write(text.getvalue())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(
                f"could not write {self._metrics}: {error}; free some space, and the same command "
                "goes on from the last checkpoint, or begins anew if there is none"
            ) from error
        for logger in self._loggers:
            logger.log(rows, timing)

    def log_video(self, step: int, seed: int, path: pathlib.Path) -> None:
        """Gives an episode to the loggers: an mp4, with a GIF beside it."""
        for logger in self._loggers:
            logger.video(step, seed, path)

    def _columns(self) -> list[str]:
        with self._metrics.open(newline="") as file:
            return next(csv.reader(file))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json."""
        write_json(self.path / "summary.json", summary)

    def read_summary(self) -> dict[str, Any]:
        """What summary.json says; nothing if it is not there yet.

        Raises:
            ValueError: if it cannot be read.
        """
        path = self.path / "summary.json"
        return read_json(path, "choose another workdir") if path.exists() else {}

    def close(self) -> None:
        """Closes the loggers; others may write to the directory."""
        for logger in self._loggers:
            logger.close()
        self._lock.close()


class FollowedDirectory(RunDirectory):
    """The directory of a run of several processes in those that write no files."""

    def __init__(self, path: str | pathlib.Path, config: dict[str, Any]):
        """Checks that it is there; arguments as for `RunDirectory`.

        Raises:
            ValueError: if it is not, or belongs to a run with other values.
        """
        self.path = pathlib.Path(path).absolute()
        self._config = json.loads(json.dumps(config))
        self._loggers = []
        if not (self.path / "config.json").is_file():
            raise ValueError(
                f"workdir {str(path)!r}, which the first process made, is not here; choose one on "
                "a file system that all processes see"
            )
        self.previous = previous_config(path, config)

    def add_logger(self, make: Callable[[pathlib.Path, dict[str, Any]], Logger]) -> None:
        """Does nothing, as the first process does it; the same holds for the methods below."""

    def accept(self, done: int) -> None:
        """Nothing."""

    def rewind(self, metrics_size: int, step: int) -> None:
        """Nothing."""

    def log(self, rows: list[dict[str, float]], timing: dict[str, float]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _check_is_for_runs(path: str | pathlib.Path) -> None:
    """Raises `ValueError` if there is a file, or something else than a run and its config.json."""
    folder = pathlib.Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"workdir {str(path)!r} is a file; choose a directory")
    if not folder.is_dir() or (folder / "config.json").is_file():
        return
    names = {entry.name for entry in folder.iterdir()}
    if names & {"metrics.csv", "checkpoints"}:
        raise ValueError(
            f"workdir {str(path)!r} holds a run whose config.json is missing; put that back, "
            "or choose another workdir"
        )
    if names - set(_UNFINISHED):
        raise ValueError(
            f"workdir {str(path)!r} exists, is not empty and holds no config.json; "
            "choose another, or empty it"
        )


def previous_config(path: str | pathlib.Path, config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of a directory; nothing where there is none, or nothing was computed yet.

    Args:
        path: of the directory.
        config: values that define a run.

    Raises:
        ValueError: if it cannot be read, or belongs to a run with other values.
    """
    existing = pathlib.Path(path) / "config.json"
    if not existing.is_file():
        return {}
    previous = read_json(existing, "choose another workdir")
    if _is_at_its_start(existing.parent, previous):
        return {}
    _check_same(f"workdir {str(path)!r}", previous, json.loads(json.dumps(config)))
    return previous


def _is_at_its_start(path: pathlib.Path, config: dict[str, Any]) -> bool:
    """Whether a run has made the directory, and nothing else has come since."""
    is_of_a_run = all(name in config for name in _PROGRAM)
    names = {entry.name for entry in path.iterdir()}
    return is_of_a_run and names <= _AT_START and not any(path.glob("checkpoints/*"))


def has_checkpoint(path: str | pathlib.Path | None) -> bool:
    """Whether a run there can be continued, as far as file names say."""
    if path is None:
        return False
    # One that is being written has a longer name.
    return any(entry.name.isdecimal() for entry in pathlib.Path(path).glob("checkpoints/*"))


def _is_free(key: str) -> bool:
    return key in _FREE or key.split(".")[0] in _FREE


def _check_same(what: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    if is_tabular(old) != is_tabular(new):
        quantity = "a" if is_tabular(old) else "no"
        raise ValueError(f"{what} belongs to {quantity} tabular run; choose another workdir")
    old, new = flatten(old), flatten(new)
    differing = [
        f"{key}: {old.get(key)!r} there, {new.get(key)!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not _is_free(key)
    ]
    if differing:
        more = len(differing) - _MOST_NAMED
        named = differing[:_MOST_NAMED] + [f"and {more} more"] * (more > 0)
        raise ValueError(
            f"{what} belongs to a run with other values ({'; '.join(named)}); "
            "use the same values to continue it, or another workdir"
        )
