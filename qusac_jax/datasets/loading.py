"""From what a user passes as a dataset to checked arrays."""

import importlib.util
import os
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from qusac_jax._messages import did_you_mean
from qusac_jax.datasets import checks, d4rl, minari_files
from qusac_jax.datasets.dataset import Dataset
from qusac_jax.datasets.scores import d4rl_task

MIN_TRANSITIONS = 3  # two to fit to and one held out
CONNECT_SECONDS = 10.0  # to wait for a sign of life of the server that has Minari's datasets
MINARI_ID = re.compile(r"(?:[-\w]{2,}(?:/[-\w]+)*/)?[-\w]+-v\d+")


def load(
    dataset: str | os.PathLike[str],
    *,
    action_bounds: tuple[Any, Any] | None = None,
) -> Dataset:
    """Reads a dataset, checks all of it, and writes nothing but what it has to download.

    Args:
        dataset: a path if there is such a file or folder (a D4RL HDF5 file, or a folder of a
            Minari dataset), else a Minari id such as `mujoco/hopper/medium-v0`. An id is looked
            up in the folder that the environment variable `MINARI_DATASETS_PATH` names (default
            `~/.minari/datasets`), and downloaded if it is not there.
        action_bounds: (low, high) of the actions in a D4RL file, scalars or `[A]` each; by
            default (-1, 1). Minari's datasets bring their own.

    Returns:
        The `Dataset`, of at least 3 transitions, with actions in [-1, 1].

    Raises:
        ValueError: if there is no such dataset here or to download, or something is wrong with
            it; the message names the file, the key, the first bad row and the remedy.
    """
    if not isinstance(dataset, str | os.PathLike):
        raise ValueError(f"dataset must be a path or a Minari id, got {dataset!r}")
    name = os.fspath(dataset)
    kind, path = _find(name)
    if kind == "minari" and action_bounds is not None:
        raise ValueError(
            f"action_bounds: {name!r} is a Minari dataset, which brings its own; leave them out"
        )
    if kind == "minari":
        loaded = minari_files.read(path, name)
    else:
        loaded = d4rl.read(path, name, action_bounds)
    if loaded.num_transitions < MIN_TRANSITIONS:
        raise ValueError(
            f"dataset: {loaded.path} has {loaded.num_transitions} usable transitions (and "
            f"{loaded.num_dropped} without a next observation); at least {MIN_TRANSITIONS} are "
            "needed to fit to some and hold some out"
        )
    return loaded


def local_root() -> Path:
    """The folder in which Minari keeps its datasets; it need not exist."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return Path(root) if root is not None else Path.home() / ".minari" / "datasets"


def exists(dataset_id: str) -> bool:
    """Whether the Minari dataset is on this computer, and complete."""
    folder = minari_files.data_folder(local_root() / dataset_id)
    return folder is not None and minari_files.is_complete(folder)


def check_id(dataset_id: str) -> None:
    """Raises `ValueError` unless this can be the id of a Minari dataset."""
    if not MINARI_ID.fullmatch(dataset_id):
        raise ValueError(
            f"dataset: {dataset_id!r} is no Minari id; write NAMESPACE/NAME-vN, "
            "such as 'mujoco/hopper/medium-v0', with two letters or more in the first part"
        )


def _find(name: str) -> tuple[str, Path]:
    """ "minari" and the folder with its files, or "d4rl" and the file."""
    try:
        path = Path(name).expanduser()
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:  # no such user, a name that is too long
        raise ValueError(f"dataset: {name!r} is no path ({error}); pass another") from error
    if is_file:
        folder = minari_files.data_folder(path.parent)
        inside = path.name in (minari_files.DATA_FILE, minari_files.METADATA_FILE)
        return ("minari", folder) if inside and folder is not None else ("d4rl", path)
    folder = minari_files.data_folder(path)
    if folder is not None:
        return "minari", folder
    if not MINARI_ID.fullmatch(name):
        what = "is a folder without a Minari dataset" if path.is_dir() else "does not exist"
        raise ValueError(
            f"dataset: {name!r} {what}, and is no Minari id such as 'mujoco/hopper/medium-v0' "
            "either; pass an id, a D4RL HDF5 file, or a folder with data/metadata.json"
        )
    return "minari", _folder_of_id(name)


def _folder_of_id(name: str) -> Path:
    """The folder with the files of a Minari dataset, which is downloaded where it is not whole."""
    place = local_root() / name
    folder = minari_files.data_folder(place)
    if folder is None and d4rl_task(name) is not None:
        raise ValueError(
            f"dataset: {name!r} is D4RL's name, and D4RL's datasets are files; pass the path of "
            f"{name}.hdf5 (Minari's datasets of these tasks are others: other policies on v5)"
        )
    if folder is not None:
        minari_files.check_format(folder / minari_files.METADATA_FILE)
    if folder is None or not (folder / minari_files.DATA_FILE).is_file():
        if folder is None and any(place.glob(f"**/{minari_files.METADATA_FILE}")):
            raise ValueError(
                f"dataset: {name!r} is no dataset, but has some in it ({place}); pass the id of one"
            )
        _download(name, again=place.exists())  # by a download cut short
        folder = minari_files.data_folder(place)
    if folder is None:
        raise ValueError(f"dataset: {name!r} came without {minari_files.METADATA_FILE}; try again")
    return folder


def _download(dataset_id: str, *, again: bool) -> None:
    """Has Minari download a dataset, after a look whether it can.

    Raises:
        ValueError: whatever goes wrong: one message, within `CONNECT_SECONDS` if the server does
            not answer.
    """
    root = local_root()
    local = [
        folder.parent.parent.relative_to(root).as_posix()
        for folder in root.glob(f"**/data/{minari_files.METADATA_FILE}")
        if not folder.parent.parent.name.startswith(".")  # `save` has not finished it
    ]
    missing = (
        f"dataset: {dataset_id!r}{did_you_mean(dataset_id, local)} is not on this computer "
        f"(looked in {root})"
    )
    elsewhere = f"download it on another computer and copy its folder to {root / dataset_id}"
    if os.environ.get("MINARI_REMOTE", "").startswith("gcp://"):
        package, extra, server = "google.cloud.storage", "gcs", "https://storage.googleapis.com"
    else:
        package, extra = "huggingface_hub", "hf"
        server = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    minari = checks.require("minari")
    if not _is_installed(package):
        raise ValueError(
            f"{missing}, and downloading needs {package}: "
            f'pip install "minari[{extra}]", or {elsewhere}'
        )
    problem = _unreachable(server)
    if problem:
        raise ValueError(
            f"{missing}, and {server} cannot be reached ({problem}); connect to a network, "
            f"or {elsewhere}"
        )
    try:
        minari.download_dataset(dataset_id, force_download=again)
    except Exception as error:  # of Minari, the hub, the network, the disk
        raise ValueError(
            f"{missing}, and its download failed ({type(error).__name__}: {error}); check the id "
            f"with `minari list remote`, try again, or {elsewhere}"
        ) from error


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def _unreachable(server: str) -> str | None:
    """Why a server does not answer, or None if it does; waits `CONNECT_SECONDS` at most."""
    found: list[str | None] = []

    def connect() -> None:
        try:
            urllib.request.urlopen(server, timeout=CONNECT_SECONDS).close()
            found.append(None)
        except urllib.error.HTTPError:  # an answer, even if it is a refusal
            found.append(None)
        except (OSError, ValueError) as error:
            found.append(str(error))

    # A thread, because the timeout does not cover the search for the server's address.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return found[0] if found else f"no answer within {CONNECT_SECONDS:g} seconds"
