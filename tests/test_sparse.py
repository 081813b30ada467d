"""Sparse transitions: the dense result in every function that takes them, gradients, checks."""

import functools
import subprocess
import sys
import textwrap
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qusac_jax import _sparse_products, linear, sparse, ube
from qusac_jax.tabular import problems
from tests import programs

ENSEMBLE_SOLVERS = {
    **{form: functools.partial(ube.solve_exact, form=form) for form in ube.FORMS},
    "pombu": ube.solve_pombu,
    "upper_bound": ube.solve_upper_bound,
    "ensemble_variance": ube.ensemble_variance,
    "decompose": ube.decompose,
}
seeds = st.integers(0, 2**32 - 1)
checked = settings(max_examples=15, deadline=None)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_sparse(rng, members=(3,), *, shared=True, num_states=7, num_actions=2, width=4):
    """Successors with duplicates, the terminal state, padding and missing mass."""
    shape = (num_states, num_actions, width)
    index_shape = shape if shared else (*members, *shape)
    next_state = rng.integers(-1, num_states + 1, index_shape)
    probability = rng.dirichlet(np.ones(width), (*members, num_states, num_actions))
    probability = np.where(next_state >= 0, 0.95 * probability, 0.0)
    return sparse.Sparse(next_state.astype(np.int32), probability)


def problem(seed, members=(3,), **options):
    rng = np.random.default_rng(seed)
    transition = random_sparse(rng, members, **options)
    num_states, num_actions = transition.probability.shape[-3:-1]
    reward = rng.normal(size=(*members, num_states, num_actions))
    return transition, reward, rng.dirichlet(np.ones(num_actions), num_states)


def assert_equal(result, expected, rtol=1e-8):
    for name, ours, theirs in zip(result._fields, result, expected, strict=True):
        if name == "condition":  # of which the size matters
            np.testing.assert_allclose(ours, theirs, rtol=1e-3)
        elif name != "residual":
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-10, err_msg=name)


def test_to_dense_by_hand():
    # Successors 1 twice, the terminal state, and padding.
    transition = sparse.Sparse(
        np.array([[[1, 1, 0]], [[2, 0, -1]]]), np.array([[[0.2, 0.3, 0.5]], [[0.6, 0.4, 0.0]]])
    )
    np.testing.assert_allclose(sparse.to_dense(transition), [[[0.5, 0.5]], [[0.4, 0.0]]])
    np.testing.assert_allclose(sparse.to_dense(sparse.Sparse([[[0]]], [[[0.5]]])), [[[0.5]]])


def test_to_dense_computes_no_nan():
    transition = sparse.Sparse(np.array([[[1, 2, -1]], [[0, 1, 2]]]), np.full((2, 1, 3), 0.25))
    with jax.debug_nans(True):
        sparse.to_dense(transition)


def test_from_dense_and_back():
    transition, _, _ = problem(0)
    dense = np.asarray(sparse.to_dense(transition))
    again = sparse.from_dense(dense)
    assert again.next_state.ndim == 3
    np.testing.assert_allclose(sparse.to_dense(again), dense)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -0.1])
def test_from_dense_drops_nothing(wrong):
    with pytest.raises(ValueError, match="transition must be finite and not negative"):
        sparse.from_dense([[[wrong, 0.5]], [[0.0, 0.0]]])
    with pytest.raises(ValueError, match=r"must have shape \[S, A, S\].*got \(2, 2\)"):
        sparse.from_dense(np.eye(2))
    for shape in ((3, 2, 2, 2, 2), (0, 1, 0)):
        with pytest.raises(ValueError, match=r"must have shape \[S, A, S\]"):
            sparse.from_dense(np.zeros(shape))


def test_a_mean_is_of_several_members():
    with pytest.raises(ValueError, match=r"must have shape \[N, S, A, K\], got \(2, 2, 2\)"):
        sparse.mean(sparse.from_dense(np.full((2, 2, 2), 0.5)))


def test_a_mean_of_lists_is_that_of_arrays():
    lists = sparse.Sparse([[[0, 1]]], [[[[0.25, 0.75]]], [[[0.75, 0.25]]]])
    np.testing.assert_allclose(sparse.mean(lists).probability, [[[0.5, 0.5]]])


