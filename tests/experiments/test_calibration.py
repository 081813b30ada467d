"""Values and their uncertainty against returns: by hand, and from a saved run."""

import csv
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.calibration import command, comparison
from experiments.calibration.comparison import Returns
from qusac_jax import environments, qusac
from qusac_jax.qusac import losses, model, multistep, networks
from qusac_jax.task import Transition
from tests.short_env import MAX_STEPS
from tests.sizes import small
from tests.tasks import never
from tests.tiny import ENV

TASK = qusac.Task(observation_size=3, action_size=1, termination=never)


def test_returns_are_cut_off_where_little_is_left_or_at_the_time_limit():
    assert comparison.horizon(0.99, 1000) == 390  # 0.99^390 = 0.0199
    assert comparison.horizon(0.99, 200) == 200
    assert comparison.horizon(0.0, 1000) == 1


def test_returns_of_states_along_episodes_by_hand():
    # Two episodes of one seed: six steps up to the time limit, and two to the task's end.
    reward = np.array([[1, 1], [2, 8], [3, 0], [4, 0], [5, 0], [6, 0]], float)[:, None]
    observation = np.stack([np.arange(12.0).reshape(6, 1, 2), np.zeros((6, 1, 2))], axis=-1)
    episodes = comparison._Episodes(
        observation, reward, 0 * reward, np.array([[6, 2]]), np.array([[False, True]])
    )
    states, returns = comparison._points(episodes, 3, length=2, discount=0.5, share=0.1)
    # Steps 0, 2, 4 of the first; 0, 0 (rounded from 0.5), 1 of the second, where 0 counts once.
    np.testing.assert_allclose(returns, [[1 + 1, 1 + 4, 3 + 2, np.nan, 5 + 3, 8]])
    np.testing.assert_allclose(states[0, :, 0], [0, 1, 4, 1, 8, 3])
    # Of an episode that its time limit ends, no state near the end has a known return.
    states, returns = comparison._points(episodes, 2, length=4, discount=0.5, share=0.1)
    np.testing.assert_allclose(returns[0, 2], 3 + 2 + 5 / 4 + 6 / 8)
    # Where each has one state only, or the same as before, there is nothing to roll out again.
    states, returns = comparison._points(episodes, 3, length=6, discount=0.5, share=0.1)
    assert states.shape == (1, 4, 2)
    np.testing.assert_array_equal(np.isnan(returns), [[False, False, True, False]])

    # Nor is anything known of one that was cut off before, by its environment.
    cut = episodes._replace(terminated=np.zeros((1, 2), bool))
    _, returns = comparison._points(cut, 3, length=4, discount=0.5, share=0.1)
    np.testing.assert_array_equal(np.isnan(returns), [[False, True] * 3])
    with pytest.raises(ValueError, match="all 2 episodes are cut off within the 9 steps"):
        comparison._points(cut, 3, length=9, discount=0.5, share=0.1)

    # Bonuses: the first as it is, a tenth of those that follow.
    episodes = episodes._replace(reward=0 * reward, bonus=reward)
    _, returns = comparison._points(episodes, 3, length=2, discount=0.5, share=0.1)
    np.testing.assert_allclose(returns, [[1.1, 1.4, 3.2, np.nan, 5.3, 8]])


