"""Everything that is compiled can be compiled for GPU and TPU: lowering needs no such device.

A function that exists for CPU only (some LAPACK calls, a kernel of one backend) fails here, and so
does one that computes in float64, which TPUs lack, or calls back to Python on the host.
"""

import dataclasses
import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import pytest

from experiments.training import device_loop
from qusac_jax import environments, sparse, ube
from qusac_jax.environments import streams
from qusac_jax.qusac import agent, model, presets
from qusac_jax.qusac.config import Config
from qusac_jax.tabular import agent as tabular_agent
from qusac_jax.tabular import environments as tabular_environments
from qusac_jax.tabular import experiment
from tests.sizes import small

# Kernels that the platforms have beside XLA's own operations.
KERNELS = {"cpu": "lapack_", "cuda": "cu", "tpu": "LuDecomposition"}
# What compilers read and take out again.
ANNOTATIONS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}


def assert_lowers(function, *arguments, platforms=("cpu", "cuda", "tpu")) -> None:
    # Named tuples cannot be serialized without being registered: arrays go in and come out alone.
    flat, structure = jax.tree.flatten(arguments)

    def on_arrays(*arrays):
        return jax.tree.leaves(function(*jax.tree.unflatten(structure, arrays)))

    for platform in platforms:
        exported = jax.export.export(jax.jit(on_arrays), platforms=[platform])(*flat)
        assert exported.platforms == (platform,)
        assert jax.export.deserialize(exported.serialize()).platforms == (platform,)
        module = exported.mlir_module()
        assert "f64" not in module
        assert "callback" not in module
        kernels = set(re.findall(r"custom_call @([\w.]+)", module)) - ANNOTATIONS
        assert all(name.startswith(KERNELS[platform]) for name in kernels), kernels


def assert_exact_products(function, *arguments) -> None:
    """Every product of matrices is asked for at full precision: a TPU's own is bfloat16."""
    lines = jax.jit(function).lower(*arguments).as_text().splitlines()
    products = [line for line in lines if "stablehlo.dot" in line]
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products), products


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


def test_lowering_names_float64_and_what_calls_the_host():
    with jax.enable_x64(True), pytest.raises(AssertionError, match="f64"):
        assert_lowers(lambda x: x.astype(jnp.float64), shape(3))
    ask = lambda x: jax.pure_callback(lambda y: y, shape(3), x)
    with pytest.raises((AssertionError, ValueError, NotImplementedError), match="callback"):
        assert_lowers(ask, shape(3))


def test_a_product_at_the_default_precision_is_named():
    with pytest.raises(AssertionError, match="dot_general"):
        assert_exact_products(jnp.matmul, shape(3, 3), shape(3))


@pytest.mark.parametrize(
    "solve", [ube.solve_exact, ube.solve_pombu, ube.solve_upper_bound, ube.ensemble_variance]
)
def test_solvers_and_their_gradients(solve):
    arguments = (shape(5, 6, 2, 6), shape(5, 6, 2), shape(6, 2), shape())
    gradient = jax.grad(lambda *arrays: jnp.sum(solve(*arrays).v), (0, 1, 2))
    for function in (solve, gradient):
        assert_lowers(function, *arguments)
        assert_exact_products(function, *arguments)


@pytest.mark.slow
def test_solutions_of_sparse_problems():
    def solve(next_state, probability, reward, policy, discount):
        transition = sparse.Sparse(next_state, probability)
        return ube.solve_exact(transition, reward, policy, discount)

    next_state = jax.ShapeDtypeStruct((6, 2, 3), jnp.int32)
    assert_lowers(solve, next_state, shape(5, 6, 2, 3), shape(5, 6, 2), shape(6, 2), shape())


@pytest.mark.parametrize(
    "method",
    [
        "exact_ube",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("psrl", "moments")],
    ],
)
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
    assert_exact_products(lambda keys: raw(run(keys)), raw_keys(2))


@pytest.mark.parametrize("normalize_inputs", ["no", "range"])
def test_models_are_multiplied_in_full_precision(normalize_inputs):
    config = small(presets.PRESETS["explore_upper_bound"])  # with a prior over rewards
    dynamics = dataclasses.replace(
        config.dynamics, learn_termination=True, normalize_inputs=normalize_inputs
    )
    config = dataclasses.replace(config, dynamics=dynamics)
    task = environments.spec("cartpole_swingup").task()
    run = functools.partial(agent.init, config=config, task=task)
    state = jax.eval_shape(run, jax.random.key(0))

    def fit(state):
        state = state._replace(key=jax.random.key(0))
        return raw(agent.fit(state, config=config, task=task))

    def predict(dynamics, observation, action):
        return model.predictor(dynamics, config, task)(observation, action)

    assert_exact_products(fit, state._replace(key=None))
    assert_exact_products(predict, state.dynamics, shape(7, 5), shape(7, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["qusac", "explore", "exact_ube", "pombu", "disagreement", "mbpo", "sac", "combo"],
)
def test_deep_agent(name):
    config = presets.PRESETS.get(name) or Config(method=name)
    if name == "combo":  # with all that runs on datasets have
        config = dataclasses.replace(presets.offline(config), penalty="mopo")
    if name == "explore":
        dynamics = dataclasses.replace(config.dynamics, learn_termination=True)
        config = dataclasses.replace(config, dynamics=dynamics)
    config = small(config)
    task = environments.spec("cartpole_swingup").task()

    def init(keys):
        make = functools.partial(agent.init, config=config, task=task)
        return jax.vmap(make)(jax.random.wrap_key_data(keys))

    assert_lowers(lambda keys: raw(init(keys)), raw_keys(2))
    state = jax.eval_shape(init, raw_keys(2))
    transition = jax.tree.map(lambda x: shape(2, *x.shape[2:]), state.replay.data)
    steps = {agent.collect: (transition, shape(2, 5)), agent.train_step: (transition, shape(2, 5))}
    steps[functools.partial(agent.learn, num_updates=3)] = ()  # as offline
    if config.uses_model:
        steps |= {agent.fit: (), agent.roll_out: (), agent.refresh: ()}
    for step, arguments in steps.items():

        def call(state, keys, *arguments, step=step):
            state = state._replace(key=jax.random.wrap_key_data(keys))
            mapped = jax.vmap(functools.partial(step, config=config, task=task))
            return raw(mapped(state, *arguments))

        assert_lowers(call, state._replace(key=None), raw_keys(2), *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qusac", "sac"])
def test_whole_run_on_the_device(name):
    config = small(presets.PRESETS[name])
    env = environments.functional.load("functional:tests.pendulum:Pendulum")
    task = environments.spec("functional:tests.pendulum:Pendulum").task()
    both = {"env": env, "config": config, "task": task, "action_cost": 0.1}

    def begun(keys):
        keys = jax.random.wrap_key_data(keys)
        state = jax.vmap(functools.partial(agent.init, config=config, task=task))(keys)
        return state, jax.vmap(functools.partial(streams.start, env))(keys)

    plan = device_loop.plan(0, 20, 30, config=config)

    def run(keys, plan):
        state, envs = begun(keys)
        result = device_loop.run_steps(
            state, envs, jnp.zeros((2, 1)), plan, reward_threshold=0.5, **both
        )
        return raw(result)

    def evaluate(keys):
        state, envs = begun(keys)
        return raw(device_loop.run_episodes(state.actor, envs, **both))

    assert_lowers(run, raw_keys(2), plan)
    assert_lowers(evaluate, raw_keys(2))