@pytest.mark.parametrize("unit", [1e-28, 1e-12, 1e12, 1e28])
def test_the_unit_of_rewards_does_not_matter(unit):
    transition, reward, policy = problem(3, (), num_states=40)
    single = lambda x: np.asarray(x, np.float32)
    transition = transition._replace(probability=single(transition.probability))
    solve = lambda unit: ube.solve_bellman(transition, single(reward * unit), single(policy), 0.9)
    np.testing.assert_allclose(solve(unit).v / np.float32(unit), solve(1.0).v, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_the_unit_of_uncertain_rewards_does_not_matter(unit):
    transition, reward, policy = problem(3, (4,), num_states=40)
    single = lambda x: np.asarray(x, np.float32)
    transition = transition._replace(probability=single(transition.probability))

    def solve(unit):
        scaled = single(reward * unit)
        return ube.solve_upper_bound(transition, scaled, single(policy), 0.9).v / unit**2

    assert solve(1.0).min() > 0
    np.testing.assert_allclose(solve(unit), solve(1.0), rtol=1e-3)


def test_small_integers_name_as_many_states_as_others():
    next_state = np.arange(256, dtype=np.uint8).reshape(256, 1, 1)
    dense = sparse.to_dense(sparse.Sparse(next_state, np.ones((256, 1, 1))))
    np.testing.assert_array_equal(dense[:, 0], np.eye(256))


def test_successors_are_counted_once_in_proportional_memory():
    rng = np.random.default_rng(0)
    given, weight = rng.integers(-1, 5, (6, 2, 9)), rng.random((6, 2, 9))
    listed, total = sparse.distinct(given, weight)
    for i in np.ndindex(6, 2):
        expected = {s: weight[i][given[i] == s].sum() for s in set(given[i]) - {-1}}
        assert sorted(listed[i][listed[i] >= 0]) == sorted(expected)
        for s, mass in zip(listed[i], total[i], strict=True):
            np.testing.assert_allclose(mass, expected.get(s, 0.0))
    tracemalloc.start()
    sparse.distinct(np.zeros((2, 2, 4000), int), np.ones((2, 2, 4000)))
    assert tracemalloc.get_traced_memory()[1] < 100 * 16_000  # an array [.., K, K] has 64 MB
    tracemalloc.stop()


@checked
@given(seeds, st.floats(0.0, 1.0))
def test_bellman_equals_dense(seed, discount):
    transition, reward, policy = problem(seed, ())
    result = ube.solve_bellman(transition, reward, policy, discount)
    assert_equal(result, ube.solve_bellman(sparse.to_dense(transition), reward, policy, discount))
    assert result.residual < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("difference", True),
        ("ensemble_variance", False),
        *[pytest.param(name, True, marks=pytest.mark.slow) for name in ("total", "gap")],
        *[
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in ("decompose", "pombu", "upper_bound")
        ],
    ],
)
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_variances_equal_dense(name, shared, seed):
    transition, reward, policy = problem(seed, shared=shared)
    solve = ENSEMBLE_SOLVERS[name]
    result = solve(transition, reward, policy, 0.9)
    assert_equal(result, solve(sparse.to_dense(transition), reward, policy, 0.9))


@pytest.mark.slow
def test_given_means_equal_dense():
    transition, reward, policy = problem(1)
    mean, mean_reward, _ = problem(2, ())
    solve = lambda form: ube.solve_exact(
        form(transition), reward, policy, 0.9, mean_transition=form(mean), mean_reward=mean_reward
    )
    assert_equal(solve(lambda x: x), solve(sparse.to_dense))


@pytest.mark.slow
def test_maps_over_members_and_policies_and_keeps_float32():
    transition, reward, _ = problem(3)
    transition, reward = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32 if x.dtype == float else x.dtype), (transition, reward)
    )
    policies = np.random.default_rng(0).dirichlet(np.ones(2), (4, 7)).astype(np.float32)
    mapped = jax.jit(jax.vmap(ube.solve_exact, (None, None, 0, None)))(
        transition, reward, policies, 0.9
    )
    assert {leaf.dtype for leaf in mapped} == {np.dtype(np.float32)}
    for i, policy in enumerate(policies):
        expected = ube.solve_exact(transition, reward, policy, 0.9)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], mapped), expected, rtol=1e-3)


@pytest.mark.slow
def test_gradients_equal_dense():
    transition, reward, policy = problem(4)
    weight = np.random.default_rng(5).normal(size=(7, 2))

    def loss(form, probability, reward, policy, discount):
        transition_ = form(sparse.Sparse(transition.next_state, probability))
        return jnp.sum(weight * ube.ensemble_variance(transition_, reward, policy, discount).q)

    arguments = (transition.probability, reward, policy, 0.9)
    gradient = jax.grad(loss, argnums=(1, 2, 3, 4))
    ours, theirs = gradient(lambda x: x, *arguments), gradient(sparse.to_dense, *arguments)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-8)


def walk(num_states, back=0.0, dtype=np.float64):
    """A walk forwards that slips back and ends after the last state."""
    state = np.arange(num_states)
    next_state = np.stack([state + 1, np.maximum(state - 1, 0)], -1)[:, None]
    probability = np.broadcast_to(np.array([1 - back, back], dtype), next_state.shape)
    return sparse.Sparse(next_state.astype(np.int32), probability)


