"""Linear systems: against NumPy, differentiated, and many at once."""

import functools
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import _likely_paths, _lu, linear
from tests.programs import ROOT


def systems(batch, size=4):
    key_a, key_b = jax.random.split(jax.random.key(0))
    matrix = jax.random.normal(key_a, (*batch, size, size)) + 2 * size * jnp.eye(size)
    return matrix, jax.random.normal(key_b, (*batch, size, 2))


def test_maps_over_matrices_or_right_hand_sides_alone():
    matrix, rhs = systems((3,))
    over_both = jax.vmap(_lu.solve)(matrix, rhs)
    np.testing.assert_allclose(over_both, np.linalg.solve(matrix, rhs), rtol=1e-4, atol=1e-6)
    pairs = jax.jit(jax.vmap(jax.vmap(_lu.solve, (0, None)), (None, 0)))(matrix, rhs)
    expected = np.linalg.solve(np.asarray(matrix)[None], np.asarray(rhs)[:, None])
    np.testing.assert_allclose(pairs, expected, rtol=1e-4, atol=1e-6)


def test_gradients_through_mapped_systems():
    # d sum(c . A^-1 b) / dA = -(A^-T c) (A^-1 b)^T, and / db = A^-T c.
    matrix, rhs = systems((3,))
    weight = jax.random.normal(jax.random.key(2), rhs.shape)
    total = lambda a, b: jnp.sum(weight * jax.vmap(_lu.solve)(a, b))
    grad_matrix, grad_rhs = jax.grad(total, argnums=(0, 1))(matrix, rhs)
    adjoint = np.linalg.solve(np.swapaxes(matrix, 1, 2), weight)
    x = np.linalg.solve(matrix, rhs)
    np.testing.assert_allclose(grad_rhs, adjoint, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(grad_matrix, -adjoint @ np.swapaxes(x, 1, 2), rtol=1e-3, atol=1e-6)


def test_bad_guess_needs_no_factorization():
    # The residual that BiCGStab carries loses the true one by rounding as large as the guess.
    key_flow, key_rhs, key_guess = jax.random.split(jax.random.key(0), 3)
    flow = jax.random.dirichlet(key_flow, jnp.full(64, 0.1), (2, 64))
    rhs = jax.random.normal(key_rhs, (2, 64))
    guess = 1e4 * jax.random.normal(key_guess, (2, 64))
    solution = linear.solve_warm(flow, rhs, 0.9, guess)
    assert not solution.fell_back
    exact = np.linalg.solve(np.eye(64) - 0.9 * np.float64(flow), np.float64(rhs)[..., None])
    np.testing.assert_allclose(solution.x, exact[..., 0], atol=1e-4)


@pytest.mark.parametrize("max_iterations", [60, 1])
def test_systems_beyond_the_cache_are_solved_as_well(monkeypatch, max_iterations):
    monkeypatch.setattr(linear, "_CACHED_BYTES", 0)
    rng = np.random.default_rng(1)
    flow = jnp.float32(rng.dirichlet(np.full(60, 0.2), (7, 60)))
    rhs = jnp.float32(rng.normal(size=(2, 7, 60)))
    solve = functools.partial(linear.solve_warm, max_iterations=max_iterations)
    over_seeds = jax.jit(jax.vmap(solve, (None, 0, None, None)))
    solution = over_seeds(flow, rhs, 0.9, jnp.zeros_like(rhs[0]))
    exact = np.linalg.solve(np.eye(60) - 0.9 * np.float64(flow), np.float64(rhs)[..., None])
    np.testing.assert_allclose(solution.x, exact[..., 0], atol=1e-4)
    assert solution.fell_back.tolist() == 2 * [max_iterations == 1]
    assert np.all((solution.iterations > 5) | solution.fell_back)


def beliefs(size, *, data, seed=0):
    """Mean and three draws of a belief about a problem in which each state leads to one other."""
    rng = np.random.default_rng(seed)
    concentration = np.full((size, size), 0.1)
    concentration[np.arange(size), rng.integers(0, size, size)] += data
    draws = rng.gamma(concentration, size=(3, size, size))
    draws /= draws.sum(-1, keepdims=True)
    mean = concentration / concentration.sum(-1, keepdims=True)
    return jnp.float32(mean), jnp.float32(draws)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65])
def test_likely_paths_invert_a_problem_of_one_successor_and_an_even_rest(size):
    mean, _ = beliefs(size, data=20.0)
    x = jax.random.normal(jax.random.key(size), (2, size))
    product = x - 0.9 * x @ mean.T
    likely = _likely_paths.likeliest(mean)
    inverse = _likely_paths.preconditioner(likely, 0.9)
    np.testing.assert_allclose(inverse(product), x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("data", "at_most"), [(0.0, 6), (20.0, 5)])
def test_likely_paths_save_iterations_and_change_no_solution(data, at_most):
    mean, flow = beliefs(150, data=data)
    rhs = jax.random.normal(jax.random.key(1), flow.shape[:2])
    likely = _likely_paths.likeliest(mean)
    solve = functools.partial(linear.solve_warm, flow, rhs, 0.99, jnp.zeros_like(rhs))
    guided, alone = solve(likely=likely), solve()
    exact = np.linalg.solve(np.eye(150) - 0.99 * np.float64(flow), np.float64(rhs)[..., None])
    for solution in (guided, alone):
        assert not solution.fell_back
        np.testing.assert_allclose(solution.x, exact[..., 0], rtol=1e-3, atol=1e-3)
    assert guided.iterations <= at_most < alone.iterations


@pytest.mark.slow
def test_many_batched_systems_in_one_program_do_not_wait_for_each_other():
    # In a process of its own: where it goes wrong, it never returns.
    program = """
        import jax, jax.numpy as jnp
        from qusac_jax import _lu
        matrix = jnp.eye(128) - 0.5 * jax.random.dirichlet(
            jax.random.key(0), jnp.ones(128), (6, 5, 128))
        solve = jax.jit(lambda m: [jax.vmap(_lu.solve, (0, None))(x, jnp.ones((128, 2)))
                                   for x in m])
        for _ in range(10):
            jax.block_until_ready(solve(matrix))
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, check=True, timeout=120
    )
