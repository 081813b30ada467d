"""TensorBoard's files of a run."""

import contextlib
import itertools
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
from tensorboardX.summary import hparams

from experiments.files import warn
from experiments.loggers import hyperparameters, tagged

_FILE_NUMBER = itertools.count()  # files of one second would have one name


class TensorBoard:
    """Events under `tensorboard/seed_SEED`: a run of its own in TensorBoard for each seed.

    Wall-clock figures, which all seeds share, are with the first seed. What cannot be written is
    left out with a warning: metrics.csv has it. Nothing is written in a thread, as tensorboardX's
    `SummaryWriter` does: on a full disk the thread dies, its queue fills up, and the run stands.
    """

    def __init__(self, folder: pathlib.Path, description: Mapping[str, Any]):
        """Opens nothing yet.

        Args:
            folder: `tensorboard` of the run.
            description: config.json.
        """
        self._folder = folder
        self._description = description
        self._purge_step: int | None = None
        self._purged: set[int] = set()  # seeds whose later events are hidden already
        self._described: set[int] = set()  # seeds whose hyperparameters are written
        self._writers: dict[int, EventsWriter] = {}

    def rewind(self, step: int) -> None:
        """As `Logger.rewind`."""
        self.close()
        self._purge_step = step + 1
        self._purged.clear()

    def log(self, rows: Sequence[Mapping[str, float]], timing: Mapping[str, float]) -> None:
        """As `Logger.log`."""
        for number, row in enumerate(rows):
            values = tagged(row)
            if not number:
                values |= {f"timing/{name}": value for name, value in timing.items()}
            scalars = [Summary.Value(tag=name, simple_value=x) for name, x in values.items()]
            self._add(int(row["seed"]), int(row["step"]), Summary(value=scalars))

    def video(self, step: int, seed: int, path: pathlib.Path) -> None:
        """As `Logger.video`; the GIF is an image that moves."""
        gif = path.with_suffix(".gif").read_bytes()
        image = Summary.Image(
            width=int.from_bytes(gif[6:8], "little"),
            height=int.from_bytes(gif[8:10], "little"),
            colorspace=3,
            encoded_image_string=gif,
        )
        self._add(seed, step, Summary(value=[Summary.Value(tag="eval/episode", image=image)]))

    def close(self) -> None:
        """As `Logger.close`."""
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # all of it was written before
                writer.close()
        self._writers.clear()

    def _add(self, seed: int, step: int, summary: Any) -> None:
        try:
            writer = self._writer(seed)
            writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            writer.flush()
        except OSError as error:
            # What a file holds up to its broken end can be read; the next events begin another.
            self._writers.pop(seed, None)
            warn(f"step {step} of seed {seed} is not in {self._folder}: {error}")

    def _writer(self, seed: int) -> EventsWriter:
        if seed in self._writers:
            return self._writers[seed]
        folder = self._folder / f"seed_{seed}"
        if any(path.stat().st_size for path in folder.glob("events.*")):
            self._described.add(seed)
        folder.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{next(_FILE_NUMBER):06d}"  # TensorBoard reads in this order
        writer = EventsWriter(str(folder / "events"), suffix)
        now = time.time()
        if self._purge_step is not None and seed not in self._purged:
            begins = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=now, step=self._purge_step, session_log=begins))
        if seed not in self._described:
            values = hyperparameters(self._description) | {"seed": seed}
            for summary in hparams(values, {"eval/return": 0.0}):
                writer.write_event(Event(wall_time=now, summary=summary))
        writer.flush()
        self._purged.add(seed)
        self._described.add(seed)
        self._writers[seed] = writer
        return writer
