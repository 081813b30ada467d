"""Policy iteration against a NumPy version and problems with known answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmark import numpy_reference
from qusac_jax import posterior
from qusac_jax.tabular import agent
from tests.tabular.beliefs import NUM_ACTIONS, NUM_STATES, some_belief, some_policy

UNCLIPPED = -1e3  # below every uncertainty reward


def unclipped(method, **options):
    return agent.Config(method=method, min_local=UNCLIPPED, **options)


@pytest.mark.parametrize("method", ["exact_ube", "pombu", "psrl"])
def test_optimize_equals_the_numpy_reference(method):
    # The reference goes through all 40 steps of a cycle, so this checks the short cut as well. With
    # all pairs visited and no clipping there are no ties, which the two would break differently.
    for seed in range(6):
        belief, policy, key = some_belief(seed, 60), some_policy(seed), jax.random.key(seed)
        config = unclipped(method)
        warm_start = agent.init_warm_start(NUM_STATES, config)
        plan = agent.optimize(belief, policy, warm_start, key, config=config)
        key_sample, _ = jax.random.split(key)
        if method == "psrl":
            sample = posterior.sample(belief, key_sample, 1)
            models = (tuple(np.array(x[0], float) for x in sample), None)
        else:
            mean, sample = posterior.mean(belief), posterior.sample(belief, key_sample, 5)
            models = [tuple(np.array(x, float) for x in mdp) for mdp in (mean, sample)]
        expected = numpy_reference.optimize(
            belief,
            np.array(policy),
            np.random.default_rng(0),
            numpy_reference.Run(method=method, min_local=UNCLIPPED),
            models,
        )
        np.testing.assert_array_equal(plan.policy, expected)


@pytest.mark.slow
def test_cycles_end_where_all_steps_would_have_ended():
    config, periods = unclipped("exact_ube"), set()
    for seed in range(6):
        belief, policy, key = some_belief(seed, 8), some_policy(seed), jax.random.key(seed)
        warm_start = agent.init_warm_start(NUM_STATES, config)
        whole = agent.optimize(belief, policy, warm_start, key, config=config)
        periods.add(int(whole.period))
        if whole.period > 1:
            # Cut before the cycle closes, no short cut is taken.
            later = policy
            one_step = dataclasses.replace(config, max_steps=1)
            for _ in range(config.max_steps):
                later = agent.optimize(belief, later, warm_start, key, config=one_step).policy
            np.testing.assert_array_equal(whole.policy, later)
    assert max(periods) > 1  # otherwise this test shows nothing


@pytest.mark.parametrize("method", ["exact_ube", "psrl"])
def test_result_does_not_depend_on_the_solver_or_where_it_starts(method):
    config = unclipped(method)
    for seed in range(4):
        belief, policy, key = some_belief(seed), some_policy(seed), jax.random.key(seed)
        warm_start = agent.init_warm_start(NUM_STATES, config)
        bad_start = jax.tree.map(lambda x: x + 100.0, warm_start)
        plans = [
            agent.optimize(belief, policy, warm_start, key, config=config),
            agent.optimize(belief, policy, bad_start, key, config=config),
            agent.optimize(
                belief, policy, warm_start, key, config=dataclasses.replace(config, solver="lu")
            ),
        ]
        for other in plans[1:]:
            np.testing.assert_array_equal(other.policy, plans[0].policy)
            np.testing.assert_allclose(
                other.evaluation.mean_q, plans[0].evaluation.mean_q, rtol=1e-3, atol=1e-3
            )


def test_psrl_finds_the_best_policy_of_a_known_mdp():
    # A chain of 6: action 1 goes on, action 0 stays; only leaving from its end pays.
    chain = [(s, 1, 0.0 if s < 5 else 1.0, s + 1) for s in range(6)]
    chain += [(s, 0, 0.0, s) for s in range(6)]
    data = posterior.Transitions(*map(jnp.asarray, zip(*chain, strict=True)))
    belief = posterior.update(posterior.init(6, 2), data, weight=1e6)
    config = unclipped("psrl")
    plan = agent.optimize(
        belief,
        jnp.zeros(6, int),
        agent.init_warm_start(6, config),
        jax.random.key(0),
        config=config,
    )
    np.testing.assert_array_equal(plan.policy, 1)
    assert plan.period == 1
    np.testing.assert_allclose(
        plan.evaluation.mean_q[:, 1], 0.99 ** np.arange(5, -1, -1), atol=0.01
    )


def test_risk_decides_between_a_known_and_an_unknown_reward():
    # From state 0 both actions end the episode: action 0 is known to pay 0; action 1 is unknown,
    # with mean 0 and variance 1.
    data = posterior.Transitions(*map(jnp.asarray, ([0], [0], [0.0], [NUM_STATES])))
    belief = posterior.update(posterior.init(NUM_STATES, NUM_ACTIONS), data, weight=1e4)
    belief = belief._replace(concentration=belief.concentration.at[0, 1, NUM_STATES].set(1e4))
    for risk, action in ((1.0, 1), (-1.0, 0)):
        config = unclipped("exact_ube", risk=risk)
        warm_start = agent.init_warm_start(NUM_STATES, config)
        plan = agent.optimize(belief, some_policy(), warm_start, jax.random.key(3), config=config)
        mean_gap = abs(float(plan.evaluation.mean_q[0, 1] - plan.evaluation.mean_q[0, 0]))
        assert mean_gap < 0.01
        assert plan.policy[0] == action


def test_ties_are_broken_at_random():
    belief = posterior.init(NUM_STATES, NUM_ACTIONS)  # nothing is known: all actions are the same
    config = agent.Config(method="ensemble_mean")
    warm_start = agent.init_warm_start(NUM_STATES, config)
    policies = [
        agent.optimize(belief, some_policy(), warm_start, jax.random.key(i), config=config).policy
        for i in range(100)
    ]
    share = np.mean(policies)
    np.testing.assert_allclose(share, 0.5, atol=5 * 0.5 / np.sqrt(600))


def test_differences_of_rounding_are_ties():
    belief = posterior.init(1, 2)
    belief = belief._replace(reward_mean=jnp.array([[1.0, np.nextafter(np.float32(1), 2)]]))
    config = agent.Config(method="ensemble_mean")
    warm_start, policy = agent.init_warm_start(1, config), jnp.zeros(1, int)
    chosen = {
        int(agent.optimize(belief, policy, warm_start, jax.random.key(i), config=config).policy[0])
        for i in range(20)
    }
    assert chosen == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("method", agent.METHODS)
def test_what_no_result_depends_on_is_what_is_not_read(method):
    def found(**options):
        config = agent.Config(method=method, max_steps=1, **options)
        warm_start = agent.init_warm_start(NUM_STATES, config)
        given = (some_belief(), some_policy(), warm_start, jax.random.key(2))
        plan = agent.optimize(*given, config=config)
        return np.concatenate([plan.policy, np.ravel(plan.evaluation[:3])])

    standard = found()
    for name, value in (("risk", -50.0), ("num_members", 3), ("min_local", 20.0)):
        is_read = method in agent.READ_BY[name]
        assert np.array_equal(found(**{name: value}), standard) != is_read, name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.full(NUM_STATES, NUM_ACTIONS), r"policy must be in 0 \.\. 1, got values from 2 to 2"),
        (np.zeros(NUM_STATES), "policy must be integers, got float64"),
        (np.zeros((1, NUM_STATES), int), "policy must hold an action for each state"),
    ],
)
def test_policies_that_are_none_are_named(wrong, message):
    config, key = agent.Config(method="ensemble_mean"), jax.random.key(0)
    with pytest.raises(ValueError, match=message):
        agent.evaluate(some_belief(), wrong, key, config=config)
    warm_start = agent.init_warm_start(NUM_STATES, config)
    with pytest.raises(ValueError, match=message):
        agent.optimize(some_belief(), wrong, warm_start, key, config=config)


@pytest.mark.slow
def test_warm_starts_are_cast_and_those_of_other_sizes_and_no_keys_are_named():
    config, key = agent.Config(method="exact_ube"), jax.random.key(0)
    other = agent.init_warm_start(NUM_STATES + 1, config)
    with pytest.raises(ValueError, match=r"warm_start.mean must have shape .* got"):
        agent.optimize(some_belief(), some_policy(), other, key, config=config)
    cold = agent.init_warm_start(NUM_STATES, config)
    for wrong in (0, np.zeros(3, np.uint32), jax.random.split(key, 3)):
        with pytest.raises(ValueError, match="key must be a key of JAX"):
            agent.optimize(some_belief(), some_policy(), cold, wrong, config=config)
    agent.optimize(some_belief(), some_policy(), cold, jax.random.PRNGKey(0), config=config)
    with jax.enable_x64(True):
        belief = jax.tree.map(
            lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, some_belief()
        )
        plan = agent.optimize(belief, some_policy(), cold, key, config=config)
        assert plan.evaluation.mean_q.dtype == jnp.float64


def test_any_integers_are_a_policy():
    config, key = agent.Config(method="ensemble_mean"), jax.random.key(0)
    warm_start = agent.init_warm_start(NUM_STATES, config)
    expected = agent.optimize(some_belief(), some_policy(), warm_start, key, config=config)
    policy = np.asarray(some_policy())
    for given in (policy.astype(np.uint8), policy.tolist()):
        plan = agent.optimize(some_belief(), given, warm_start, key, config=config)
        np.testing.assert_array_equal(plan.policy, expected.policy)
        assert plan.policy.dtype == jnp.int32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "w"}, "method 'w' is unknown; choose from ensemble_mean, "),
        ({"solver": "qr"}, "solver 'qr' is unknown; choose from warm, lu$"),
        ({"discount": 1.0}, r"discount must be in \[0, 1\) in float32, got 1.0"),
        ({"discount": 0.99999999}, r"discount must be in \[0, 1\) in float32, got 0.99999999"),
        ({"min_local": None}, "min_local must be finite, got None"),
        ({"discount": -0.1}, r"discount must be in \[0, 1\) in float32, got -0.1"),
        ({"num_members": 2.5}, "num_members must be an integer of at least 1, got 2.5"),
        ({"num_members": 0}, "num_members must be an integer of at least 1, got 0"),
        ({"max_steps": 0}, "max_steps must be an integer of at least 1, got 0"),
        ({"risk": float("nan")}, "risk must be finite, got nan"),
    ],
)
def test_bad_config_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        agent.Config(**options)
