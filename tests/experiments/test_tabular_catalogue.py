"""Problems beside the paper's: known values, rows, episodes; agents on their sparse form."""

import jax
import numpy as np
import pytest

from experiments.tabular import catalogue
from qusac_jax import _memory, posterior, sparse, ube
from qusac_jax.tabular import agent, environments, experiment, planning, problems


def dense(environment):
    transition = environment.transition
    if isinstance(transition, sparse.Sparse):
        return np.asarray(sparse.to_dense(transition))
    return transition


@pytest.mark.parametrize("name", catalogue.SIZES)
def test_every_environment_runs_and_its_optimal_return_is_not_beaten(name):
    environment = catalogue.make(name, length=0, size=8 if name == "maze" else None)
    on_device = experiment.to_device(environment)
    policies = np.random.default_rng(0).integers(
        environment.num_actions, size=(4, environment.num_states)
    )
    returns = experiment.expected_return(
        on_device, policies, episode_length=environment.episode_length
    )
    assert np.all(returns <= environment.optimal_return + 1e-4)
    known = environments.with_support(environment)
    again = experiment.expected_return(
        experiment.to_device(known), policies, episode_length=environment.episode_length
    )
    np.testing.assert_allclose(again, returns, rtol=1e-4, atol=1e-5)


def test_best_returns_by_hand():
    assert problems.bandit(5).optimal_return == 1.0
    assert problems.discounting_chain(2).optimal_return == pytest.approx(1.1)
    assert problems.catch().optimal_return == pytest.approx(1.0)
    assert problems.umbrella(7).optimal_return == pytest.approx(1.0)
    # Four moves around the wall end in the goal.
    assert problems.grid("S#G\n...").optimal_return == pytest.approx(1.0)
    assert problems.grid("S#G\n...", episode_length=3).optimal_return == 0.0
    # Forward always: 10 in each step once there. Without slips 4 steps lead there.
    assert problems.chain(slip=0.0, episode_length=10).optimal_return == pytest.approx(60.0)
    # Right with 0.6, where going right again earns 1; otherwise left earns 0.005.
    swim = problems.river_swim(2, episode_length=2)
    assert swim.optimal_return == pytest.approx(0.6 + 0.4 * 0.005)


def test_queue_is_a_birth_and_death_chain():
    # With one rate, stationary probabilities are geometric in the odds of up and down.
    environment = problems.queue(6, arrival=0.3, service=(0.6,), cost=(0.0,))
    flow = environment.transition[:, 0]
    np.testing.assert_allclose(flow.sum(-1), 1.0)
    stationary = np.linalg.matrix_power(flow, 4000)[0]
    odds = 0.3 * 0.4 / (0.7 * 0.6)
    np.testing.assert_allclose(stationary[2:-1] / stationary[1:-2], odds, rtol=1e-6)


def test_steps_of_the_classic_problems_by_hand():
    swim = problems.river_swim()
    np.testing.assert_allclose(dense(swim)[2, 1], [0, 0.05, 0.6, 0.35, 0, 0])
    np.testing.assert_allclose(dense(swim)[5, 1], [0, 0, 0, 0, 0.4, 0.6])
    chain = problems.chain()
    np.testing.assert_allclose(dense(chain)[1], [[0.2, 0, 0.8, 0, 0], [0.8, 0, 0.2, 0, 0]])
    np.testing.assert_allclose(chain.reward[[0, -1]], [[0.4, 1.6], [8.4, 3.6]])
    queue = problems.queue(10)
    np.testing.assert_allclose(queue.reward[5], [-0.5, -0.8])


def test_tasks_of_bsuite_by_hand():
    # Five columns; the paddle is in the middle.
    np.testing.assert_array_equal(np.flatnonzero(problems.catch().start), [2, 7, 12, 17, 22])
    noise = problems.umbrella(3).reward_std
    np.testing.assert_array_equal(noise, np.repeat([1.0, 1.0, 0.0], 4)[:, None] * np.ones(2))
    chain = problems.discounting_chain(2)
    following = np.argmax(dense(chain), -1)
    for action, time in enumerate((1, 3, 10, 30, 100)):
        state, rewards = 0, []
        for _ in range(100):
            rewards.append(chain.reward[state, action])
            state = following[state, action]
        expected = np.zeros(100)
        expected[time - 1] = 1.1 if action == 2 else 1.0
        np.testing.assert_allclose(rewards, expected)


