"""What computes a run: versions of packages, commit, device."""

import importlib.metadata
import pathlib
import subprocess
from typing import Any

import jax

import qusac_jax

_PACKAGES = [
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "distrax",
    "gymnasium",
    "shimmy",
    "dm_control",
    "mujoco",
    "orbax-checkpoint",
    "numpy",
]


def describe_program() -> dict[str, Any]:
    """Versions, commit and device, for config.json."""
    versions = {"qusac_jax": qusac_jax.__version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    device = jax.devices()[0]
    return {
        "versions": versions,
        "git_commit": _git_commit(),
        "device": f"{len(jax.devices())} x {device.platform} ({device.device_kind})",
    }


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
