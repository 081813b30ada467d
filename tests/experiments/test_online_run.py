"""What the loop stores and when it fits, against environments stepped by hand."""

import types

import jax
import numpy as np
import pytest

from experiments import online
from experiments.run_directory import RunDirectory
from experiments.training import online_run, progress
from experiments.training.setup import Setup
from qusac_jax import environments
from qusac_jax.qusac.config import Config
from tests.sizes import small
from tests.tiny import ENV, ONLINE

SEEDS = [0, 1]
CONFIG = small(Config(num_members=2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 60 steps, and the steps at which its model was fitted."""
    setup = Setup(
        RunDirectory(tmp_path_factory.mktemp("runs") / "run", {"env": ENV}),
        ENV,
        CONFIG,
        environments.spec(ENV).task("never"),
        seeds=SEEDS,
        num_steps=60,
        action_cost=0.1,
        eval_every=60,
        eval_episodes=1,
        checkpoint_every=60,
        reward_threshold=0.5,
        devices=jax.devices()[:1],
    )
    run = online_run.OnlineRun(setup)
    fitted, refresh = [], run._refresh

    def noted(state):
        fitted.append(run.step)
        return refresh(state)

    run._refresh = noted
    assert run.train(lambda: None) is None
    return run, fitted


def test_D_holds_true_successors_and_ends_but_no_time_limits(trained):
    run, _ = trained
    stored = jax.tree.map(np.asarray, run._state.replay.data)
    env = environments.VectorEnvironment(ENV, SEEDS, action_cost=0.1)
    observation = env.reset()
    ends = np.zeros(2, int)
    for step in range(60):
        result = env.step(stored.action[:, step])
        np.testing.assert_array_equal(stored.observation[:, step], observation)
        np.testing.assert_array_equal(stored.reward[:, step], result.reward)
        np.testing.assert_array_equal(stored.next_observation[:, step], result.next_observation)
        np.testing.assert_array_equal(stored.terminated[:, step], result.terminated)
        observation = result.observation
        ends += [result.terminated.sum(), (result.truncated & ~result.terminated).sum()]
    assert (ends > 0).all()  # episodes of both kinds were among them


def test_the_model_is_fitted_after_the_warm_up_and_every_F_steps(trained):
    _, fitted = trained
    assert fitted == list(range(8, 61, 4))


def test_what_passes_the_bound_is_reported():
    rows = [
        {"seed": float(seed), "max_sqrt_u": largest, "sqrt_u_bound": bound}
        for seed, (largest, bound) in enumerate([(9.9, 10.0), (10.3, 10.0), (1.0, float("nan"))])
    ]
    (message,) = progress.exceeded_bounds(500, rows)
    assert "step 500, seed 1: sqrt(U) reaches 10.3, 3.0% more than the 10" in message
    assert not progress.exceeded_bounds(0, rows)  # nothing has been learned


def test_the_bar_says_what_it_waits_for():
    shown = progress.Progress(10, is_first=True)
    said = []
    with shown.shown(0):
        shown._bar = types.SimpleNamespace(set_description_str=said.append)
        with shown.busy("fitting the model"):
            assert said == ["fitting the model"]
        assert said == ["fitting the model", ""]
    with shown.busy("fitting the model"):
        assert len(said) == 2


@pytest.mark.slow
def test_a_finished_run_that_is_made_longer_is_as_if_it_had_been_so_from_the_start(
    tiny_run, tmp_path
):
    command = ["online", *ONLINE, f"--workdir={tmp_path / 'run'}"]
    assert online.main([*command, "--num_steps=70"]) == 0
    assert online.main(command) == 0
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    # It was evaluated at 70 steps, which the longer run is not.
    kept = [line for line in lines if not line.startswith("70.0,")]
    assert len(kept) == len(lines) - 2
    assert kept == (tiny_run / "metrics.csv").read_text().splitlines()


def test_what_is_left_is_said_once(capsys):
    shown = progress.Progress(1_000, is_first=True)
    shown.announce(None, 300, "learning steps", without="evaluations")
    for step in (400, 500):
        shown.announce(2.0, step, "learning steps", without="evaluations")
    expected = "2 learning steps/s here: about 5 min are left without evaluations\n"
    assert capsys.readouterr().out == expected


def test_a_line_is_of_the_mean_over_seeds_and_of_the_first_process(capsys):
    names = ("eval_return", "eval_task_return", "eval_score", "mean_q", "mean_sqrt_u", "alpha")
    rows = [
        dict.fromkeys(names, value)
        | {"step": 40.0, "seed": 0.0, "max_sqrt_u": 1.0, "sqrt_u_bound": 2.0}
        for value in (1.0, 4.0)
    ]
    progress.Progress(80, is_first=False).tell(rows, 2.0, 30.0)
    assert capsys.readouterr().out == ""
    progress.Progress(80, is_first=True).tell(rows, 2.0, 30.0)
    assert capsys.readouterr().out == (
        "step 40: return 2.5 (task 2.5), score 2.5 %, Q 2.50, sqrt(U) 2.5, alpha 2.5; "
        "2.0 steps/s, 00:30 left\n"
    )
