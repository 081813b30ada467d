"""Evaluations whose episodes are played in other processes while the agent learns on."""

import dataclasses
import time

import jax
import numpy as np
import pytest

from experiments import evaluation
from experiments.run_directory import RunDirectory
from experiments.training import online_run
from experiments.training.setup import Setup
from qusac_jax import environments
from qusac_jax.qusac.config import Config
from tests.sizes import small

ENV = "gym:tests.short_env:Short-v0"
NUM_STEPS = 60
EVERY = 20
CONFIG = small(Config(num_members=2))


@pytest.fixture
def make(tmp_path):
    """Makes runs in whose processes environments step, and closes them."""
    made = []

    def run(env_processes=2, is_learning=False, **other):
        setup = Setup(
            RunDirectory(tmp_path / str(len(made)), {"env": ENV}),
            ENV,
            CONFIG if is_learning else dataclasses.replace(CONFIG, warmup_steps=NUM_STEPS + 1),
            environments.spec(ENV).task("never"),
            seeds=[0, 1],
            action_cost=0.1,
            reward_threshold=0.5,
            devices=jax.devices()[:1],
            env_processes=env_processes,
            **{
                "num_steps": NUM_STEPS,
                "eval_every": EVERY,
                "eval_episodes": 2,
                "checkpoint_every": NUM_STEPS,
                **other,
            },
        )
        made.append(online_run.OnlineRun(setup))
        return made[-1]

    yield run
    for one in made:
        one.close()


def test_rewards_of_evaluations_are_discounted_as_the_agent_does(make):
    run = make(env_processes=1)
    actor, evaluator = run._state.actor, run._evaluator
    before = evaluator.envs.state()
    found = evaluator.run(actor)
    evaluator.envs.set_state(before)
    act = lambda observation: evaluator._act(actor, observation)
    weighed = evaluation.evaluate(evaluator.envs, act, 2, CONFIG.discount)
    np.testing.assert_allclose(found.discounted_return, weighed.discounted_return, rtol=1e-5)
    assert not np.allclose(found.discounted_return, found.episode_return, rtol=1e-3)


def test_no_two_environments_of_a_run_have_the_same_seed(make, monkeypatch):
    asked = []
    vector = environments.vector

    def noted(name, env_seeds, **options):
        asked.append(list(env_seeds))
        return vector(name, env_seeds, **options)

    monkeypatch.setattr(environments, "vector", noted)
    run = make(env_processes=1)
    for step in (20, 40):
        run.step = step
        run._restart_environments()
    # Of training and of two episodes of each of two evaluations, thrice.
    assert sorted(map(len, asked)) == [2] * 3 + [4] * 3
    every = [seed for some in asked for seed in some]
    assert len(set(every)) == len(every)


def metrics(run):
    path = run._directory.path / "metrics.csv"
    return path.read_text() if path.exists() else ""


def steps_in(run):
    return [float(line.split(",")[0]) for line in metrics(run).splitlines()[1::2]]


def wait_for(run, step):
    """Until the run is there; an episode that would wait forever fails its test."""
    limit = time.monotonic() + 60.0
    while run.step < min(step, NUM_STEPS):
        assert time.monotonic() < limit
        time.sleep(0.001)


def before_episodes(run, do):
    play = run._evaluator._play

    def later(actor):
        do()
        return play(actor)

    run._evaluator._play = later


def test_episodes_in_this_process_are_logged_at_once(make):
    run = make(env_processes=1)
    advance, written = run._advance, {}

    def noted():
        written[run.step] = steps_in(run)
        return advance()

    run._advance = noted
    assert run.train(lambda: None) is None
    assert written[0] == [0.0]
    assert written[EVERY] == [0.0, EVERY]


@pytest.mark.slow
def test_learning_goes_on_while_episodes_are_played_with_the_same_results(make):
    here, elsewhere = (make(count, is_learning=True) for count in (1, 2))
    assert here.train(lambda: None) is None
    advance, written, begun_at = elsewhere._advance, {}, []

    def wait():
        begun_at.append(elsewhere.step)
        wait_for(elsewhere, begun_at[-1] + 3)

    def noted():
        written[elsewhere.step] = steps_in(elsewhere)
        return advance()

    before_episodes(elsewhere, wait)
    elsewhere._advance = noted
    assert elsewhere.train(lambda: None) is None
    assert len(begun_at) == NUM_STEPS // EVERY + 1
    assert written[EVERY + 2] == [0.0]  # its episodes have not begun
    assert metrics(elsewhere) == metrics(here)


@pytest.mark.slow
def test_a_checkpoint_holds_the_evaluation_before_it(make):
    run = make(checkpoint_every=EVERY)
    before_episodes(run, lambda: time.sleep(0.05))
    save, sizes = run._checkpoints.save, {}

    def noted(step, state, host, metadata):
        sizes[step] = steps_in(run)[-1]
        save(step, state, host, metadata)

    run._checkpoints.save = noted
    assert run.train(lambda: None) is None
    assert sizes == {step: float(step) for step in (EVERY, 2 * EVERY, NUM_STEPS)}


@pytest.mark.slow
def test_an_error_in_training_loses_no_evaluation(make):
    run = make()
    advance = run._advance
    before_episodes(run, lambda: wait_for(run, EVERY + 1 if run.step >= EVERY else 1))

    def failing():
        if run.step == EVERY + 1:
            raise ValueError("training diverged")
        return advance()

    run._advance = failing
    with pytest.raises(ValueError, match="training diverged"):
        run.train(lambda: None)
    assert steps_in(run) == [0.0, EVERY]


@pytest.mark.slow
def test_an_error_in_an_episode_ends_the_run(make):
    run = make()

    def fail():
        if run.step:
            wait_for(run, EVERY + 3)
            raise environments.FaultyEnvironmentError("the simulation broke")

    before_episodes(run, fail)
    with pytest.raises(ValueError, match=r"the simulation broke\. At step 20 of.*no checkpoint"):
        run.train(lambda: None)
    assert steps_in(run) == [0.0]


@pytest.mark.slow
def test_weights_of_an_evaluation_are_its_own(make):
    run = make()
    seen = []
    run._evaluator._play = seen.append
    actor = run._state.actor
    expected = jax.tree.map(np.array, actor)
    run._evaluator.begin(actor).result()
    jax.tree.map(lambda x: x.delete(), actor)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, seen[0]), expected)
