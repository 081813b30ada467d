"""Videos: that there are frames that move, and clear messages where there cannot be."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from qusac_jax import environments
from qusac_jax.environments import video


def oscillate(observation):
    return np.sign(observation[-1:] + 1e-6)


@pytest.fixture
def opengl():
    """Skips where no library renders; found without this package, whose faults are to be seen."""
    code = "import mujoco; mujoco.GLContext(64, 64).make_current()"
    for backend in video.BACKENDS:
        variables = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
        command = [sys.executable, "-c", code]
        if subprocess.run(command, env=variables, capture_output=True).returncode == 0:
            return
    pytest.skip("no OpenGL here")


@pytest.mark.slow
@pytest.mark.usefixtures("opengl")
def test_a_video_shows_the_episode(tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "videos" / "episode.mp4"
    recording = environments.record_video(
        "pendulum", oscillate, path, seed=1, max_steps=40, gif=True
    )
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


def tip(frame):
    """Where the drawn pendulum points: cosine and sine of its angle."""
    rows, columns = np.nonzero(frame.mean(-1) > 128)
    return (31.5 - rows.mean()) / 24, (columns.mean() - 47.5) / 24


@pytest.mark.slow
def test_a_video_shows_the_states_of_an_environment_on_the_device(tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    name, path = "functional:tests.pendulum:Drawn", tmp_path / "a.mp4"
    push = lambda observation: np.sign(observation[2:] + 1e-6)
    recording = environments.record_video(name, push, path, seed=4, action_cost=0.1)
    alone = environments.vector(name, [4], action_cost=0.1)
    seen = [np.array(alone.streams.observation[0])]
    for _ in range(recording.num_steps):
        result = alone.step(push(seen[-1])[None])
        seen.append(result.next_observation[0])  # the last is where this episode ends
    assert recording.num_steps == len(seen) - 1 == 20
    returned = recording.episode_return, recording.episode_task_return
    ended = result.episode_return[0], result.episode_task_return[0]
    np.testing.assert_allclose(returned, ended, rtol=1e-5)
    frames = imageio.mimread(path)
    np.testing.assert_allclose([tip(frame) for frame in frames], np.array(seen)[:, :2], atol=0.1)


@pytest.mark.slow
def test_what_draw_must_return_is_said(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    name = "functional:tests.pendulum:DrawnInShares"
    with pytest.raises(
        RuntimeError, match=r"uint8 \[H, W, 3\], got float64.*correct draw of 'func"
    ):
        environments.record_video(name, lambda observation: [0.0], tmp_path / "a.mp4", max_steps=1)
    assert not os.listdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("simulator", ["mjx", "spring"])
def test_simulators_of_the_device_are_drawn(simulator, tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "a.mp4"
    name = f"brax:inverted_pendulum:{simulator}"
    recording = environments.record_video(name, lambda observation: [0.2], path, seed=1)
    frames = imageio.mimread(path)
    assert len(frames) == recording.num_steps + 1 == recording.episode_return + 1 > 4
    assert frames[0].shape == (240, 320, 3)
    assert frames[0].max() > 100  # not a blank picture
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 50  # the pole has fallen


@pytest.mark.skipif(importlib.util.find_spec("imageio_ffmpeg") is None, reason="no video packages")
def test_a_backend_that_does_not_work_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    with pytest.raises(RuntimeError, match=r"disabled: .*No OpenGL.*install EGL or OSMesa"):
        environments.record_video("pendulum", oscillate, tmp_path / "a.mp4", max_steps=2)
    assert not os.listdir(tmp_path)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in \.mp4"):
        environments.record_video("pendulum", oscillate, tmp_path / "a.gif")
    name = "functional:tests.pendulum:Pendulum"
    with pytest.raises(ValueError, match=r"'functional:.*' cannot be drawn; define draw\(state\)"):
        environments.record_video(name, oscillate, tmp_path / "a.mp4")
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