def test_episodes_have_their_rewards_with_action_cost_and_the_ends_of_the_task(monkeypatch):
    def draw(state, observation, key, step, *, config, task):
        return jnp.full((8, 1), 0.2), jnp.full(8, 3.0)

    monkeypatch.setattr(comparison, "_draw", draw)
    saved = types.SimpleNamespace(
        seeds=[0, 1], spec=environments.spec(ENV, 0.5), config=None, task=None
    )
    keys = jax.random.split(jax.random.key(0), 2)
    episodes = comparison._run_episodes(saved, jnp.zeros(2), 8, 0, keys)
    running = np.arange(len(episodes.reward))[:, None, None] < episodes.steps
    # 1 - position^2 - 0.5 * 0.2^2, the position being what the next step begins with.
    expected = 1 - episodes.observation[1:, ..., 0] ** 2 - 0.02
    np.testing.assert_allclose(
        episodes.reward[:-1][running[1:]], expected[running[1:]], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(episodes.reward[~running], 0)
    np.testing.assert_array_equal(episodes.bonus, np.where(running, 3.0, 0.0))
    assert set(episodes.terminated.ravel()) == {False, True}
    np.testing.assert_array_equal(episodes.terminated, episodes.steps < MAX_STEPS)


def test_values_have_the_bonus_of_their_actions_and_the_mean_of_their_variances(monkeypatch):
    config = small(qusac.Config(num_members=2))
    state = qusac.init(jax.random.key(0), config=config, task=TASK)
    observation, key = jax.random.normal(jax.random.key(1), (3, 3)), jax.random.key(2)
    parts = networks.Actor(config.actor_hidden, 1)
    both = {"config": config, "task": TASK}

    def with_temperature(temperature):
        learner = state.learner._replace(log_temperature=jnp.log(temperature))
        return state._replace(learner=learner)

    repeated = jnp.repeat(observation, 2, axis=0)
    log_prob = networks.sample_action(parts, state.actor, repeated, key)[1]
    alternating = lambda *_: jnp.array([3.0, 4.0] * 3)
    monkeypatch.setattr(comparison.estimates, "value_std", alternating)
    (low, std), (high, _) = (
        comparison._values(with_temperature(t), observation, key, num_draws=2, **both)
        for t in (0.5, 2.5)
    )
    bonus = -log_prob.reshape(3, 2).mean(1)
    np.testing.assert_allclose(high - low, np.stack([2 * bonus] * 2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(std, np.sqrt((9 + 16) / 2), rtol=1e-6)
    _, drawn = comparison._draw(with_temperature(2.5), observation, key, 7, **both)
    step_key = jax.random.fold_in(key, 7)
    log_prob = networks.sample_action(parts, state.actor, observation, step_key)[1]
    np.testing.assert_allclose(drawn, -2.5 * log_prob, rtol=1e-5)


@pytest.mark.parametrize(
    ("critic_steps", "rollout_length", "real_ratio"), [(1, 4, 0.0), (3, 4, 0.0), (3, 4, 0.25)]
)
def test_q_has_as_much_of_the_bonuses_as_the_fixed_point_of_its_targets(
    critic_steps, rollout_length, real_ratio
):
    config = qusac.Config(
        critic_steps=critic_steps,
        dynamics=qusac.DynamicsConfig(max_epochs=1),
        rollout_length=rollout_length,
        real_ratio=real_ratio,
    )
    nothing = jnp.zeros((rollout_length, 1))
    rollout = Transition(nothing, nothing, nothing[:, 0], nothing, nothing[:, 0] > 0)

    def mean_target(q):  # with a bonus of 1 at each step, and no rewards
        model, real = (
            losses.critic_target(
                steps.reward[None],
                multistep.discounts(steps, 0.99)[None],
                jnp.full((1, 1, rollout_length), q),
                -jnp.ones((1, rollout_length)),
                1.0,
            ).mean()
            for steps in (
                multistep.along(rollout, critic_steps, 0.99),
                multistep.single(rollout),
            )
        )
        return float((1 - real_ratio) * model + real_ratio * real)

    offset = mean_target(0.0)
    q = offset / (1 - (mean_target(1.0) - offset))
    share = comparison.share_of_bonuses(config)
    assert share * 0.99 / (1 - 0.99) == pytest.approx(q, rel=1e-3)
    assert (share == 1) == (critic_steps == 1)


@pytest.mark.slow
def test_returns_in_models_have_the_mean_that_the_models_predict():
    config = small(qusac.Config(num_members=3))
    state = qusac.init(jax.random.key(0), config=config, task=TASK)
    observation = jax.random.normal(jax.random.key(1), (2, 3))
    mean, error = jax.jit(
        functools.partial(
            comparison._model_returns,
            config=config,
            task=TASK,
            length=1,
            num_draws=4_000,
            num_chunks=2,
        )
    )(state, observation, jax.random.key(2))
    repeated = jnp.repeat(observation, 4_000, axis=0)
    actor = networks.Actor(config.actor_hidden, 1)
    action, log_prob = networks.sample_action(actor, state.actor, repeated, jax.random.key(3))
    predicted, std = model.predict(state.dynamics, repeated, action, config=config, task=TASK)
    bonus = -config.initial_temperature * log_prob
    expected = (predicted[..., -1] + bonus).reshape(3, 2, -1)
    assert mean.shape == error.shape == (3, 2)
    # Both are means of 4,000 draws.
    np.testing.assert_array_less(abs(np.asarray(mean) - expected.mean(-1)), 6 * np.asarray(error))
    variance = jnp.mean(jnp.square(std[..., -1]).reshape(3, 2, -1), -1) + jnp.var(expected, -1)
    np.testing.assert_allclose(error, jnp.sqrt(variance / 4_000), rtol=0.15)


@pytest.mark.slow
def test_returns_in_models_have_the_bonuses_that_targets_have():
    base = small(qusac.Config(num_members=3, discount=0.9))
    configs = [dataclasses.replace(base, critic_steps=n, rollout_length=4) for n in (1, 2, 4)]
    state = qusac.init(jax.random.key(0), config=configs[0], task=TASK)
    observation = jax.random.normal(jax.random.key(1), (2, 3))

    def mean_return(config, length):
        options = {"config": config, "task": TASK, "num_draws": 50, "num_chunks": 1}
        measure = functools.partial(comparison._model_returns, **options, length=length)
        return np.asarray(jax.jit(measure)(state, observation, jax.random.key(2))[0])

    all_bonuses, *fewer = (mean_return(config, 2) for config in configs)
    shares = [comparison.share_of_bonuses(config) for config in configs[1:]]
    assert shares[1] < 0.8 * shares[0]
    # The same draws: what each lacks is that part of the second action's bonus.
    second = [(all_bonuses - one) / (1 - share) for one, share in zip(fewer, shares, strict=True)]
    np.testing.assert_allclose(second[0], second[1], rtol=1e-3, atol=1e-5)
    assert (abs(second[0]) > 0.05).all()
    np.testing.assert_allclose(mean_return(configs[2], 1), mean_return(configs[0], 1), rtol=1e-5)


def test_statistics_of_an_agent_that_knows_what_it_does_not_know():
    rng = np.random.default_rng(0)
    std = rng.uniform(1.0, 5.0, (1, 20_000))
    value = rng.normal(size=std.shape)
    noise = rng.normal(size=(1, 4, 20_000))
    member = value[:, None] + std[:, None] * (noise - noise.mean(1, keepdims=True))
    rows = command.statistics(
        Returns(
            value=value,
            std=std,
            member_value=member,
            real=value + std * rng.normal(size=std.shape),
            member=member + 100.0,  # an offset of all members is no disagreement
            member_error=np.zeros_like(member),
            length=1,
        )
    )
    assert rows["real: within 1 sqrt(U)"][0] == pytest.approx(0.683, abs=0.02)
    assert rows["real: within 2 sqrt(U)"][0] == pytest.approx(0.954, abs=0.02)
    # |error| is a half-normal times std: the correlation is 0.43 for this range of std.
    ratio = std.std() / np.sqrt(np.mean(std**2) * np.pi / 2 - np.mean(std) ** 2)
    assert rows["real: correlation of sqrt(U) and error"][0] == pytest.approx(ratio, abs=0.03)
    assert rows["models: return"][0] == pytest.approx(100.0, abs=0.1)
    # Deviations from the mean of four have a variance of 3/4, which is taken out.
    assert rows["models: within 1 sqrt(U)"][0] == pytest.approx(0.683, abs=0.02)
    assert rows["models: within 2 sqrt(U)"][0] == pytest.approx(0.954, abs=0.02)
    assert rows["critics: correlation of deviations with the models'"][0] == pytest.approx(1.0)


def test_few_draws_make_no_right_u_look_too_small():
    rng = np.random.default_rng(0)
    std = rng.uniform(1.0, 5.0, (1, 20_000))
    error = rng.uniform(0.5, 2.0, (1, 1, 20_000)) * np.ones((1, 5, 1))
    member = std[:, None] * rng.normal(size=(1, 5, 20_000)) + error * rng.normal(size=error.shape)
    value = member.mean(1)
    rows = command.statistics(Returns(value, std, member, value, member, error, 1))
    assert rows["models: within 1 sqrt(U)"][0] == pytest.approx(0.683, abs=0.02)
    assert rows["models: within 2 sqrt(U)"][0] == pytest.approx(0.954, abs=0.02)


def test_where_u_is_no_variance_of_values_no_error_is_too_large_for_it():
    values = np.arange(5.0)[None]
    member = values[:, None] * np.array([0.5, 1.5])[:, None]
    returns = Returns(values, values, member, values + 1, member, np.zeros_like(member), 1)
    rows = command.statistics(returns, is_of_values=False)
    assert not any("within" in name for name in rows)
    assert rows["models: correlation of sqrt(U) and std"][0] == pytest.approx(1.0)


def test_draws_alone_are_no_disagreement():
    rng = np.random.default_rng(0)
    member = rng.normal(size=(1, 5, 2_000))
    nothing = np.zeros((1, 2_000))
    returns = Returns(nothing, nothing, member, nothing, member, np.ones_like(member), 1)
    # Variances over members scatter around 1; what is left above it is small.
    assert command.statistics(returns)["models: std over members"][0] < 0.4


def test_what_there_is_not_is_left_out():
    nothing, none = np.zeros((1, 4)), np.full((1, 4), np.nan)
    without = Returns(nothing, none, nothing[:, None], nothing + 1, none[:, None], none[:, None], 1)
    text = command.table([0], command.statistics(without))
    assert "| real return | 1 |" in text
    assert "sqrt(U)" not in text
    assert "models" not in text


@pytest.mark.slow
def test_a_saved_run_is_measured_and_drawn(tiny_run, tmp_path, capsys):
    files = sorted(path.name for path in tiny_run.iterdir())
    few = ["--episodes=3", "--points=2", "--draws=2", f"--output={tmp_path}"]
    assert command.main(["calibration", str(tiny_run), *few]) == 0
    out = capsys.readouterr().out
    assert "|  | seed 0 | seed 1 |\n" in out
    # Episodes of 13 steps at most: all of 0.99^13 of an even stream comes later.
    assert "returns of 13 steps, from 2 states of each of 3 episodes\n" in out
    assert "88% of an even stream" in out
    assert (tmp_path / "step_80.png").stat().st_size > 10_000
    with (tmp_path / "step_80.csv").open() as file:
        rows = {
            row[0]: [float(value) for value in row[1:]]
            for row in csv.reader(file)
            if row[1][0] != "s"
        }
    for name in ("sqrt(U)", "real return", "models: return", "critics: std over members"):
        assert np.isfinite(rows[name]).all()
    assert 0 <= rows["models: within 1 sqrt(U)"][0] <= 1
    assert sorted(path.name for path in tiny_run.iterdir()) == files
    capsys.readouterr()
    assert command.main(["calibration", str(tiny_run), *few, "--step=50", "--points=99"]) == 0
    assert "99 were wanted; later ones are cut off" in capsys.readouterr().out
    assert (tmp_path / "step_50.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are missing: a run directory"),
        (["missing"], "'missing' is no directory"),
        (["{run}", "--step=3"], "step must be one of [50, 80]"),
        (["{run}", "--draws=1"], "draws=1"),
        (["{run}", "{run}"], "run must be one workdir, got 2"),
        (["{run}", "--output=/proc/none"], "cannot be written"),
        (["{run}", "--seed=2147483647"], "seed + num_seeds - 1 must be below 2**31"),
    ],
)
def test_mistakes_are_named(tiny_run, capsys, arguments, message):
    given = [text.format(run=tiny_run) for text in arguments]
    assert command.main(["calibration", *given]) == 2
    assert message in capsys.readouterr().err


def test_states_without_a_known_return_count_for_nothing():
    value = np.array([[0.0, 1.0, 2.0, 3.0, 4.0]])
    real = np.array([[0.5, np.nan, 4.5, np.nan, 4.5]])
    none = np.full((1, 1, 5), np.nan)
    rows = command.statistics(
        Returns(value, np.array([[1.0, 1, 2, 1, 1]]), none, real, none, none, 1)
    )
    assert rows["real: within 1 sqrt(U)"][0] == pytest.approx(2 / 3)
    assert rows["real: correlation of sqrt(U) and error"][0] == pytest.approx(1.0)
