"""Whole runs: what one episode does, seeds, interrupts, and a small case of the paper's figure."""

import dataclasses

import jax
import numpy as np
import pytest

from qusac_jax.tabular import agent, environments, experiment

MAP = {"seed_axis": "map"}


def config_of(method, length, **options):
    return experiment.Config(
        agent=agent.Config(method=method, min_local=-0.05), count_weight=float(length), **options
    )


def test_act_follows_the_policy_until_the_end():
    environment = environments.deep_sea(4)
    on_device = experiment.to_device(environment)
    policy = np.ones(16, int)
    policy[5] = 0  # right, then left, then right twice
    transitions, happened = experiment.act(on_device, policy, jax.random.key(0), episode_length=6)
    np.testing.assert_array_equal(happened, [1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(transitions.state[:4], [0, 5, 8, 13])
    np.testing.assert_array_equal(transitions.action[:4], [1, 0, 1, 1])
    np.testing.assert_array_equal(transitions.next_state[:4], [5, 8, 13, 16])  # 16: terminal
    np.testing.assert_allclose(transitions.reward[:4], [-0.0025, 0, -0.0025, -0.0025])


def test_act_draws_next_states_with_their_probabilities():
    environment = environments.from_arrays(
        np.array([[[0.2, 0.5]], [[0.0, 0.0]]]), np.zeros((2, 1)), 0, episode_length=1
    )
    on_device = experiment.to_device(environment)
    keys = jax.random.split(jax.random.key(1), 4000)
    draw = jax.vmap(
        lambda key: experiment.act(on_device, np.zeros(2, int), key, episode_length=1)[0]
    )
    share = np.bincount(np.asarray(draw(keys).next_state).ravel(), minlength=3) / 4000
    np.testing.assert_allclose(share, [0.2, 0.5, 0.3], atol=5 * 0.5 / np.sqrt(4000))


def test_expected_return_is_the_mean_of_many_episodes():
    environment = environments.rooms(3, room_size=3, episode_length=12)
    on_device = experiment.to_device(environment)
    policy = np.full(environment.num_states, environments.RIGHT)
    other = np.full(environment.num_states, environments.LEFT)
    policies = np.stack([other, policy])
    exact = experiment.expected_return(on_device, policies, episode_length=12)
    keys = jax.random.split(jax.random.key(2), 2000)

    def play(key):
        transitions, happened = experiment.act(on_device, policy, key, episode_length=12)
        return (transitions.reward * happened).sum()

    returns = np.asarray(jax.vmap(play)(keys))
    np.testing.assert_allclose(exact[1], returns.mean(), atol=4 * returns.std() / np.sqrt(2000))
    assert exact[0] < exact[1]


def test_one_episode_counts_each_transition_length_times():
    environment, config = environments.deep_sea(4), config_of("ensemble_mean", 4)
    state = experiment.init(environment, jax.random.key(3), config=config)
    on_device = experiment.to_device(environment)
    after, played = experiment.episode(on_device, state, episode_length=4, config=config)
    added = np.asarray(after.belief.concentration - state.belief.concentration)
    np.testing.assert_allclose(added.sum(), 4 * 4)
    assert set(np.unique(added.round(3))) == {0.0, 4.0}
    assert added[..., -1].sum() == 4.0  # the last transition, into the terminal state
    assert after.visits.sum() == 4
    expected = experiment.expected_return(on_device, state.policy[None], episode_length=4)
    np.testing.assert_allclose(played.episode_return, expected[0], atol=1e-6)


@pytest.mark.slow
def test_seed_axes_agree_and_seeds_are_independent():
    environment = environments.deep_sea(4)
    options = {"num_episodes": 20, "num_chunks": 2}
    mapped = experiment.run(environment, [3, 4], config=config_of("psrl", 4, **MAP, **options))
    at_once = experiment.run(environment, [3, 4], config=config_of("psrl", 4, **options))
    others = experiment.run(environment, [4, 5], config=config_of("psrl", 4, **MAP, **options))
    assert mapped.regret.shape == (2, 20)
    np.testing.assert_array_equal(mapped.regret, at_once.regret)
    np.testing.assert_array_equal(mapped.regret[1], others.regret[0])
    # Nothing is random in DeepSea: what was expected of the policy that acted is what it got.
    assert len(np.unique(mapped.metrics.episode_return)) > 2
    for metrics in (mapped.metrics, at_once.metrics):
        np.testing.assert_allclose(metrics.expected_return, metrics.episode_return, atol=1e-6)


@pytest.mark.slow
def test_stopped_and_continued_equals_undisturbed():
    environment = environments.deep_sea(4)
    config = config_of("exact_ube", 4, num_episodes=10, num_chunks=5)
    whole = experiment.run(environment, [0, 1], config=config)
    begun = experiment.begin(environment, [0, 1], config=config)
    for progress in experiment.advance(environment, begun, config=config):
        if progress.num_episodes == 4:
            break
    part = experiment.measure_regret(environment, progress)
    assert part.regret.shape == (2, 4)
    assert part.state.visits.sum() == 2 * 4 * 4
    *_, progress = experiment.advance(environment, progress, config=config)
    continued = experiment.measure_regret(environment, progress)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.tree.map(_as_data, continued),
        jax.tree.map(_as_data, whole),
    )


def _as_data(x):
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def noisy_environment():
    """One step with a reward of mean 2 and deviation 0.5."""
    return environments.from_arrays(
        np.zeros((1, 1, 1)),
        np.full((1, 1), 2.0),
        0,
        episode_length=1,
        reward_std=np.full((1, 1), 0.5),
    )


def test_reward_noise_reaches_the_belief_and_not_the_metrics():
    environment = noisy_environment()
    on_device = experiment.to_device(environment)
    keys = jax.random.split(jax.random.key(4), 4000)
    act = jax.vmap(
        lambda key: experiment.act(on_device, np.zeros(1, int), key, episode_length=1)[0]
    )
    rewards = np.asarray(act(keys).reward)
    np.testing.assert_allclose([rewards.mean(), rewards.std()], [2.0, 0.5], atol=0.04)
    config = config_of("psrl", 1, num_episodes=3, noise_precision=4.0)
    result = experiment.run(environment, [0], config=config)
    np.testing.assert_array_equal(result.metrics.episode_return, 2.0)
    assert abs(result.state.belief.reward_mean[0, 0, 0] - 2.0) > 1e-3


def test_the_noise_that_an_agent_assumes_is_that_of_the_environment():
    environment = noisy_environment()
    result = experiment.run(environment, [0], config=config_of("ensemble_mean", 1, num_episodes=1))
    np.testing.assert_allclose(result.state.belief.reward_precision, 1 + 4)
    for std, precision in ((1e-200, 1e6), (0.0, 1e6), (1e200, 0.0)):
        extreme = dataclasses.replace(environment, reward_std=np.full((1, 1), std))
        np.testing.assert_allclose(extreme.noise_precision, precision, atol=1e-30)


def test_a_run_of_any_length_reports_about_as_often():
    for num_episodes in (1000, 1009, 997, 60, 7):
        size = experiment._chunk_size(num_episodes, 50)
        assert 50 <= -(-num_episodes // size) <= 100 or size == 1, num_episodes


@pytest.mark.slow
def test_regret_of_stochastic_deep_sea_is_what_the_best_policy_could_have_had_more():
    sea = environments.deep_sea(5, stochastic=True)
    config = experiment.Config(agent=agent.Config(method="psrl"), num_episodes=1)
    begun = experiment.begin(sea, [0], config=config)
    right = begun._replace(state=begun.state._replace(policy=np.ones((1, 25), int)))
    (done,) = experiment.advance(sea, right, config=config)
    result = experiment.measure_regret(sea, done)
    expected = sea.optimal_return - float(done.metrics.expected_return[0, 0])
    assert 0 < expected < 0.1
    np.testing.assert_allclose(result.regret, [[expected]], rtol=1e-5)
    with pytest.raises(ValueError, match="regret must be shortfall, or unsolved with a solved"):
        environments.from_arrays(
            np.eye(2)[:, None], np.ones((2, 1)), 0, episode_length=3, regret="unsolved"
        )


def test_learning_time_by_hand():
    solved = np.zeros((2, 30), bool)
    solved[0, [11, 12]] = True  # 1 of 12 is less than 10 %, 2 of 13 is more
    solved[1, 9] = True  # 1 of 10 is not over 10 %
    np.testing.assert_array_equal(experiment.learning_time(solved), [13, np.nan])
    np.testing.assert_array_equal(experiment.learning_time(solved[:, :0]), [np.nan, np.nan])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "num_episodes", "total_regret", "learning_time"),
    [
        # Published means of 1,000 episodes, L = 10, 5 seeds. In the last 700 `exact_ube` adds 1.2.
        ("exact_ube", 300, 55.0, 33.0),
        ("psrl", 1000, 132.4, 71.8),
    ],
)
def test_small_case_of_the_deep_sea_figure(method, num_episodes, total_regret, learning_time):
    config = config_of(method, 10, num_episodes=num_episodes, **MAP)
    result = experiment.run(environments.deep_sea(10), range(5), config=config)
    np.testing.assert_allclose(result.regret.sum(1).mean(), total_regret, rtol=0.1)
    np.testing.assert_allclose(
        experiment.learning_time(result.solved).mean(), learning_time, rtol=0.15
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact_ube", "psrl"])
def test_runs_are_the_same_types_with_64_bits(method):
    config = config_of(method, 3, num_episodes=3, num_chunks=1, **MAP)
    sea = environments.deep_sea(3)
    with jax.enable_x64(True):
        for environment in (sea, environments.with_support(sea)):
            result = experiment.run(environment, [0], config=config)
            assert result.state.policy.dtype == np.int32
            assert np.isfinite(result.regret).all()


def test_every_episode_has_a_key_of_its_own():
    environment, config = environments.deep_sea(4), config_of("ensemble_mean", 4)
    state = experiment.init(environment, jax.random.key(3), config=config)
    on_device = experiment.to_device(environment)
    after, _ = experiment.episode(on_device, state, episode_length=4, config=config)
    assert (jax.random.key_data(after.key) != jax.random.key_data(state.key)).any()


def test_starts_next_states_and_noise_are_drawn_with_keys_of_their_own():
    on_device = experiment.to_device(noisy_environment())
    with jax.debug_key_reuse(True):
        jax.jit(
            lambda key: experiment.act(on_device, np.zeros(1, int), key, episode_length=3)
        ).trace(jax.random.key(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent": "psrl"}, "agent must be a tabular.agent.Config, got 'psrl'"),
        ({"num_episodes": 0}, "num_episodes must be an integer of at least 1, got 0"),
        ({"count_weight": 0.0}, "count_weight must be positive, got 0.0"),
        ({"count_weight": None}, "count_weight must be positive, got None"),
        ({"noise_precision": 0.0}, "noise_precision must be positive, got 0.0"),
        ({"seed_axis": "pmap"}, "seed_axis 'pmap' is unknown .* choose from vmap, map$"),
    ],
)
def test_bad_config_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        experiment.Config(**options)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([], "seeds must hold at least one seed"),
        (3, "seeds must hold at least one seed, got 3"),
        ([0.5], "seed must be an integer"),
        ([-1], "seed must be an integer of at least 0"),
        ([0, 2**32], "seeds must be below"),  # it would be 0 once more
    ],
)
def test_seeds_that_are_none(seeds, message):
    with pytest.raises(ValueError, match=message):
        experiment.run(environments.deep_sea(4), seeds, config=config_of("psrl", 4))