def test_slips_in_a_grid_go_across_and_holes_end():
    environment = problems.grid("S.G\nH..", success=0.8)
    row = environment.transition[0, 3]  # right from the start: up is the edge, down the hole
    np.testing.assert_allclose(row, [0.1, 0.8, 0.0, 0.0], atol=1e-12)
    assert environment.reward[1, 3] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("text", "message"),
    [("S.X", "must hold only"), ("..G", "must have an 'S'"), ("S#G", "must have a 'G'")],
)
def test_maps_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        problems.grid(text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"loops": "a"}, r"loops must be in \[0, 1\], got 'a'"),
        ({"success": None}, r"success must be in \[0, 1\], got None"),
    ],
)
def test_mazes_that_are_none(values, message):
    with pytest.raises(ValueError, match=message):
        problems.maze(4, **values)


def test_large_maze_is_sparse_and_its_values_are_found_by_both_solvers():
    environment = problems.maze(30)
    assert environment.num_states > 1000
    optimal = planning.solve_optimal(environment.transition, environment.reward, 0.95)
    policy = np.eye(4, dtype=np.float32)[np.asarray(optimal.policy)]
    values = ube.solve_bellman(
        jax.tree.map(
            lambda x: np.asarray(x, np.float32 if x.dtype == float else x.dtype),
            environment.transition,
        ),
        environment.reward,
        policy,
        0.95,
    )
    np.testing.assert_allclose(values.v, optimal.v, atol=2e-5)
    assert optimal.error < 1e-4


def test_value_iteration_by_hand():
    # Stay for 1 each step, or leave for 5: staying is worth 1 / (1 - 0.9).
    optimal = planning.solve_optimal(np.array([[[1.0], [0.0]]]), np.array([[1.0, 5.0]]), 0.9)
    np.testing.assert_allclose(optimal.v, [10.0], rtol=1e-4)
    assert optimal.policy[0] == 0
    # After one step the value is 5, the next one 5.5: 10 - 5 is the error.
    first = planning.solve_optimal([[[1.0], [0.0]]], [[1.0, 5.0]], 0.9, max_iterations=1)
    np.testing.assert_allclose(
        [first.v[0], first.residual, first.error], [5.0, 0.5, 5.0], rtol=1e-5
    )
    with pytest.raises(ValueError, match="discount must be"):
        planning.solve_optimal(np.array([[[1.0]]]), np.array([[1.0]]), 1.1)
    with pytest.raises(ValueError, match=r"reward must have shape .* got \(2, 1\)"):
        jax.jit(planning.solve_optimal)(np.full((2, 2, 2), 0.5), np.ones((2, 1)), 0.9)
    for tolerance in (np.nan, -1.0, "a"):
        with pytest.raises(ValueError, match="tolerance must"):
            planning.solve_optimal([[[1.0]]], [[1.0]], 0.9, tolerance=tolerance)
    loose = planning.solve_optimal([[[1.0]]], [[1.0]], 0.9, tolerance=jax.numpy.float32(0.1))
    np.testing.assert_allclose(loose.v, 10.0, rtol=0.1)


def test_whole_numbers_and_lists_are_a_problem_to_solve():
    # Half of the time on: with reward 2 each step, 2 / (1 - 0.5 * 0.5).
    dense, listed = np.array([[[0.5]]]), sparse.Sparse([[[0]]], [[[0.5]]])
    for transition in (dense, dense.tolist(), listed):
        for reward in (np.array([[2]]), [[2]], [[2.0]]):
            optimal = planning.solve_optimal(transition, reward, 0.5)
            np.testing.assert_allclose(optimal.v, [8 / 3], rtol=1e-5)
    certain = planning.solve_optimal([[[0]]], [[2]], 0.5)
    assert certain.v.dtype == np.float32
    assert certain.v == 2
    with pytest.raises(ValueError, match=r"transition must have shape \[S, A, S\]"):
        planning.solve_optimal([[0.5]], [[2]], 0.5)
    with pytest.raises(ValueError, match="reward must hold real numbers"):
        planning.solve_optimal(dense, [[None]], 0.5)


def test_the_error_of_undiscounted_values_has_no_bound():
    optimal = planning.solve_optimal(np.zeros((1, 1, 1)), np.ones((1, 1)), 1.0)
    assert optimal.residual == 0
    assert optimal.error == np.inf


