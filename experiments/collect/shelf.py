"""The datasets that `experiments.collect` makes of one run: which are there, which are to be made.

`datasets.json` in the run's directory has what was decided before the first dataset was written,
and a token, which is in the metadata of each dataset: by it, a process that continues knows the
run's own. The token also names the folder in which `datasets.save` writes a dataset until it is
complete.
"""

import pathlib
import secrets
import tempfile
from collections.abc import Mapping
from typing import Any

from experiments.files import read_json, write_json
from qusac_jax import datasets
from qusac_jax.datasets.loading import check_id, local_root

KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert")
METADATA_KEY = "qusac_jax_collect"  # under which the datasets' metadata say how they were made
PLAN_FILE = "datasets.json"


class Shelf:
    """The ids PREFIX/KIND-v0, and the plan of the run that fills them."""

    def __init__(
        self,
        workdir: pathlib.Path,
        prefix: str,
        chosen: Mapping[str, Any],
        *,
        exist_ok: bool = False,
    ):
        """Looks at what is there; changes nothing.

        Args:
            workdir: of the run; need not exist.
            prefix: of the ids, `NAME` or `NAMESPACE/NAME`.
            chosen: JSON-compatible values that all datasets must have been made with.
            exist_ok: whether it is fine that this run has made all of them.

        Raises:
            ValueError: if an id is malformed or taken, all have been made and reported (without
                `exist_ok`), some were made with other values, or the folder cannot be written.
        """
        self._path = workdir / PLAN_FILE
        self._prefix, self.chosen = prefix, dict(chosen)
        for kind in KINDS:
            check_id(self.id(kind))
        self._plan: dict[str, Any] | None = self._plans().get(prefix)
        taken = [self.id(kind) for kind in KINDS if not self._is_ours_to_write(kind)]
        finished = self._plan is not None and self._plan.get("finished")
        if not taken and finished and not exist_ok and all(self.is_made(kind) for kind in KINDS):
            taken = [self.id(kind) for kind in KINDS]
        if taken:
            raise ValueError(
                f"datasets {', '.join(taken)} exist already in {local_root()}; choose another "
                f"--namespace or --name, or remove them, such as {local_root() / taken[0]}"
            )
        self._check_same()
        _check_writable(local_root() / prefix)

    def id(self, kind: str) -> str:
        """The Minari id."""
        return f"{self._prefix}/{kind}-v0"

    def is_made(self, kind: str) -> bool:
        """Whether this run has made it, and completely."""
        if self._plan is None or not datasets.exists(self.id(kind)):
            return False
        metadata = read_json(self._folder(kind) / "data" / "metadata.json", "remove the folder")
        about = metadata.get(METADATA_KEY)
        return isinstance(about, dict) and about.get("token") == self._plan["token"]

    @property
    def plan(self) -> dict[str, Any] | None:
        """What `begin` noted for these values, or None before."""
        return None if self._differing() else self._plan

    def begin(self, decisions: Mapping[str, Any]) -> dict[str, Any]:
        """Notes what is to be made, before the first dataset is written.

        Args:
            decisions: JSON-compatible.

        Returns:
            The decisions with what was chosen and the token.
        """
        self._plan = {**self.chosen, **decisions, "token": secrets.token_hex(8)}
        self._write()
        return self._plan

    def finish(self) -> None:
        """Notes that all datasets are made and reported: from here on the ids are taken."""
        self._plan = {**(self._plan or {}), "finished": True}
        self._write()

    def _plans(self) -> dict[str, Any]:
        """Of all prefixes."""
        plans = read_json(self._path, "choose another workdir") if self._path.is_file() else {}
        for prefix, plan in plans.items():
            if not (isinstance(plan, dict) and isinstance(plan.get("token"), str)):
                raise ValueError(
                    f"{self._path} is damaged: {prefix!r} has no token; choose another workdir"
                )
        return plans

    def _write(self) -> None:
        plans = {**self._plans(), self._prefix: self._plan}
        write_json(self._path, plans)

    def _folder(self, kind: str) -> pathlib.Path:
        return local_root() / self.id(kind)

    def _is_ours_to_write(self, kind: str) -> bool:
        return not self._folder(kind).exists() or self.is_made(kind)

    def _differing(self) -> list[str]:
        """What was chosen otherwise when the datasets were begun."""
        plan = self._plan or self.chosen
        return [
            f"{name}: {plan.get(name)!r} there, {value!r} now"
            for name, value in self.chosen.items()
            if plan.get(name) != value
        ]

    def _check_same(self) -> None:
        differing = self._differing()
        made = [self.id(kind) for kind in KINDS if self.is_made(kind)]
        if differing and made:
            raise ValueError(
                f"datasets {', '.join(made)} were made with other values "
                f"({'; '.join(differing)}); use the same values to make the others, choose another "
                f"--namespace or --name, or remove them from {local_root()}"
            )


def _check_writable(folder: pathlib.Path) -> None:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise ValueError(
            f"the folder for datasets {str(folder)!r} cannot be written ({existing} is no folder "
            "or not writable); set the environment variable MINARI_DATASETS_PATH to another"
        ) from error
