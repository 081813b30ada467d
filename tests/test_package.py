"""The public face of the package."""

import subprocess
import sys

import pytest

import qusac_jax

HEAVY = ("flax", "distrax", "orbax", "gymnasium", "mujoco", "h5py", "matplotlib")


def test_every_public_name_is_there_on_demand():
    for name in qusac_jax.__all__:
        assert getattr(qusac_jax, name) is not None
        assert name in dir(qusac_jax)
    with pytest.raises(AttributeError, match="no attribute 'qusack'"):
        _ = qusac_jax.qusack


def test_modules_of_the_tabular_half_come_with_it():
    program = "from qusac_jax import tabular; print(tabular.environments.deep_sea(3).num_states)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "9", result.stdout + result.stderr


def test_the_tabular_half_does_not_import_the_deep_one():
    program = (
        "import sys, qusac_jax, qusac_jax.ube, qusac_jax.posterior\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
