"""Every expected variance comes from enumerating MDPs, a NumPy loop, a closed form or sampling."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.studies.tabular_moments import layered_belief
from qusac_jax import linear, moments, posterior, ube
from qusac_jax.sparse import Sparse

SOLVERS = {
    "exact": ube.solve_exact,
    "pombu": ube.solve_pombu,
    "upper_bound": ube.solve_upper_bound,
    "ensemble_variance": ube.ensemble_variance,
}
seeds = st.integers(0, 2**32 - 1)
discounts = st.floats(0.0, 1.0)
checked = settings(max_examples=25, deadline=None)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_policy(rng, num_states, num_actions, deterministic=False):
    if deterministic:
        return np.eye(num_actions)[rng.integers(num_actions, size=num_states)]
    return rng.dirichlet(np.ones(num_actions), num_states)


def random_ensemble(rng, num_members=3, num_states=5, num_actions=2, mass=0.97):
    rows = rng.dirichlet(np.ones(num_states), (num_members, num_states, num_actions))
    return mass * rows, rng.normal(size=(num_members, num_states, num_actions))


def acyclic_row(rng, state, num_states):
    """A row that only leads to later states or out of the MDP."""
    row = np.zeros(num_states)
    later = rng.dirichlet(np.ones(num_states - state))
    row[state + 1 :] = later[1:]
    return row


def enumerated_ensemble(rng, num_states=4, num_actions=2, deterministic=False, random_rewards=True):
    """All combinations of 2 candidates for each of 4 rows (and 2 rewards): an exact belief.

    Uncertain rows and rewards are independent of each other and equally likely, as Theorem 1 asks.
    Without random rewards, both candidates are the same.
    """
    pairs = list(itertools.product(range(num_states), range(num_actions)))
    make_row = deterministic_row if deterministic else acyclic_row
    base = np.stack([make_row(rng, s, num_states) for s, _ in pairs])
    base = base.reshape(num_states, num_actions, num_states)
    base_reward = rng.normal(size=(num_states, num_actions))
    rows = [pairs[i] for i in rng.choice(len(pairs), 4, replace=False)]
    rewards = [pairs[i] for i in rng.choice(len(pairs), 2, replace=False)]
    new_rows = {pair: make_row(rng, pair[0], num_states) for pair in rows}
    new_rewards = {pair: rng.normal() if random_rewards else base_reward[pair] for pair in rewards}
    transitions, all_rewards = [], []
    for choice in itertools.product([False, True], repeat=len(rows) + len(rewards)):
        transition, reward = base.copy(), base_reward.copy()
        for pair, is_new in zip(rows, choice[: len(rows)], strict=True):
            transition[pair] = new_rows[pair] if is_new else transition[pair]
        for pair, is_new in zip(rewards, choice[len(rows) :], strict=True):
            reward[pair] = new_rewards[pair] if is_new else reward[pair]
        transitions.append(transition)
        all_rewards.append(reward)
    return np.stack(transitions), np.stack(all_rewards)


def deterministic_row(rng, state, num_states):
    row = np.zeros(num_states + 1)
    row[rng.integers(state + 1, num_states + 1)] = 1.0
    return row[:-1]


def member_values(transition, reward, policy, discount):
    """V `[N, S]` and Q `[N, S, A]` by backward substitution in loops; acyclic MDPs only."""
    num_members, num_states, num_actions = reward.shape
    v, q = np.zeros((num_members, num_states)), np.zeros(reward.shape)
    for i in range(num_members):
        for s in reversed(range(num_states)):
            for a in range(num_actions):
                future = sum(transition[i, s, a, t] * v[i, t] for t in range(num_states))
                q[i, s, a] = reward[i, s, a] + discount * future
                v[i, s] += policy[s, a] * q[i, s, a]
    return v, q


# One MDP.


def test_bellman_by_hand():
    # 0 -> 1 -> end with rewards 1 and 2, discount 1/2: V = (1 + 2/2, 2).
    transition = jnp.zeros((2, 1, 2)).at[0, 0, 1].set(1.0)
    result = ube.solve_bellman(transition, jnp.array([[1.0], [2.0]]), jnp.ones((2, 1)), 0.5)
    np.testing.assert_allclose(result.v, [2.0, 2.0])
    np.testing.assert_allclose(result.q, [[2.0], [2.0]])
    np.testing.assert_allclose(result.condition, 1.5)


@checked
@given(seeds, st.floats(0.0, 0.99))
def test_bellman_recovers_drawn_values(seed, discount):
    rng = np.random.default_rng(seed)
    transition, policy = random_ensemble(rng)[0][0], random_policy(rng, 5, 2)
    drawn = rng.normal(size=(5, 2))
    future = np.einsum("sat,tb,tb->sa", transition, policy, drawn)
    result = ube.solve_bellman(transition, drawn - discount * future, policy, discount)
    np.testing.assert_allclose(result.q, drawn, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.v, (policy * drawn).sum(-1), rtol=1e-9, atol=1e-9)
    assert result.residual < 1e-12


def test_discount_one_on_an_absorbing_problem():
    # Each step ends the episode with probability 1/4, so 4 steps of reward 1.
    result = ube.solve_bellman(np.array([[[0.75]]]), np.ones((1, 1)), np.ones((1, 1)), 1.0)
    np.testing.assert_allclose([result.v[0], result.condition], [4.0, 4.0])


# Theory, on beliefs that are enumerated.


@checked
@given(seeds, discounts, st.booleans())
def test_theorem_1_exact_variance_of_an_enumerated_belief(seed, discount, random_rewards):
    rng = np.random.default_rng(seed)
    transition, reward = enumerated_ensemble(rng, random_rewards=random_rewards)
    policy = random_policy(rng, 4, 2)
    v, q = member_values(transition, reward, policy, discount)
    for form in ube.FORMS:
        result = ube.solve_exact(transition, reward, policy, discount, min_local=None, form=form)
        np.testing.assert_allclose(result.v, v.var(0), atol=1e-10)
        np.testing.assert_allclose(result.q, q.var(0), atol=1e-10)


@checked
@given(seeds, discounts)
def test_theorem_2_and_corollary_1_order(seed, discount):
    rng = np.random.default_rng(seed)
    transition, reward = enumerated_ensemble(rng)
    policy = random_policy(rng, 4, 2)
    problem = (transition, reward, policy, discount)
    exact, pombu = ube.solve_exact(*problem, min_local=None), ube.solve_pombu(*problem)
    clipped = ube.solve_exact(*problem)
    for name in ("local_v", "local_q", "v", "q"):
        assert np.all(getattr(exact, name) <= getattr(pombu, name) + 1e-12)
    for name in ("v", "q"):  # W >= clipped U >= U, section 4.1
        assert np.all(getattr(clipped, name) <= getattr(pombu, name) + 1e-12)
        assert np.all(getattr(exact, name) <= getattr(clipped, name) + 1e-12)


@checked
@given(seeds, discounts)
def test_forms_of_one_local_uncertainty_agree(seed, discount):
    rng = np.random.default_rng(seed)
    problem = (*enumerated_ensemble(rng), random_policy(rng, 4, 2), discount)
    total, gap, difference = (ube.solve_exact(*problem, form=form) for form in ube.FORMS)
    for other in (gap, difference):
        np.testing.assert_allclose(other.local_v, total.local_v, atol=1e-12)
        np.testing.assert_allclose(other.local_q, total.local_q, atol=1e-12)


@checked
@given(seeds, discounts)
def test_pombu_is_tight_if_members_and_policy_are_deterministic(seed, discount):
    rng = np.random.default_rng(seed)
    problem = (
        *enumerated_ensemble(rng, deterministic=True),
        random_policy(rng, 4, 2, deterministic=True),
        discount,
    )
    exact, pombu = ube.solve_exact(*problem, min_local=None), ube.solve_pombu(*problem)
    np.testing.assert_allclose(pombu.v, exact.v, atol=1e-12)
    np.testing.assert_allclose(pombu.q, exact.q, atol=1e-12)


@checked
@given(seeds, st.floats(0.0, 0.99))
def test_no_variance_if_all_members_are_the_same(seed, discount):
    rng = np.random.default_rng(seed)
    transition, reward = random_ensemble(rng, num_members=1)
    same = (np.repeat(transition, 3, 0), np.repeat(reward, 3, 0), random_policy(rng, 5, 2))
    for solver in SOLVERS.values():
        result = solver(*same, discount)
        np.testing.assert_allclose(result.v, 0, atol=1e-12)
        np.testing.assert_allclose(result.q, 0, atol=1e-12)


@checked
@given(seeds, st.floats(0.0, 0.99))
def test_q_form_is_v_form_at_the_actions_of_a_deterministic_policy(seed, discount):
    rng = np.random.default_rng(seed)
    problem = (*random_ensemble(rng), random_policy(rng, 5, 2, deterministic=True), discount)
    for solver in SOLVERS.values():
        result = solver(*problem)
        at_action = (problem[2] * result.q).sum(-1)
        np.testing.assert_allclose(result.v, at_action, rtol=1e-9, atol=1e-12)


@checked
@given(seeds)
def test_discount_zero_leaves_the_variance_of_rewards(seed):
    rng = np.random.default_rng(seed)
    transition, reward = random_ensemble(rng)
    policy = random_policy(rng, 5, 2)
    for solver in (ube.solve_exact, ube.solve_pombu, ube.ensemble_variance):
        result = solver(transition, reward, policy, 0.0)
        np.testing.assert_allclose(result.q, reward.var(0), atol=1e-12)
        np.testing.assert_allclose(result.v, (policy * reward).sum(-1).var(0), atol=1e-12)


def test_upper_bound_is_above_the_variance_of_an_enumerated_belief():
    rng = np.random.default_rng(0)
    transition, reward = enumerated_ensemble(rng)
    policy = random_policy(rng, 4, 2)
    v, q = member_values(transition, reward, policy, 1.0)
    result = ube.solve_upper_bound(transition, reward, policy, 1.0)
    assert np.all(result.v >= v.var(0) - 1e-12)
    assert np.all(result.q >= q.var(0) - 1e-12)
    for discount in (0.3, 0.9):
        v, q = member_values(transition, reward, policy, discount)
        result = ube.solve_upper_bound(transition, reward, policy, discount)
        assert np.all(result.v >= discount**2 * v.var(0) - 1e-12)
        assert np.all(result.q >= discount**2 * q.var(0) - 1e-12)


def test_no_bound_where_it_is_documented_to_be_none():
    # One step into a known end, or into a known reward: nothing to propagate after the first.
    member = lambda p: [[[0.0, p]], [[0.0, 0.0]]]
    transition = np.array([member(p) for p in (0.2, 0.4, 0.6, 0.8)])
    reward = np.tile([[0.0], [1.0]], (4, 1, 1))
    found = ube.solve_upper_bound(transition, reward, np.ones((2, 1)), 0.5)
    true = ube.ensemble_variance(transition, reward, np.ones((2, 1)), 0.5)
    np.testing.assert_allclose(found.v, 0.25 * true.v)
    # A state that returns to itself pays the same unknown reward again and again.
    transition, reward = np.ones((4, 1, 1, 1)), np.array([-1.0, 0.0, 1.0, 2.0]).reshape(4, 1, 1)
    found = ube.solve_pombu(transition, reward, np.ones((1, 1)), 0.9)
    true = ube.ensemble_variance(transition, reward, np.ones((1, 1)), 0.9)
    np.testing.assert_allclose(true.v / found.v, (1 - 0.9**2) / (1 - 0.9) ** 2)


@checked
@given(seeds, st.floats(0.0, 0.99))
def test_decomposition_adds_up(seed, discount):
    rng = np.random.default_rng(seed)
    problem = (*random_ensemble(rng), random_policy(rng, 5, 2), discount)
    parts, pombu = ube.decompose(*problem), ube.solve_pombu(*problem)
    np.testing.assert_allclose(parts.total_v, parts.epistemic_v + parts.aleatoric_v, atol=1e-10)
    np.testing.assert_allclose(parts.total_q, parts.epistemic_q + parts.aleatoric_q, atol=1e-10)
    np.testing.assert_allclose(parts.epistemic_v, pombu.local_v, atol=1e-12)
    np.testing.assert_allclose(parts.epistemic_q, pombu.local_q, atol=1e-12)
    assert np.all(parts.aleatoric_v >= -1e-12)


# A NumPy loop, with means that are not the ensemble's and with clipping.


def loop_reference(transition, reward, policy, discount, mean_transition, mean_reward, min_local):
    """U of `exact` ("difference") in V- and Q-form: loops, and systems over pairs (s, a)."""
    num_members, num_states, num_actions = reward.shape
    size = num_states * num_actions

    def solve_q(p, r, gamma):
        system = np.eye(size)
        for s, a, t, b in itertools.product(*map(range, (num_states, num_actions) * 2)):
            system[s * num_actions + a, t * num_actions + b] -= gamma * p[s, a, t] * policy[t, b]
        return np.linalg.solve(system, r.reshape(-1)).reshape(num_states, num_actions)

    members = [solve_q(transition[i], reward[i], discount) for i in range(num_members)]
    mean_q = solve_q(mean_transition, mean_reward, discount)
    mean_v = (policy * mean_q).sum(-1)
    cost = np.zeros((num_states, num_actions))
    cost_v = np.zeros(num_states)
    for s in range(num_states):
        next_v, gaps_v = [], []
        for i in range(num_members):
            weight = policy[s] @ transition[i, s]
            diff_v = (policy * (members[i] - mean_q)).sum(-1)
            next_v.append(weight @ mean_v)
            gaps_v.append(weight @ diff_v**2 - (weight @ diff_v) ** 2)
        reward_variance = np.var([policy[s] @ reward[i, s] for i in range(num_members)])
        local = np.var(next_v) - np.mean(gaps_v)
        cost_v[s] = max(reward_variance + discount**2 * local, min_local)
        for a in range(num_actions):
            expectations, gaps = [], []
            for i in range(num_members):
                p = transition[i, s, a]
                joint = p[:, None] * policy
                diff = members[i] - mean_q
                expectations.append(p @ mean_v)
                gaps.append((joint * diff**2).sum() - (joint * diff).sum() ** 2)
            local = np.var(expectations) - np.mean(gaps)
            cost[s, a] = max(np.var(reward[:, s, a]) + discount**2 * local, min_local)
    flow = np.einsum("sat,sa->st", mean_transition, policy)
    v = np.linalg.solve(np.eye(num_states) - discount**2 * flow, cost_v)
    return v, solve_q(mean_transition, cost, discount**2)


@checked
@given(seeds, st.floats(0.0, 0.99), st.sampled_from([0.0, -0.05, 0.3]))
def test_exact_equals_a_numpy_loop(seed, discount, min_local):
    rng = np.random.default_rng(seed)
    transition, reward = random_ensemble(rng)
    means = (random_ensemble(rng)[0][0], rng.normal(size=(5, 2)))
    policy = random_policy(rng, 5, 2)
    result = ube.solve_exact(
        transition,
        reward,
        policy,
        discount,
        min_local=min_local,
        mean_transition=means[0],
        mean_reward=means[1],
    )
    v, q = loop_reference(transition, reward, policy, discount, *means, min_local)
    np.testing.assert_allclose(result.q, q, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(result.v, v, rtol=1e-8, atol=1e-9)


# Transformations.


def test_jit_and_vmap_equal_a_loop():
    rng = np.random.default_rng(1)
    problems = [(*random_ensemble(rng), random_policy(rng, 5, 2)) for _ in range(3)]
    stacked = [jnp.stack(arrays) for arrays in zip(*problems, strict=True)]
    for solver in SOLVERS.values():
        mapped = jax.jit(jax.vmap(lambda *p, solver=solver: solver(*p, 0.9)))(*stacked)
        for i, problem in enumerate(problems):
            alone = solver(*problem, 0.9)
            for many, one in zip(mapped, alone, strict=True):
                np.testing.assert_allclose(many[i], one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", [ube.solve_exact, ube.solve_pombu, ube.solve_upper_bound])
def test_gradients_equal_finite_differences(solver):
    rng = np.random.default_rng(2)
    transition, reward = random_ensemble(rng, mass=0.9)
    arguments = (transition, reward, random_policy(rng, 5, 2))
    options = {"min_local": None} if solver is ube.solve_exact else {}

    def objective(*arguments):
        result = solver(*arguments, 0.9, **options)
        return jnp.sum(jnp.sin(result.v)) + jnp.sum(result.q**2)

    value = jax.jit(objective)
    gradients = jax.grad(objective, argnums=(0, 1, 2))(*arguments)
    step = 1e-6
    for which, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        ends = []
        for sign in (1, -1):
            moved = list(arguments)
            moved[which] = moved[which] + sign * step * direction
            ends.append(value(*moved))
        expected = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-6)


def one_sided(objective, x, direction, step=1e-6):
    return (objective(x) - objective(x - step * direction)) / step


@pytest.mark.parametrize("form", ube.FORMS)
def test_gradients_at_rows_of_mass_one_count_mass_that_goes_missing(form):
    rng = np.random.default_rng(2)
    transition, reward = random_ensemble(rng, mass=1.0)
    policy = random_policy(rng, 5, 2)
    direction = rng.uniform(size=transition.shape)  # only less mass is possible

    def exact(transition):
        return jnp.sum(ube.solve_exact(transition, reward, policy, 0.9, form=form).q)

    def aleatoric(transition):
        return jnp.sum(ube.decompose(transition, reward, policy, 0.9).aleatoric_v)

    for objective in (exact, aleatoric):
        gradient = jax.grad(objective)(transition)
        expected = one_sided(objective, transition, direction)
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-4)


def test_gradients_of_moments_where_mass_is_one_and_rows_are_certain():
    rng = np.random.default_rng(4)
    belief = layered_posterior(rng)
    concentration = np.array(belief.concentration)
    concentration[:2, :, -1] = 0.0  # no step from here ends the episode
    concentration[0, 0, 3:] = 0.0  # and this one always leads to the same state
    policy = random_policy(rng, 6, 2)

    def objective(concentration):
        belief_there = belief._replace(concentration=concentration)
        return jnp.sum(ube.solve_moments(belief_there, policy, 0.9).v)

    direction = -rng.uniform(size=concentration.shape)
    direction[2:] = 0.0  # the last layers stay: their other entries are impossible
    direction[:2, :, :2] = 0.0
    gradient = jax.grad(objective)(jnp.asarray(concentration))
    expected = one_sided(objective, jnp.asarray(concentration), direction)
    np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-4)


def test_whole_numbers_take_the_precision_of_the_rewards():
    transition = np.array([[[0, 1]], [[0, 0]]])
    reward = np.array([[0.1], [1 / 3]])
    values = ube.solve_bellman(transition, reward, np.ones((2, 1)), 0.5)
    assert values.v.dtype == np.dtype("float64")
    np.testing.assert_array_equal(values.v, [0.1 + 0.5 / 3, 1 / 3])


def test_float32_in_float32_out():
    rng = np.random.default_rng(3)
    problem = (*random_ensemble(rng), random_policy(rng, 5, 2))
    single = [array.astype(np.float32) for array in problem]
    for solver in SOLVERS.values():
        wide, narrow = solver(*problem, 0.95), solver(*single, np.float32(0.95))
        assert {field.dtype for field in narrow} == {np.dtype("float32")}
        np.testing.assert_allclose(narrow.q, wide.q, rtol=1e-4, atol=1e-5)
        for function in (solver, jax.jit(solver)):  # a float64 scalar does not widen the arrays
            same = function(*single, jnp.float64(0.95))
            assert {field.dtype for field in same} == {np.dtype("float32")}
            np.testing.assert_allclose(same.q, narrow.q, rtol=1e-5)
    result = ube.solve_exact(*single, 0.95, min_local=np.float64(0.1))
    assert {field.dtype for field in result} == {np.dtype("float32")}


def test_float32_keeps_uncertainties_that_are_small_beside_the_values():
    # Values of about 1000 that hardly differ: second moments minus squared means would be noise.
    rng = np.random.default_rng(5)
    transition, reward = random_ensemble(rng, mass=1.0)
    problem = (transition, np.stack(3 * [10.0 + reward[0]]), random_policy(rng, 5, 2))
    single = [array.astype(np.float32) for array in problem]
    for form in ube.FORMS:
        wide, narrow = (
            ube.solve_exact(*arrays, 0.99, min_local=None, form=form)
            for arrays in (problem, single)
        )
        for field in ("local_v", "local_q"):
            expected = getattr(wide, field)
            error = np.max(np.abs(getattr(narrow, field) - expected))
            assert error < 0.01 * np.max(np.abs(expected)), (form, field)
        np.testing.assert_allclose(narrow.q, wide.q, rtol=0.05, atol=0.05 * np.max(wide.q))
    wide, narrow = ube.decompose(*problem, 0.99), ube.decompose(*single, 0.99)
    for field in ("total_v", "epistemic_v", "aleatoric_v", "total_q", "epistemic_q", "aleatoric_q"):
        expected = getattr(wide, field)
        np.testing.assert_allclose(getattr(narrow, field), expected, atol=0.01 * expected.max())


def test_many_right_hand_sides_share_the_factors():
    rng = np.random.default_rng(6)
    size = 60
    transition = rng.dirichlet(np.ones(size), (size, 1))
    values = lambda reward: ube.solve_bellman(transition, reward, np.ones((size, 1)), 0.9).v
    jacobian = jax.jit(jax.jacrev(values))
    reward = rng.normal(size=(size, 1))
    inverse = np.linalg.inv(np.eye(size) - 0.9 * transition[:, 0])
    np.testing.assert_allclose(jacobian(reward)[..., 0], inverse, rtol=1e-9)
    rewards = rng.normal(size=(7, size, 1))
    np.testing.assert_allclose(
        jax.vmap(values)(rewards), np.einsum("st,bta->bs", inverse, rewards), rtol=1e-9
    )
    used = jacobian.lower(reward).compile().memory_analysis().temp_size_in_bytes
    assert used < size**3 * 8 / 2  # a copy of the factors for each row of the Jacobian


def test_residual_and_condition_are_the_worst_of_all_systems(monkeypatch):
    rng = np.random.default_rng(7)
    transition, reward = random_ensemble(rng)
    policy = random_policy(rng, 5, 2)
    mean = ube.solve_bellman(transition.mean(0), reward.mean(0), policy, 1.0)
    # What is solved for each member are its differences from the mean MDP.
    rewards = reward - reward.mean(0) + (transition - transition.mean(0)) @ np.asarray(mean.v)
    each = [ube.solve_bellman(p, r, policy, 1.0) for p, r in zip(transition, rewards, strict=True)]
    for i, values in enumerate(each):
        own = ube.solve_bellman(transition[i], reward[i], policy, 1.0)
        np.testing.assert_allclose(values.v, own.v - mean.v, rtol=1e-9)
    for solver in SOLVERS.values():
        result = solver(transition, reward, policy, 1.0)
        assert result.condition >= max(values.condition for values in each)

    residuals, solve = [], linear.solve

    def recording(*arguments):
        solution = solve(*arguments)
        jax.debug.callback(lambda x: residuals.append(float(x)), solution.residual)
        return solution

    with monkeypatch.context() as patched:
        patched.setattr(linear, "solve", recording)
        for solver in SOLVERS.values():
            jax.clear_caches()  # of programs that do not record
            residuals.clear()
            result = solver(transition, reward, policy, 1.0)
            jax.effects_barrier()
            is_propagated = solver is not ube.ensemble_variance
            assert len(residuals) == len(transition) + 1 + is_propagated
            assert float(result.residual) == max(residuals) > 0
    jax.clear_caches()
    transition[1, 0, :] = np.eye(5)[0]  # one member never leaves state 0
    for solver in SOLVERS.values():
        assert not np.isfinite(jax.jit(solver)(transition, reward, policy, 1.0).condition)


def test_gradient_of_the_bound_outside_jit():
    rng = np.random.default_rng(8)
    problem = (*random_ensemble(rng), random_policy(rng, 5, 2), 0.9)
    total = lambda bound: ube.solve_exact(*problem, min_local=bound).v.sum()
    ends = total(10.0 + 1e-4), total(10.0 - 1e-4)
    np.testing.assert_allclose(jax.grad(total)(10.0), (ends[0] - ends[1]) / 2e-4, rtol=1e-6)


# What cannot be solved, and what a user may pass by mistake.


def test_singular_system_under_jit_is_seen_in_the_condition():
    loop = jnp.ones((1, 1, 1))  # one state that never ends
    result = jax.jit(ube.solve_bellman)(loop, jnp.ones((1, 1)), jnp.ones((1, 1)), 1.0)
    assert not np.isfinite(result.condition)
    with pytest.raises(ValueError, match="singular or ill-conditioned"):
        ube.check_result(result)


def test_nearly_singular_system_in_float32_is_refused():
    rng = np.random.default_rng(4)
    transition = rng.dirichlet(np.ones(20), (20, 1)).astype(np.float32)
    problem = (transition, np.ones((20, 1), np.float32), np.ones((20, 1), np.float32))
    result = jax.jit(ube.solve_bellman)(*problem, np.float32(1.0))
    with pytest.raises(ValueError, match="singular or ill-conditioned"):
        ube.check_result(result)
    ube.check_result(jax.jit(ube.solve_bellman)(*problem, np.float32(0.99)))


def good_problem():
    rng = np.random.default_rng(5)
    return [*random_ensemble(rng), random_policy(rng, 5, 2), 0.9]


def spoil(which, change):
    problem = good_problem()
    problem[which] = change(np.array(problem[which]))
    return problem


def put(value):
    def change(array):
        array.flat[0] = value
        return array

    return change


@pytest.mark.parametrize(
    ("which", "change", "message"),
    [
        (0, lambda p: 2 * p, "transition rows must sum to at most 1, got a row that sums to 1.94"),
        (0, put(-0.1), "transition must hold probabilities, got -0.1"),
        (0, put(np.nan), "transition must be finite"),
        (0, lambda p: p[0], r"transition must have shape \[N, S, A, S\]"),
        (0, lambda p: p[..., :-1], r"transition must have shape \[N, S, A, S\]"),
        (1, put(np.nan), "reward must be finite"),
        (1, lambda r: r[:, :-1], r"reward must have shape \[N, S, A\]"),
        (1, lambda r: r[0], r"reward must have shape \[N, S, A\]"),
        (2, lambda p: p[:, :1], r"policy must have shape \[S, A\]"),
        (2, lambda p: 0.5 * p, "policy rows must be probabilities that sum to 1, got .* 0.5"),
        (2, put(np.nan), "policy rows must be probabilities"),
        (3, lambda _: 1.5, r"discount must be in \[0, 1\], got 1.5"),
        (3, lambda _: -0.1, r"discount must be in \[0, 1\], got -0.1"),
        (3, lambda _: np.nan, r"discount must be in \[0, 1\], got nan"),
    ],
)
@pytest.mark.parametrize("solver", [*SOLVERS.values(), ube.decompose])
def test_bad_input_is_named(solver, which, change, message):
    with pytest.raises(ValueError, match=message):
        solver(*spoil(which, change))


def test_discount_one_needs_a_policy_that_terminates():
    transition = np.zeros((3, 1, 3))
    transition[0, 0, 1] = transition[1, 0, 0] = 1.0  # states 0 and 1 for ever; 2 ends
    with pytest.raises(ValueError, match="2 states never reach termination, for example state 0"):
        ube.solve_bellman(transition, np.zeros((3, 1)), np.ones((3, 1)), 1.0)


def test_whole_numbers_and_closed_over_arrays_may_terminate():
    transition, reward = np.array([[[0, 1]], [[0, 0]]]), np.ones((2, 1), int)
    policy = np.ones((2, 1), int)
    dense = transition, reward, policy, 1
    listed = Sparse(np.array([[[1]], [[-1]]]), np.array([[[1]], [[0]]])), *dense[1:]
    for problem in (dense, listed):
        ube.check_problem(*problem)
        np.testing.assert_allclose(ube.solve_bellman(*problem).v, [2.0, 1.0], rtol=1e-6)
        closed = jax.tree.map(jnp.asarray, problem)
        v = jax.jit(lambda closed=closed: ube.solve_bellman(*closed[:3], 1.0).v)()
        np.testing.assert_allclose(v, [2.0, 1.0], rtol=1e-6)


def test_rows_that_sum_to_one_up_to_rounding_do_not_terminate():
    transition = np.array([[[0.7, 0.3]], [[0.9, 0.1]]], np.float32)
    ones = np.ones((2, 1), np.float32)
    listed = Sparse(np.array([[[0, 1]], [[0, 1]]]), transition)
    for one in (transition, listed):
        with pytest.raises(ValueError, match="never reach termination"):
            ube.check_problem(one, ones, ones, 1.0)


def test_slow_termination_is_termination():
    # A million steps: nothing for float32, no difficulty in float64.
    problem = (np.full((1, 1, 1), 1 - 1e-6), np.ones((1, 1)), np.ones((1, 1)), 1.0)
    np.testing.assert_allclose(ube.solve_bellman(*problem).v, 1e6, rtol=1e-6)
    with pytest.raises(ValueError, match=r"singular or ill-conditioned|never reach termination"):
        ube.solve_bellman(*(np.float32(array) for array in problem))


def test_scalars_with_axes_and_shapes_that_do_not_fit_are_named():
    transition, reward, policy, _ = good_problem()
    for solver in SOLVERS.values():
        with pytest.raises(ValueError, match=r"discount must be a scalar, got shape \(2,\)"):
            jax.jit(solver)(transition, reward, policy, jnp.array([0.9, 0.8]))
    with pytest.raises(ValueError, match="min_local must be a scalar"):
        ube.solve_exact(transition, reward, policy, 0.9, min_local=np.zeros(2))
    with pytest.raises(ValueError, match=r"reward must have shape \[N, S, A\]"):
        ube.check_problem(transition, np.zeros(3), policy, 0.9)


def test_bad_means_and_unknown_form_are_named():
    problem = good_problem()
    with pytest.raises(ValueError, match=r"mean_transition must have shape \[S, A, S\]"):
        ube.solve_exact(*problem, mean_transition=np.zeros((4, 2, 4)))
    with pytest.raises(ValueError, match="mean_reward must be finite"):
        ube.solve_exact(*problem, mean_reward=np.full((5, 2), np.inf))
    with pytest.raises(
        ValueError, match=r"form 'w' is unknown; choose from total, gap, difference$"
    ):
        ube.solve_exact(*problem, form="w")


# The iterative solver.


tight_warm = jax.jit(functools.partial(linear.solve_warm, tolerance=1e-10))


@checked
@given(seeds, st.floats(0.0, 0.99))
def test_warm_solver_equals_lu(seed, discount):
    rng = np.random.default_rng(seed)
    flow = rng.dirichlet(np.full(20, 0.2), (3, 20))
    rhs, start = rng.normal(size=(2, 3, 20))
    warm = tight_warm(flow, jnp.asarray(rhs), discount, jnp.asarray(start))
    direct = np.linalg.solve(np.eye(20) - discount * flow, rhs[..., None])[..., 0]
    np.testing.assert_allclose(warm.x, direct, atol=1e-6)


def test_warm_solver_needs_no_iteration_from_the_solution_and_lu_where_it_fails():
    rng = np.random.default_rng(6)
    flow, drawn = rng.dirichlet(np.ones(20), (3, 20)), jnp.asarray(rng.normal(size=(3, 20)))
    rhs = drawn - 0.99 * jnp.einsum("nst,nt->ns", flow, drawn)
    at_once = linear.solve_warm(flow, rhs, 0.99, drawn)
    assert at_once.iterations == 0
    given_up = linear.solve_warm(flow, rhs, 0.99, jnp.zeros_like(drawn), max_iterations=1)
    assert given_up.fell_back
    np.testing.assert_allclose(given_up.x, drawn, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-28, 1e-12, 1e12, 1e28])
def test_the_unit_of_the_right_hand_side_does_not_matter_to_the_warm_solver(unit):
    rng = np.random.default_rng(7)
    flow = rng.dirichlet(np.ones(20), (3, 20)).astype(np.float32)
    rhs = rng.normal(size=(3, 20)).astype(np.float32)
    zeros = np.zeros_like(rhs)
    plain = linear.solve_warm(flow, rhs, 0.9, zeros)
    scaled = linear.solve_warm(flow, rhs * np.float32(unit), 0.9, zeros)
    assert plain.iterations == scaled.iterations > 0
    assert not scaled.fell_back
    np.testing.assert_allclose(scaled.x / np.float32(unit), plain.x, rtol=1e-4, atol=1e-5)


# Closed-form moments.


def layered_posterior(rng):
    """A belief over MDPs of 6 states in 3 layers, with 2 actions."""
    belief = layered_belief(rng, dtype=float)
    return belief._replace(reward_precision=jnp.asarray(rng.uniform(1, 4, size=(6, 2))))


def draw(rng, belief, num_members):
    """MDPs from the belief by NumPy, independently of `posterior.sample`."""
    gammas = rng.standard_gamma(belief.concentration, (num_members, *belief.concentration.shape))
    transition = (gammas / gammas.sum(-1, keepdims=True))[..., :-1]
    scale = 1 / np.sqrt(belief.reward_precision)
    noise = rng.normal(size=(num_members, *belief.reward_mean.shape))
    return posterior.Mdp(transition, belief.reward_mean + scale * noise)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moments_equal_monte_carlo_on_layered_mdps(seed):
    rng = np.random.default_rng(seed)
    belief, policy = layered_posterior(rng), random_policy(rng, 6, 2)
    result = ube.solve_moments(belief, jnp.asarray(policy), 0.9)
    samples = draw(rng, belief, 100_000)
    v = np.zeros((100_000, 6))
    q = np.zeros((100_000, 6, 2))
    for s in reversed(range(6)):
        future = np.einsum("nat,nt->na", samples.transition[:, s], v)
        q[:, s] = samples.reward[:, s] + 0.9 * future
        v[:, s] = q[:, s] @ policy[s]
    # The standard error of a variance is about sqrt(2 / 100000) = 0.45 % (more for heavy tails).
    np.testing.assert_allclose(result.v, v.var(0), rtol=0.03)
    np.testing.assert_allclose(result.q, q.var(0), rtol=0.03)
    np.testing.assert_allclose(result.mean_v, v.mean(0), atol=0.02)
    np.testing.assert_allclose(result.covariance, np.cov(v.T), atol=0.03 * np.max(v.var(0)))


def test_exact_ube_converges_to_the_moments():
    rng = np.random.default_rng(3)
    belief, policy = layered_posterior(rng), random_policy(rng, 6, 2)
    expected = ube.solve_moments(belief, jnp.asarray(policy), 0.9)
    errors = []
    for num_members in (100, 10_000):
        samples = draw(rng, belief, num_members)
        result = ube.solve_exact(*samples, policy, 0.9, min_local=None)
        errors.append(np.max(np.abs(result.q / expected.q - 1)))
    assert errors[1] < 0.06  # about three standard errors of a variance from 10,000 draws
    assert errors[1] < errors[0]


def test_moments_of_one_beta_row_by_hand():
    # One state: reward 0, then a state worth exactly 1 with p ~ Beta(2, 3), or the end.
    concentration = np.zeros((2, 1, 3))
    concentration[0, 0, 1:] = 2.0, 3.0
    concentration[1, 0, 2] = 1.0
    belief = posterior.init(2, 1, concentration=concentration, dtype=float)
    belief = belief._replace(
        reward_mean=jnp.array([[0.0], [1.0]]), reward_precision=jnp.array([[1e30], [1e30]])
    )
    result = ube.solve_moments(belief, jnp.ones((2, 1)), 0.5)
    variance = 2 * 3 / (5**2 * 6)  # of Beta(2, 3)
    np.testing.assert_allclose(result.v, [0.25 * variance, 0.0], atol=1e-15)
    np.testing.assert_allclose(result.mean_v, [0.5 * 2 / 5, 1.0])


def test_moments_of_two_equal_actions_by_hand():
    # As above, with two actions that are equally likely and independent of each other.
    concentration = np.zeros((2, 2, 3))
    concentration[0, :, 1:] = 2.0, 3.0
    concentration[1, :, 2] = 1.0
    belief = posterior.init(2, 2, concentration=concentration, dtype=float)
    belief = belief._replace(
        reward_mean=jnp.array([[0.0, 0.0], [1.0, 1.0]]), reward_precision=jnp.full((2, 2), 1e30)
    )
    result = ube.solve_moments(belief, jnp.full((2, 2), 0.5), 0.5)
    variance = 2 * 3 / (5**2 * 6)  # of Beta(2, 3)
    np.testing.assert_allclose(result.local_q[0], variance)
    np.testing.assert_allclose(result.local_v[0], variance / 2)
    np.testing.assert_allclose(result.v[0], 0.25 * variance / 2)
    np.testing.assert_allclose(result.mean_q, [[0.5 * 2 / 5] * 2, [1.0, 1.0]])


def test_moments_with_cycles_are_right_in_the_limit_of_much_data():
    rng = np.random.default_rng(8)
    transition, reward = random_ensemble(rng, num_members=1, num_states=4, mass=0.8)
    policy = random_policy(rng, 4, 2)
    counts = 3000 * np.concatenate([transition[0], np.full((4, 2, 1), 0.2)], -1)
    belief = posterior.init(4, 2, concentration=counts, reward_precision=1e4, dtype=float)
    belief = belief._replace(reward_mean=jnp.asarray(reward[0]))
    samples = draw(rng, belief, 20_000)
    q = jax.vmap(ube.solve_bellman, in_axes=(0, 0, None, None))(*samples, policy, 0.9).q
    result = ube.solve_moments(belief, jnp.asarray(policy), 0.9)
    np.testing.assert_allclose(result.q, q.var(0), rtol=0.05)


@pytest.mark.parametrize(
    ("counts", "discount"), [((4.0, 0.4), 0.99), ((0.3, 0.1), 0.9), ((1e-6, 1e-6), 1.0)]
)
def test_moments_refuse_cycles_whose_surprises_grow(counts, discount):
    # One state that returns to itself or ends: with so little data, the series has no limit.
    belief = posterior.init(1, 1, concentration=np.array([[counts]]), dtype=float)
    result = jax.jit(ube.solve_moments)(belief, jnp.ones((1, 1)), discount)
    assert not result.condition < 1e5
    if discount < 1:
        with pytest.raises(ValueError, match="singular or ill-conditioned"):
            ube.solve_moments(belief, jnp.ones((1, 1)), discount)


@pytest.mark.parametrize("solver", [ube.solve_exact, ube.ensemble_variance, ube.decompose])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transition": "a"}, "transition must hold real numbers.*got 'a'"),
        ({"transition": np.ones((2, 3, 2, 3), complex)}, "transition must hold real.*complex128"),
        ({"reward": np.ones((2, 3, 2)) + 1j}, "reward must hold real numbers.*got complex128"),
        ({"policy": {}}, "policy must hold real numbers"),
        ({"policy": [[1], [0.5, 0.5]]}, "policy must hold real numbers in rows of one length"),
        ({"discount": "0.9"}, "discount must hold real numbers.*got '0.9'"),
        ({"discount": 0.9j}, "discount must hold real numbers.*got complex"),
        ({"discount": None}, "discount must hold real numbers.*got None"),
    ],
)
def test_what_is_no_real_number_is_named(solver, change, message):
    problem = {
        "transition": np.full((2, 3, 2, 3), 1 / 3).tolist(),
        "reward": np.ones((2, 3, 2)).tolist(),
        "policy": [[0.5, 0.5]] * 3,
        "discount": 0.9,
    }
    with pytest.raises(ValueError, match=message):
        solver(*(problem | change).values())
    with pytest.raises(ValueError, match=message):
        ube.check_problem(*(problem | change).values())


def test_lists_are_arrays_and_options_are_checked_like_them():
    transition = np.full((2, 3, 2, 3), 1 / 3).tolist()
    problem = (transition, np.ones((2, 3, 2)).tolist(), [[0.5, 0.5]] * 3, 0.9)
    np.testing.assert_allclose(ube.solve_exact(*problem).v, 0, atol=1e-6)
    ube.check_problem(*problem)
    single = Sparse([[[0, 1]], [[1, -1]]], [[[0.5, 0.5]], [[0.5, 0]]])
    ube.check_problem(single, [[1], [0]], [[1], [1]], 1)
    with pytest.raises(ValueError, match=r"reward must have shape \[S, A\] = \(2, 1\)"):
        ube.check_problem(single, [1, 0], [[1], [1]], 0.9)
    for name, value in (("min_local", "0"), ("mean_transition", "a"), ("mean_reward", 1j)):
        with pytest.raises(ValueError, match=f"{name} must hold real numbers"):
            ube.solve_exact(*problem, **{name: value})


def test_moments_refuse_bad_input():
    belief = posterior.init(3, 2)
    with pytest.raises(ValueError, match="policy must hold real numbers"):
        ube.solve_moments(belief, jnp.full((3, 2), 0.5 + 1j), 0.9)
    with pytest.raises(ValueError, match="discount must hold real numbers"):
        ube.solve_moments(belief, jnp.full((3, 2), 0.5), "0.9")
    with pytest.raises(ValueError, match="policy must have the posterior's shape"):
        ube.solve_moments(belief, jnp.ones((3, 1)), 0.9)
    with pytest.raises(ValueError, match=r"discount must be in \[0, 1\]"):
        ube.solve_moments(belief, jnp.full((3, 2), 0.5), 2.0)
    with pytest.raises(ValueError, match="policy rows must be probabilities that sum to 1"):
        ube.solve_moments(belief, jnp.ones((3, 2)), 0.9)


@pytest.mark.parametrize("said", [(0.25, 0.5), (0.5, 0.25)])
def test_the_residual_of_moments_is_that_of_the_worse_system(monkeypatch, said):
    each, solve = iter(said), linear.solve
    known = lambda *given: solve(*given)._replace(residual=jnp.float32(next(each)))
    monkeypatch.setattr(moments.linear, "solve", known)
    plain = moments._solve_moments.__wrapped__  # not compiled
    result = plain(posterior.init(3, 2), jnp.full((3, 2), 0.5), 0.9)
    assert result.residual == 0.5