@pytest.mark.slow
@pytest.mark.parametrize("back", [0.0, 0.45])
def test_long_chain_needs_its_preconditioner(back):
    # Without slips V = steps to go. With them the expected time is that of a walk with drift.
    num_states = 20_000
    one = np.ones((num_states, 1))
    result = ube.solve_bellman(walk(num_states, back), one, one, 1.0)
    to_go = np.arange(num_states, 0, -1) / (1 - 2 * back)
    np.testing.assert_allclose(result.v[num_states // 2 :], to_go[num_states // 2 :], rtol=1e-2)
    assert result.residual < 1e-6
    mapped = jax.vmap(lambda r: ube.solve_bellman(walk(num_states, back), r, one, 1.0).v)
    np.testing.assert_allclose(mapped(jnp.stack([one, 2 * one]))[1], 2 * result.v, rtol=1e-9)
    pull = jax.grad(lambda r: ube.solve_bellman(walk(num_states, back), r, one, 1.0).v[-2])
    visits = pull(one)[:, 0]  # the gradient by rewards is expected visits
    np.testing.assert_allclose(visits.sum(), result.v[-2], rtol=1e-6)


@pytest.mark.slow
def test_a_single_reward_far_away_is_found():
    # BiCGStab's residual moves along the way and leaves its first, the usual shadow, behind.
    maze = problems.maze(30)
    transition = sparse.Sparse(
        jnp.asarray(maze.transition.next_state, jnp.int32),
        jnp.asarray(maze.transition.probability, jnp.float32),
    )
    solve = jax.jit(lambda flow, rhs: linear.solve_warm(flow, rhs, 0.99, jnp.zeros_like(rhs)))
    rng = np.random.default_rng(0)
    for policy in rng.integers(maze.num_actions, size=(20, maze.num_states)):
        flow = _sparse_products.chosen(transition, jnp.asarray(policy))
        rhs = np.zeros((1, maze.num_states), np.float32)
        rhs[0, rng.integers(maze.num_states)] = 1
        solution = solve(flow, rhs)
        system = np.eye(maze.num_states) - 0.99 * _sparse_products.to_scipy(flow).toarray()
        np.testing.assert_allclose(system @ solution.x[0], rhs[0], atol=1e-4)
        assert not solution.fell_back
        assert solution.iterations < 500


def test_unreachable_states_have_values_too():
    # Nothing leads to state 2, which leads to state 0 with value 1.
    transition = sparse.Sparse(np.array([[[3]], [[3]], [[0]]]), np.ones((3, 1, 1)))
    reward = np.array([[1.0], [5.0], [0.0]])
    result = ube.solve_bellman(transition, reward, np.ones((3, 1)), 0.5)
    np.testing.assert_allclose(result.v, [1.0, 5.0, 0.5])


def test_what_is_not_solved_says_so(monkeypatch):
    from qusac_jax import _sparse_linear

    monkeypatch.setattr(_sparse_linear, "_MAX_ITERATIONS", 1)
    transition, reward, policy = problem(6, (), num_states=60)
    jax.clear_caches()
    result = jax.jit(ube.solve_bellman)(transition, reward, policy, 0.99)
    assert np.isinf(result.condition)
    assert result.residual > 1e-6
    with pytest.raises(ValueError, match="was not solved"):
        ube.check_result(result)
    jax.clear_caches()


def test_singular_systems_are_refused():
    trap = sparse.Sparse(np.array([[[0]]]), np.ones((1, 1, 1)))
    ones = np.ones((1, 1))
    with pytest.raises(ValueError, match="never reach termination, for example state 0"):
        ube.solve_bellman(trap, ones, ones, 1.0)
    with pytest.raises(ValueError, match="singular"):
        ube.check_result(jax.jit(ube.solve_bellman)(trap, ones, ones, 1.0))


def test_what_a_policy_does_not_do_leads_nowhere():
    # State 1 stays for ever under action 0; action 1, which is never taken, leads out through 0.
    way = sparse.Sparse(np.array([[[2], [2]], [[1], [0]]]), np.ones((2, 2, 1)))
    zeros, stays, leaves = np.zeros((2, 2)), np.array([[1.0, 0.0]] * 2), np.array([[0.0, 1.0]] * 2)
    ube.check_problem(way, zeros, leaves, 1.0)
    with pytest.raises(ValueError, match="1 states never reach termination, for example state 1"):
        ube.check_problem(way, zeros, stays, 1.0)


def test_an_impossible_successor_under_jit_is_no_silent_zero():
    bad = sparse.Sparse(np.array([[[7]]]), np.ones((1, 1, 1)))
    result = jax.jit(ube.solve_bellman)(bad, np.ones((1, 1)), np.ones((1, 1)), 0.5)
    with pytest.raises(ValueError, match="NaN"):
        ube.check_result(result)


@pytest.mark.parametrize(
    ("next_state", "probability", "message"),
    [
        ([[[2]]], [[[1.0]]], r"next_state must be in -1 .. 1"),
        ([[[-2]]], [[[1.0]]], r"next_state must be in -1 .. 1"),
        ([[[-1]]], [[[0.5]]], "must be 0 where next_state is -1"),
        ([[[0.0]]], [[[0.5]]], "must be integers"),
        ([[[0, 0]]], [[[0.7, 0.7]]], "sums to 1.4"),
        ([[[0, 0]]], [[[1.2, -0.3]]], "must hold probabilities"),
        ([[[0, 0]]], [[[1.0]]], "must have a probability of shape"),
        ([[[2**40]]], [[[1.0]]], "fit into int32"),
    ],
)
def test_mistakes_are_named(next_state, probability, message):
    transition = sparse.Sparse(np.array(next_state), np.array(probability))
    with pytest.raises(ValueError, match=message):
        ube.solve_bellman(transition, np.ones((1, 1)), np.ones((1, 1)), 0.5)


def test_dense_and_sparse_do_not_mix():
    transition, reward, policy = problem(7)
    dense = sparse.to_dense(transition)
    for one, other in ((transition, dense), (dense, transition)):
        mean = jax.tree.map(lambda x: x[0] if x.ndim == 4 else x, other)
        with pytest.raises(ValueError, match="mean_transition must be"):
            ube.solve_exact(one, reward, policy, 0.9, mean_transition=mean)


def run_on_two_devices(program):
    """Runs the text of a program in a process of its own; fails if it does."""
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=programs.ROOT,
        env=programs.with_devices(2),
        check=True,
        timeout=240,
    )


@pytest.mark.slow
def test_sharded_over_two_devices_along_members_or_states():
    program = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from qusac_jax import sparse, ube
        rng = np.random.default_rng(0)
        N, S, A, K = 4, 64, 2, 3
        transition = sparse.Sparse(
            jnp.asarray(rng.integers(0, S, (S, A, K)), jnp.int32),
            jnp.asarray(rng.dirichlet(np.ones(K), (N, S, A)), jnp.float32))
        reward = jnp.asarray(rng.normal(size=(N, S, A)), jnp.float32)
        policy = jnp.full((S, A), 1 / A)
        expected = ube.solve_exact(transition, reward, policy, 0.9)
        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        put = lambda array, *axes: jax.device_put(array, NamedSharding(mesh, P(*axes)))
        for along in ((None, "x"), ("x", None)):
            own = sparse.Sparse(put(transition.next_state, along[1]),
                                put(transition.probability, *along))
            result = jax.jit(ube.solve_exact)(own, put(reward, *along), put(policy, along[1]), 0.9)
            assert len(own.probability.devices()) == 2
            for ours, theirs in zip(result[:4], expected[:4]):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    """
    run_on_two_devices(program)


def test_arrays_on_explicit_axes_of_a_mesh_are_refused_by_name():
    program = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from qusac_jax import posterior, ube
        mesh = jax.make_mesh((2,), ("n",), axis_types=(jax.sharding.AxisType.Explicit,))
        spread = NamedSharding(mesh, P("n"))
        whole = jnp.zeros((2, 3, 1, 3)), jnp.ones((2, 3, 1)), jnp.ones((3, 1))
        for compiled in (lambda f: f, jax.jit):
            for i in range(2):
                given = [*whole, 0.9]
                given[i] = jax.device_put(given[i], spread)
                try:
                    compiled(ube.solve_exact)(*given)
                except ValueError as error:
                    assert ("transition", "reward")[i] in str(error), error
                    assert "AxisType.Auto" in str(error), error
                else:
                    raise AssertionError("it was not refused")
            together = [jax.device_put(x, NamedSharding(mesh, P())) for x in whole]
            compiled(ube.solve_exact)(*together, 0.9)
        steps = posterior.Transitions(*(np.zeros(4, int) for _ in range(4)))
        steps = steps._replace(reward=jax.device_put(jnp.zeros(4), spread))
        try:
            posterior.update(posterior.init(3, 1), steps)
        except ValueError as error:
            assert "transitions.reward must not be spread" in str(error), error
        else:
            raise AssertionError("it was not refused")
    """
    run_on_two_devices(program)


def test_a_mean_of_other_states_is_named():
    one = lambda size: sparse.Sparse(np.zeros((size, 1, 1), int), np.full((size, 1, 1), 0.5))
    members = one(3)._replace(probability=np.full((2, 3, 1, 1), 0.5))
    with pytest.raises(ValueError, match=r"mean_transition .* \[S, A\] = \(3, 1\), got \(4, 1, 1"):
        ube.solve_exact(members, np.ones((2, 3, 1)), np.ones((3, 1)), 0.9, mean_transition=one(4))
