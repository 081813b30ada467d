"""Policies as files that need nothing but JAX."""

import subprocess
import sys

import jax
import jax.export
import numpy as np
import pytest

import qusac_jax
from qusac_jax.policy import save_policy
from qusac_jax.qusac import Config, Task, init
from tests.sizes import small

# In a process of its own, where importing this package fails.
PROGRAM = """
import pathlib, sys
sys.modules["qusac_jax"] = None
import jax, jax.export, numpy as np
function = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
arguments = [np.load(path) for path in sys.argv[3:]]
np.save(sys.argv[2], function.call(*arguments))
print(function.platforms)
"""
OBSERVATIONS = np.linspace(-3.0, 3.0, 20, dtype=np.float32).reshape(5, 4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy"
    config, task = small(Config(num_members=2)), Task(4, 2, lambda *_: np.zeros((), bool))
    make = lambda key: init(key, config=config, task=task).actor
    actor = jax.vmap(make)(jax.random.split(jax.random.key(0), 2))
    save_policy(
        path,
        actor,
        hidden=config.actor_hidden,
        action_low=(-2.0, 0.0),
        action_high=(2.0, 1.0),
        metadata={"env": "x"},
    )
    return path


def called_elsewhere(file, tmp_path, *arguments):
    """What a fresh process computes with the file, and its platforms."""
    names = [str(tmp_path / f"argument_{i}.npy") for i in range(len(arguments))]
    for name, argument in zip(names, arguments, strict=True):
        np.save(name, argument)
    out = str(tmp_path / "out.npy")
    command = [sys.executable, "-c", PROGRAM, str(file), out, *names]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return np.load(out), result.stdout


@pytest.mark.slow
def test_the_file_gives_the_same_actions_without_the_library(saved, tmp_path):
    file = qusac_jax.export_policy(saved, tmp_path / "policy.stablehlo", seed_index=1)
    actions, platforms = called_elsewhere(file, tmp_path, OBSERVATIONS)
    policy = qusac_jax.load_policy(saved, seed_index=1)
    np.testing.assert_array_equal(actions, policy(OBSERVATIONS))
    assert (actions != qusac_jax.load_policy(saved)(OBSERVATIONS)).any()
    assert all(platform in platforms for platform in ("cpu", "cuda", "tpu"))
    call = jax.export.deserialize(bytearray(file.read_bytes())).call  # any number of observations
    np.testing.assert_allclose(call(OBSERVATIONS[:1]), actions[:1], rtol=1e-5)


def test_the_file_draws_the_same_actions(saved, tmp_path):
    file = qusac_jax.export_policy(saved, tmp_path / "policy.stablehlo", is_random=True)
    key = jax.random.key(3)
    actions, _ = called_elsewhere(file, tmp_path, OBSERVATIONS, jax.random.key_data(key))
    policy = qusac_jax.load_policy(saved)
    np.testing.assert_allclose(actions, policy(OBSERVATIONS, key), rtol=1e-6, atol=1e-7)
    assert np.abs(actions - policy(OBSERVATIONS)).max() > 0.01


def test_by_default_it_lies_in_the_run(saved):
    assert qusac_jax.export_policy(saved).parent == saved


def test_what_cannot_be_exported_is_named(saved, tmp_path):
    with pytest.raises(ValueError, match="holds no complete policy"):
        qusac_jax.export_policy(tmp_path)
    with pytest.raises(ValueError, match="cannot be written"):
        qusac_jax.export_policy(saved, tmp_path / "no" / "such" / "folder")
    (tmp_path / "a_folder").mkdir()
    with pytest.raises(ValueError, match="cannot be written"):
        qusac_jax.export_policy(saved, tmp_path / "a_folder")
    with pytest.raises(ValueError, match="output 5 is no path"):
        qusac_jax.export_policy(saved, 5)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["a_folder"]


def test_home_is_found(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert qusac_jax.export_policy(f"~/{saved.name}").parent == saved
    monkeypatch.setenv("HOME", str(tmp_path))
    assert qusac_jax.export_policy(saved, "~/mine.stablehlo") == tmp_path / "mine.stablehlo"
