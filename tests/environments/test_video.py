"""Videos: that there are frames that move, and clear messages where there cannot be."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from qusac_jax import environments


def oscillate(observation):
    return np.sign(observation[-1:] + 1e-6)


@pytest.mark.slow
def test_a_video_shows_the_episode(tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "videos" / "episode.mp4"
    try:
        recording = environments.record_video(
            "pendulum", oscillate, path, seed=1, max_steps=40, gif=True
        )
    except RuntimeError as error:
        pytest.skip(f"no OpenGL here: {error}")
    frames = imageio.mimread(recording.path)
    assert len(frames) == recording.num_steps + 1 == 41
    assert frames[0].shape == (240, 320, 3)
    assert frames[0].std() > 10  # not a blank picture
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 50  # the pole has moved
    # Every action is -1 or 1: the returns differ by rho for each step.
    np.testing.assert_allclose(
        recording.episode_task_return - recording.episode_return, 0.05 * 40, rtol=1e-9
    )
    assert sorted(os.listdir(path.parent)) == ["episode.gif", "episode.mp4"]
    # 50 frames per second, of which a GIF has every fourth.
    small = imageio.mimread(path.with_suffix(".gif"))
    assert len(small) == 11
    assert small[0].shape[:2] == (240, 320)
    assert np.abs(small[0][..., :3].astype(int) - frames[0]).mean() < 10


@pytest.mark.skipif(importlib.util.find_spec("imageio_ffmpeg") is None, reason="no video packages")
def test_a_backend_that_does_not_work_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    with pytest.raises(RuntimeError, match=r"disabled: .*No OpenGL.*install EGL or OSMesa"):
        environments.record_video("pendulum", oscillate, tmp_path / "a.mp4", max_steps=2)
    assert not os.listdir(tmp_path)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in \.mp4"):
        environments.record_video("pendulum", oscillate, tmp_path / "a.gif")
    with pytest.raises(ValueError, match="max_steps"):
        environments.record_video("pendulum", oscillate, tmp_path / "a.mp4", max_steps=0)


def test_importing_and_building_need_no_display_and_leave_the_environment_alone():
    code = (
        "import os; before = dict(os.environ)\n"
        "from qusac_jax import environments\n"
        "assert dict(os.environ) == before\n"
        "environments.make('pendulum').reset()\n"
        "assert 'MUJOCO_GL' not in os.environ\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    clean["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    finished = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "GLFW" not in finished.stderr
