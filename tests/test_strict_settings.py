"""The tabular half within a user's program that has JAX's strict settings on.

Tracing is enough: both settings refuse a function before it is compiled. The deep half is not
here, since Flax and Optax rely on what the settings refuse.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import posterior, sparse, ube
from qusac_jax.tabular import agent as tabular_agent
from qusac_jax.tabular import environments, experiment

N, S, A, K = 3, 6, 2, 3


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def transitions(is_sparse, *members):
    if is_sparse:
        return sparse.Sparse(shape(S, A, K, dtype=jnp.int32), shape(*members, S, A, K))
    return shape(*members, S, A, S)


def test_the_settings_are_on():
    with pytest.raises(ValueError, match="rank"):
        jax.eval_shape(jnp.add, shape(2, 3), shape(3))
    with pytest.raises(jax.dtypes.TypePromotionError):
        jax.eval_shape(jnp.add, shape(3), shape(3, dtype=jnp.int32))


@pytest.mark.parametrize("is_sparse", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "solve",
    [
        *[functools.partial(ube.solve_exact, form=form) for form in ube.FORMS],
        ube.solve_pombu,
        ube.solve_upper_bound,
        ube.ensemble_variance,
        ube.decompose,
    ],
)
def test_solvers_of_ensembles_and_their_gradients(solve, is_sparse):
    arguments = transitions(is_sparse, N), shape(N, S, A), shape(S, A), shape()
    jax.eval_shape(solve, *arguments)
    total = lambda *arrays: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(solve(*arrays)))
    jax.eval_shape(lambda *arrays: jax.grad(total, 1)(*arrays), *arguments)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_values_of_one_mdp(is_sparse):
    arguments = transitions(is_sparse), shape(S, A), shape(S, A), shape()
    jax.eval_shape(ube.solve_bellman, *arguments)


@pytest.mark.parametrize(
    "prior",
    [
        {},
        {"concentration": np.full((S, A, S + 1), 0.5, np.float32)},
        {"support": np.full((S, A, K), [0, 1, S])},
    ],
    ids=["table", "dense", "support"],
)
def test_belief(prior):
    def run(key, index, reward):
        belief = posterior.init(S, A, **prior)
        seen = posterior.Transitions(index, index % A, reward, index)
        belief = posterior.update(belief, seen)
        return posterior.mean(belief), posterior.sample(belief, key, N)

    jax.eval_shape(run, jax.random.key(0), shape(4, dtype=jnp.int32), shape(4))


@pytest.mark.parametrize(
    ("method", "solver"),
    [*[(method, "warm") for method in tabular_agent.METHODS], ("exact_ube", "lu")],
)
def test_whole_runs(method, solver):
    config = experiment.Config(agent=tabular_agent.Config(method=method, solver=solver))
    problem = environments.deep_sea(5)
    on_device = experiment.to_device(problem)

    def run(keys):
        state = jax.vmap(functools.partial(experiment.init, problem, config=config))(keys)
        options = {"num_episodes": 2, "episode_length": 5, "config": config}
        return experiment.run_chunk(on_device, state, **options)

    jax.eval_shape(run, jax.random.split(jax.random.key(0), 2))


@pytest.mark.parametrize("method", ["exact_ube", "upper_bound"])
def test_agents_that_know_the_successors(method):
    belief = posterior.init(S, A, support=np.full((S, A, K), [0, 1, S]))
    config = tabular_agent.Config(method=method, num_members=N)
    cold = tabular_agent.init_warm_start(S, config)
    optimize = functools.partial(tabular_agent.optimize, belief, config=config)
    jax.eval_shape(optimize, shape(S, dtype=jnp.int32), cold, jax.random.key(0))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_where_jax_has_float64(is_sparse, dtype):
    with jax.enable_x64(True):
        support = np.full((S, A, K), [0, 1, S]) if is_sparse else None
        belief = posterior.init(S, A, support=support, dtype=dtype)
        config = tabular_agent.Config(num_members=N)

        def run(key, index, reward, policy):
            seen = posterior.Transitions(index, index % A, reward, index)
            updated = posterior.update(belief, seen)
            mdps = posterior.sample(updated, key, N)
            u = ube.solve_exact(mdps.transition, mdps.reward, policy, 0.9)
            cold = tabular_agent.init_warm_start(S, config, dtype)
            plan = tabular_agent.optimize(updated, jnp.argmax(policy, -1), cold, key, config=config)
            return u, plan.evaluation.mean_q, plan.evaluation.variance

        data = shape(4, dtype=jnp.int64), shape(4, dtype=jnp.float64)
        policy = shape(S, A, dtype=jnp.float64)
        out = jax.eval_shape(run, jax.random.key(0), *data, policy)
        if not is_sparse:
            out = out, jax.eval_shape(functools.partial(ube.solve_moments, belief), policy, 0.9)
    assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype(dtype)}


def test_whole_numbers_take_at_least_single_precision():
    whole = functools.partial(shape, dtype=jnp.int32)
    arguments = whole(S, A, S), whole(S, A), whole(S, A), whole()
    assert jax.eval_shape(ube.solve_bellman, *arguments).v.dtype == jnp.float32


@pytest.mark.parametrize("belief", ["table", "support"])
def test_inside_a_shard_map(belief):
    support = np.full((S, A, K), [0, 1, S]) if belief == "support" else None
    prior = posterior.init(S, A, support=support)

    def run(prior, keys, index, reward):
        seen = posterior.Transitions(index, index % A, reward, index)
        updated = posterior.update(prior, seen)
        mdps = posterior.sample(updated, keys[0], N)
        policy = jnp.full((S, A), 1 / A)
        return ube.solve_exact(mdps.transition, mdps.reward, policy, 0.9).v[None]

    everywhere, by_seed = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("seed")
    spread = jax.shard_map(
        run,
        mesh=jax.make_mesh((1,), ("seed",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=(everywhere, by_seed, by_seed, by_seed),
        out_specs=by_seed,
        check_vma=False,
    )
    keys = jax.random.split(jax.random.key(0), 1)
    out = jax.eval_shape(spread, prior, keys, shape(300, dtype=jnp.int32), shape(300))
    assert out.shape == (1, S)