def test_time_in_the_state_makes_the_best_return_a_stationary_value():
    environment = problems.river_swim(episode_length=12)
    timed = planning.with_time(environment)
    assert timed.num_states == 12 * 6
    transition = jax.tree.map(np.asarray, timed.transition)
    optimal = planning.solve_optimal(transition, timed.reward, 1.0)
    best = float(timed.start @ optimal.v)
    np.testing.assert_allclose(best, environment.optimal_return, rtol=1e-5)
    inner = np.where(transition.next_state < timed.num_states, transition.next_state, -1)
    layer = np.arange(timed.num_states)[:, None, None] // 6
    assert np.all((inner < 0) | (inner // 6 == layer + 1))


def test_time_in_the_state_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(_memory, "host_available", lambda: 10**6)
    with pytest.raises(ValueError, match="river_swim with the time in its 6,000 states"):
        planning.with_time(problems.river_swim(episode_length=1_000))
    planning.with_time(problems.river_swim(episode_length=10))


def test_from_sparse_merges_duplicates_and_names_the_end():
    environment = environments.from_sparse(
        [[[1, 1, -1]], [[0, -1, -1]]],
        [[[0.25, 0.5, 0.0]], [[1.0, 0.0, 0.0]]],
        np.ones((2, 1)),
        0,
        episode_length=3,
    )
    np.testing.assert_allclose(dense(environment), [[[0.0, 0.75]], [[1.0, 0.0]]])
    assert set(environment.transition.next_state[0, 0]) == {1, 2}
    np.testing.assert_array_equal(environment.transition.next_state[1, 0], [-1, 0])
    # 1 + 0.75 + 0.75 in three steps.
    assert environment.optimal_return == pytest.approx(2.5)
    with pytest.raises(ValueError, match="next_state must be in"):
        environments.from_sparse([[[3]]], [[[1.0]]], np.ones((1, 1)), 0, episode_length=1)


def config(method, **options):
    return experiment.Config(
        agent=agent.Config(method=method, discount=0.9, num_members=3, **options),
        num_episodes=30,
        num_chunks=2,
        seed_axis="map",
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact_ube", "psrl"])
def test_agents_learn_with_a_support(method):
    environment = environments.with_support(problems.grid("S..\n.#.\n..G", episode_length=20))
    result = experiment.run(environment, [0, 1], config=config(method))
    late = np.asarray(result.metrics.expected_return)[:, -5:]
    np.testing.assert_allclose(late, 1.0)
    shape = environment.transition.next_state.shape
    assert result.state.belief.concentration.shape == (2, *shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "exact_ube",
        *(
            pytest.param(m, marks=pytest.mark.slow)
            for m in ("pombu", "upper_bound", "ensemble_var")
        ),
    ],
)
def test_evaluation_of_a_sparse_belief_equals_ube(method):
    # The agent's Q-form on one-hot policies, from the same samples as the solvers of ube.
    environment = environments.with_support(problems.river_swim())
    belief = posterior.init(6, 2, support=environment.transition.next_state)
    key, policy = jax.random.key(3), np.array([1, 1, 0, 1, 0, 1])
    evaluation = agent.evaluate(
        belief, policy, key, config=agent.Config(method=method, discount=0.9, min_local=0.0)
    )
    assert evaluation.condition == 0
    members = posterior.sample(belief, key, 5)
    solver = {
        "exact_ube": ube.solve_exact,
        "pombu": ube.solve_pombu,
        "upper_bound": ube.solve_upper_bound,
        "ensemble_var": ube.ensemble_variance,
    }[method]
    means = (
        {}
        if method == "ensemble_var"
        else {
            "mean_transition": posterior.mean(belief).transition,
            "mean_reward": belief.reward_mean,
        }
    )
    expected = solver(*members, np.eye(2, dtype=np.float32)[policy], 0.9, **means)
    np.testing.assert_allclose(evaluation.variance, expected.q, rtol=2e-3, atol=1e-5)


def test_moments_is_refused_for_a_support():
    environment = environments.with_support(problems.bandit(3))
    with pytest.raises(ValueError, match="posterior has a support"):
        experiment.run(environment, [0], config=config("moments"))


def test_wrong_sizes_are_named():
    for name, make in (
        ("num_states", lambda: problems.river_swim(1)),
        ("slip", lambda: problems.chain(slip=2.0)),
        ("service", lambda: problems.queue(service=(0.3,))),
        ("bonus", lambda: problems.discounting_chain(5)),
        ("side", lambda: problems.maze(1)),
    ):
        with pytest.raises(ValueError, match=name):
            make()


def test_time_in_the_state_changes_no_noise_and_no_regret():
    umbrella = problems.umbrella(3)
    timed = planning.with_time(umbrella)
    steps = umbrella.episode_length
    np.testing.assert_array_equal(timed.reward_std, np.tile(umbrella.reward_std, (steps, 1)))
    sea = environments.deep_sea(3)
    timed = planning.with_time(sea)
    assert (timed.solved_return, timed.regret) == (sea.solved_return, sea.regret)
    assert sea.solved_return is not None
