"""Training in environments with bugs, or with state that cannot be saved, as a person runs it."""

import json
import types

import gymnasium
import numpy as np
import pytest

from experiments import online
from experiments.training.checkpoints import RunCheckpoints
from qusac_jax.checkpoint import Restored
from tests.environments import hidden_state
from tests.run_files import metrics_rows

FLAGS = [
    "--termination=never",
    "--num_steps=40",
    "--eval_every=20",
    "--eval_episodes=1",
    "--checkpoint_every=20",
    "--config.warmup_steps=100",  # nothing is learned, so little is compiled
    "--config.fit_every=10",
    "--config.rollouts_per_step=3",
    "--config.rollout_length=2",
    "--config.updates_per_step=1",
    "--config.replay_capacity=128",
    "--config.batch_size=8",
    "--config.num_members=2",
    "--config.actor_hidden=(8,)",
    "--config.critic_hidden=(8,)",
    "--config.unet_hidden=(8,)",
    "--config.dynamics.hidden=(8,)",
    "--config.dynamics.max_epochs=2",
]


class Leaving(hidden_state.OwnState):
    """Ends the program in the step that comes after so many."""

    steps = 0

    def move(self, action):
        self.steps += 1
        if self.steps == 60:
            raise SystemExit(0)


class Ending(hidden_state.ClassCounter):
    """Ends its episodes, and cannot be saved."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, float(np.tanh(reward)), bool(observation[0] > 3), False, info


@pytest.fixture
def run(tmp_path, capsys):
    names = []

    def train(env_class, *arguments):
        name = f"{env_class.__name__}-v0"
        if name not in names:
            gymnasium.register(name, entry_point=env_class, max_episode_steps=10)
            names.append(name)
        workdir = tmp_path / "run"
        flags = [*FLAGS, f"--env=gym:{name}", f"--workdir={workdir}", *arguments]
        code = online.main(["online", *flags])
        out, err = capsys.readouterr()
        return code, out, err, workdir

    yield train
    for name in names:
        del gymnasium.registry[name]


@pytest.mark.slow
def test_a_bug_ends_the_run_in_one_line_and_leaves_the_checkpoint(run):
    code, _, err, workdir = run(Leaving, "--num_steps=80")
    assert code == 2
    warning, line = err.splitlines()
    assert "num_steps is 80 and config.warmup_steps 100, so nothing is learned" in warning
    assert "environment 'gym:Leaving-v0': step failed at step 60 (step 10 of its episode)" in line
    assert "SystemExit: 0" in line
    assert "At step 59 of the run; the last good checkpoint is 40 in" in line
    assert (workdir / "checkpoints" / "40" / "checksums.json").is_file()
    assert not (workdir / "summary.json").exists()


@pytest.mark.slow
def test_what_cannot_be_saved_is_refused_or_begins_anew(run):
    code, _, err, workdir = run(Ending)
    assert code == 2
    assert "it changes the class attribute 'count' of Ending" in err
    assert not workdir.exists()

    code, out, err, _ = run(Ending, "--resume_env=restart")
    assert code == 0, err
    assert "with new episodes" not in out
    assert "warning: step 20: the termination 'never' disagrees with the data: of 20 tr" in err
    assert err.count("disagrees") == 1
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["episodes_began_anew_at"] == []
    first = summary["termination_disagreements"]
    assert first["transitions"] == 40
    assert first["missed"][0] > 0
    assert first["invented"] == [0]

    code, _, err, _ = run(Ending, "--num_steps=80")
    assert code == 2
    code, out, err, _ = run(Ending, "--resume_env=restart", "--num_steps=60")
    assert code == 0, err
    assert "continuing at step 40, with new episodes (--resume_env=restart)" in out
    assert "disagrees" not in err
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["episodes_began_anew_at"] == [40]
    assert summary["termination_disagreements"]["transitions"] == 60
    assert summary["termination_disagreements"]["missed"][0] >= first["missed"][0]
    assert [float(row["step"]) for row in metrics_rows(workdir)] == [0, 20, 40, 60]


@pytest.mark.slow
def test_checkpoints_without_environments_are_not_continued_exactly(run):
    assert run(hidden_state.OwnState, "--resume_env=restart")[0] == 0
    code, _, err, _ = run(hidden_state.OwnState, "--num_steps=60")
    assert code == 2
    assert "resume_env is 'exact', but checkpoint 40" in err


def test_every_restart_is_remembered(tmp_path):
    nothing = lambda *_: None
    directory = types.SimpleNamespace(checkpoints=tmp_path, rewind=nothing, accept=nothing)
    setup = types.SimpleNamespace(
        directory=directory,
        processes=types.SimpleNamespace(is_first=True),
        num_steps=80,
        keep_checkpoints=2,
        restarts_env=True,
    )
    checkpoints = RunCheckpoints(setup)
    checkpoints.accept(Restored(60, None, None, {"metrics_size": 0, "restarts": [20, 40]}))
    assert checkpoints.summary() == {"episodes_began_anew_at": [20, 40, 60]}
    checkpoints.close()
