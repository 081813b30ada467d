"""Small datasets whose numbers say where they are from: observation t of episode e is 100 e + t."""

import h5py
import numpy as np
import pytest

from qusac_jax import datasets


@pytest.fixture
def d4rl_arrays():
    """Three episodes of 4, 3 and 2 steps: terminated, cut by the time limit, unfinished."""
    episode = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    step = np.array([0, 1, 2, 3, 0, 1, 2, 0, 1])
    number = np.float32(100 * episode + step)
    return {
        "observations": number[:, None] + np.float32([0, 0.25]),
        "next_observations": number[:, None] + np.float32([1, 1.25]),
        "actions": np.linspace(-1, 1, 9, dtype=np.float32)[:, None],
        "rewards": np.float32([1, 2, 3, 4, 10, 20, 30, 7, 7]),
        "terminals": np.array([0, 0, 0, 1, 0, 0, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 0, 1, 0, 0], bool),
    }


@pytest.fixture
def write_hdf5(tmp_path):
    """Writes arrays as an HDF5 file and returns its path."""

    def write(arrays, name="data.hdf5", **options):
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            for key, value in arrays.items():
                file.create_dataset(key, data=value, **options)
        return path

    return write


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder that Minari uses for its datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return tmp_path / "minari"


@pytest.fixture
def episodes():
    """Episodes of 4, 3 and 2 steps: terminated, truncated, unfinished; O = 3, A = 1."""
    made = []
    for index, length in enumerate((4, 3, 2)):
        last = np.arange(length) == length - 1
        made.append(
            datasets.Episode(
                observation=(100 * index + np.arange(length + 1))[:, None] + np.float32([0, 0, 0]),
                action=np.linspace(-1, 1, length, dtype=np.float32)[:, None],
                reward=np.arange(length, dtype=np.float32) + index,
                terminated=last & (index == 0),
                truncated=last & (index == 1),
            )
        )
    return made
