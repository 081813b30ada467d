"""Everything that is compiled can be compiled for GPU and TPU: lowering needs no such device.

A function that exists for CPU only (some LAPACK calls, a kernel of one backend) fails here.
"""

import functools

import jax
import jax.export
import jax.numpy as jnp
import pytest

from qusac_jax import environments, ube
from qusac_jax.qusac import agent, presets
from qusac_jax.qusac.config import Config
from qusac_jax.tabular import agent as tabular_agent
from qusac_jax.tabular import environments as tabular_environments
from qusac_jax.tabular import experiment
from tests.sizes import small


def assert_lowers(function, *arguments, platforms=("cuda", "tpu")) -> None:
    for platform in platforms:
        exported = jax.export.export(jax.jit(function), platforms=[platform])(*arguments)
        assert exported.platforms == (platform,)


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def raw_keys(count: int) -> jax.ShapeDtypeStruct:
    """Of keys, which exported functions take and give back as numbers."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.split(jax.random.key(0), count)))


def raw(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def test_lowering_names_a_function_of_one_platform_only():
    # The check itself: eigenvalues of a general matrix have no TPU version in JAX.
    with pytest.raises(NotImplementedError, match="tpu"):
        assert_lowers(jnp.linalg.eigvals, shape(3, 3), platforms=("tpu",))


@pytest.mark.parametrize(
    "solve", [ube.solve_exact, ube.solve_pombu, ube.solve_upper_bound, ube.ensemble_variance]
)
def test_solvers_and_their_gradients(solve):
    arguments = (shape(5, 6, 2, 6), shape(5, 6, 2), shape(6, 2), shape())
    assert_lowers(solve, *arguments)
    assert_lowers(jax.grad(lambda *arrays: jnp.sum(solve(*arrays).v), (0, 1, 2)), *arguments)


@pytest.mark.parametrize("method", ["exact_ube", "psrl", "moments"])
def test_tabular_experiment(method):
    environment = tabular_environments.deep_sea(5)
    on_device = experiment.to_device(environment)
    config = experiment.Config(agent=tabular_agent.Config(method=method), seed_axis="vmap")

    def run(keys):
        init = functools.partial(experiment.init, environment, config=config)
        return experiment.run_chunk(
            on_device,
            jax.vmap(init)(jax.random.wrap_key_data(keys)),
            num_episodes=3,
            episode_length=environment.episode_length,
            config=config,
        )

    assert_lowers(lambda keys: raw(run(keys)), raw_keys(2))


@pytest.mark.parametrize("name", ["qusac", "exact_ube", "mbpo", "sac"])
def test_deep_agent(name):
    config = small(presets.PRESETS.get(name) or Config(method=name))
    task = environments.spec("cartpole_swingup").task()

    def init(keys):
        make = functools.partial(agent.init, config=config, task=task)
        return jax.vmap(make)(jax.random.wrap_key_data(keys))

    assert_lowers(lambda keys: raw(init(keys)), raw_keys(2))
    state = jax.eval_shape(init, raw_keys(2))
    transition = jax.tree.map(lambda x: shape(2, *x.shape[2:]), state.replay.data)
    steps = {agent.collect: (transition, shape(2, 5)), agent.train_step: (transition, shape(2, 5))}
    if config.uses_model:
        steps[agent.refresh] = ()
    for step, arguments in steps.items():

        def call(state, keys, *arguments, step=step):
            state = state._replace(key=jax.random.wrap_key_data(keys))
            mapped = jax.vmap(functools.partial(step, config=config, task=task))
            return raw(mapped(state, *arguments))

        assert_lowers(call, state._replace(key=None), raw_keys(2), *arguments)
