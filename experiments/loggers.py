"""Where a run's metrics go beside metrics.csv: the protocol, names in sections, and TensorBoard."""

import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorboardX
from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
from tensorboardX.summary import hparams

from experiments.files import flatten

_SECTIONS: Mapping[str, Sequence[str]] = {
    "value": ("mean_q", "expected_return"),
    "uncertainty": (
        "mean_sqrt_u",
        "max_sqrt_u",
        "sqrt_u_bound",
        "critic_spread",
        "critic_spread_centered",
        "expected_std",
        "local_uncertainty",
    ),
    "policy": ("alpha", "entropy", "risk"),
    "model": (
        "fit_epochs",
        "noise_variance",
        "rewarded_predicted",
        "missed_ends",
        "false_ends",
    ),
    "data": ("replay_size", "rewarded_share_replay", "rewarded_share_model"),
    "train": ("rewarded_steps",),
}
_TAGS = {name: f"{section}/{name}" for section, names in _SECTIONS.items() for name in names}
# From the beginning or the end of a column's name to its section.
_PATTERNS = (
    (r"eval_(.*)", r"eval/\1"),
    (r"train_(.*)", r"train/\1"),
    (r"(.*)_loss", r"loss/\1"),
    (r"(holdout_mse_.*)", r"model/\1"),
)
_KEYS = ("step", "seed")


class Logger(Protocol):
    """What a run tells of itself, besides its own files."""

    def rewind(self, step: int) -> None:
        """What was logged after that step will be logged again."""

    def log(self, rows: Sequence[Mapping[str, float]], timing: Mapping[str, float]) -> None:
        """Takes the rows of an evaluation, one per seed, and wall-clock figures."""

    def video(self, step: int, seed: int, path: pathlib.Path) -> None:
        """Takes an episode: an mp4, with a GIF beside it."""

    def close(self) -> None:
        """Writes what is left."""


def tag(column: str) -> str:
    """The name in sections of a column of metrics.csv, such as `loss/critic` for `critic_loss`."""
    if column in _TAGS:
        return _TAGS[column]
    for pattern, replacement in _PATTERNS:
        if re.fullmatch(pattern, column):
            return re.sub(pattern, replacement, column)
    return f"other/{column}"


def tagged(row: Mapping[str, float]) -> dict[str, float]:
    """The finite values of a row of metrics.csv by tag."""
    return {
        tag(name): value
        for name, value in row.items()
        if name not in _KEYS and math.isfinite(value)
    }


def hyperparameters(description: Mapping[str, Any]) -> dict[str, Any]:
    """The values of config.json that say what is run, flat: numbers, booleans and strings.

    What is none of these, such as the sizes of layers, becomes a string.
    """
    named = {name: description.get(name) for name in ("env", "method", "preset", "action_cost")}
    flat = named | flatten({"config": description.get("config", {})})
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flat.items()
    }


class TensorBoard:
    """Events under `tensorboard/seed_SEED`: a run of its own in TensorBoard for each seed.

    Wall-clock figures, which all seeds share, are with the first seed.
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
        self._writers: dict[int, tensorboardX.SummaryWriter] = {}

    def rewind(self, step: int) -> None:
        """As `Logger.rewind`."""
        self.close()
        self._purge_step = step + 1

    def log(self, rows: Sequence[Mapping[str, float]], timing: Mapping[str, float]) -> None:
        """As `Logger.log`."""
        for number, row in enumerate(rows):
            step, writer = int(row["step"]), self._writer(int(row["seed"]))
            for name, value in tagged(row).items():
                writer.add_scalar(name, value, step)
            if not number:
                for name, value in timing.items():
                    writer.add_scalar(f"timing/{name}", value, step)
            writer.flush()

    def video(self, step: int, seed: int, path: pathlib.Path) -> None:
        """As `Logger.video`; the GIF is an image that moves."""
        gif = path.with_suffix(".gif").read_bytes()
        image = Summary.Image(
            width=int.from_bytes(gif[6:8], "little"),
            height=int.from_bytes(gif[8:10], "little"),
            colorspace=3,
            encoded_image_string=gif,
        )
        writer = self._writer(seed)
        self._add(writer, Summary(value=[Summary.Value(tag="eval/episode", image=image)]), step)
        writer.flush()

    def close(self) -> None:
        """As `Logger.close`."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, seed: int) -> tensorboardX.SummaryWriter:
        if seed not in self._writers:
            folder = self._folder / f"seed_{seed}"
            is_new = not folder.exists()
            writer = tensorboardX.SummaryWriter(str(folder), purge_step=self._purge_step)
            self._writers[seed] = writer
            if is_new:
                values = hyperparameters(self._description) | {"seed": seed}
                for summary in hparams(values, {"eval/return": 0.0}):
                    self._add(writer, summary)
        return self._writers[seed]

    @staticmethod
    def _add(writer: tensorboardX.SummaryWriter, summary: Any, step: int | None = None) -> None:
        writer._get_file_writer().add_summary(summary, step)