def test_the_next_policy_is_planned_with_what_the_episode_has_shown():
    # One step of two actions, of which the first costs 1; before that is seen, they are the same.
    environment = environments.from_arrays(
        np.zeros((1, 2, 1)), np.array([[-1.0, 0.0]]), 0, episode_length=1
    )
    config = experiment.Config(agent=agent.Config(method="ensemble_mean"))
    on_device = experiment.to_device(environment)
    state = experiment.init(environment, jax.random.key(0), config=config)
    state = state._replace(policy=0 * state.policy)

    def planned(key):
        before = state._replace(key=key)
        after, _ = experiment.episode(on_device, before, episode_length=1, config=config)
        return after.policy

    policies = jax.vmap(planned)(jax.random.split(jax.random.key(1), 20))
    np.testing.assert_array_equal(policies, 1)


def test_regret_is_of_what_was_to_be_expected_and_success_of_what_was_earned():
    environment = dataclasses.replace(noisy_environment(), optimal_return=4.0, solved_return=3.0)
    metrics = experiment.Metrics(np.array([[1.0, 5.0]]), np.array([[3.5, 2.0]]), np.ones((1, 2)))
    result = experiment.measure_regret(environment, experiment.Progress(metrics, None))
    np.testing.assert_allclose(result.regret, [[0.5, 2.0]])
    np.testing.assert_array_equal(result.solved, [[False, True]])


@pytest.mark.parametrize("policy", [[2, 0, 0], [0, -1, 0], [1], [[0, 0, 0]], np.ones((3, 2)) / 2])
def test_a_policy_that_does_not_fit_the_environment_is_refused(policy):
    on_device = experiment.to_device(
        environments.from_arrays(np.zeros((3, 2, 3)), np.ones((3, 2)), 0, episode_length=4)
    )
    with pytest.raises(ValueError, match="policy must"):
        experiment.act(on_device, np.array(policy), jax.random.key(0), episode_length=4)
    with pytest.raises(ValueError, match="policy must"):
        experiment.expected_return(on_device, np.array(policy)[None], episode_length=4)
    fits = np.array([1, 0, 1])
    with pytest.raises(ValueError, match=r"policy must .* \[P, S\] = \(P, 3\), got \(3,\)"):
        experiment.expected_return(on_device, fits, episode_length=4)
    with pytest.raises(ValueError, match="key must be a key of JAX"):
        experiment.act(on_device, fits, 0, episode_length=4)


def test_a_seed_twice_is_refused():
    with pytest.raises(ValueError, match=r"seeds must differ, got \[3, 4, 3\]"):
        experiment.begin(environments.deep_sea(4), [3, 4, 3], config=experiment.Config())
