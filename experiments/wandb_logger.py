"""Weights & Biases, for those who ask for it: `--wandb`.

The package's own environment variables decide where the run goes: `WANDB_MODE=offline` needs no
account, `WANDB_PROJECT` and `WANDB_ENTITY` name the place.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import files
from experiments.loggers import hyperparameters, tagged
from qusac_jax._messages import require

_FILE = "wandb.json"  # in the workdir: which run it is there, and how far it got


def check_package() -> Any:
    """The package; raises `ValueError` if it cannot be imported."""
    install = "pip install -e '.[wandb]', or leave it out"
    return require("wandb", what="--wandb", install=install)


class Wandb:
    """One run there for a run here: `eval/return` is the mean of seeds, `seed_0/eval/return` one.

    A continued run goes on in the same place. What it computes again is not sent again, as a step
    cannot be taken back there. It is the same to the bit, unless environments begin anew
    (`--resume_env=restart`) or the device does not compute the same twice.
    """

    def __init__(self, workdir: pathlib.Path, description: Mapping[str, Any]):
        """Begins, or goes on.

        Args:
            workdir: of the run; its name is the name there.
            description: config.json.

        Raises:
            ValueError: if the package is missing or the service refuses.
        """
        wandb = check_package()
        self._path = workdir / _FILE
        remedy = "remove it to begin another run there"
        known = files.read_json(self._path, remedy) if self._path.is_file() else {}
        self._last_step = int(known.get("last_step", -1))
        has_begun = self._last_step >= 0  # if not, the workdir may be another run's by now
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "qusac_jax"),
                name=workdir.name,
                dir=str(workdir),
                id=known.get("id") if has_begun else None,
                resume="allow",
                config=hyperparameters(description) | {"seed": description.get("seed")},
            )
        except wandb.Error as error:
            raise ValueError(
                f"wandb: {error}; `wandb login` first, or set WANDB_MODE=offline, which needs no "
                "account"
            ) from error
        self._video = wandb.Video
        self._note(self._last_step)

    def rewind(self, step: int) -> None:
        """Nothing: what was sent stays."""

    def log(self, rows: Sequence[Mapping[str, float]], timing: Mapping[str, float]) -> None:
        """As `Logger.log`."""
        step = int(rows[0]["step"])
        if step <= self._last_step:
            return
        by_seed = {int(row["seed"]): tagged(row) for row in rows}
        names = {name for values in by_seed.values() for name in values}
        shared = [name for name in names if all(name in values for values in by_seed.values())]
        data = {name: float(np.mean([v[name] for v in by_seed.values()])) for name in shared}
        if len(rows) > 1:
            data |= {f"seed_{s}/{n}": value for s, v in by_seed.items() for n, value in v.items()}
        self._run.log(data | {f"timing/{n}": value for n, value in timing.items()}, step=step)
        self._note(step)

    def video(self, step: int, seed: int, path: pathlib.Path) -> None:
        """As `Logger.video`."""
        del step  # wandb drops what comes at a step that it has, and a later one would not be true
        self._run.log({f"seed_{seed}/eval/episode": self._video(str(path), format="mp4")})

    def close(self) -> None:
        """As `Logger.close`."""
        self._run.finish()

    def _note(self, step: int) -> None:
        self._last_step = step
        files.write_json(self._path, {"id": self._run.id, "last_step": step})
