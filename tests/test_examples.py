"""The examples run as a user would run them, and print what can be derived."""

import functools
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from tests.programs import ROOT

# With their arguments: loops of one's own end soon after their first learning steps. What a loop
# writes goes to a folder that is not there any more afterwards.
EXAMPLES = {"offline_loop": ["1000"], "own_loop": ["1010"], "ube_in_jax": []}


@functools.cache
def printed(name):
    """The words of each line that an example prints."""
    path = ROOT / "examples" / f"{name}.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, path, *EXAMPLES[name]],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            cwd=folder,
        )
    assert result.returncode == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


def test_every_example_is_listed():
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == sorted(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_finite_numbers(name):
    words = [word for line in printed(name) for word in line]
    assert words
    assert not {"nan", "inf", "-inf"} & {word.lower() for word in words}


def rows(name, label):
    """The numbers after a label, one row for each line that it begins."""
    found = [line[1:] for line in printed(name) if line and line[0] == label]
    return np.array(found, float)


@pytest.mark.slow
def test_own_loop_plays_whole_episodes_with_the_rewards_of_the_task():
    lines = printed("own_loop")
    assert [line[1] for line in lines] == ["200:", "400:", "600:", "800:", "1000:"]
    returns = [float(line[3]) for line in lines]
    # A random policy earns about -1,200 in 200 steps; no step costs more than pi^2 + 6.5 + 0.001.
    assert all(-3_300 < value < 0 for value in returns)


@pytest.mark.slow
def test_offline_loop_trains_three_seeds_and_plays_their_saved_policies():
    lines = printed("offline_loop")
    assert [line[0] for line in lines] == ["held-out", "update", "seed", "seed", "seed"]
    # Three seeds with models of their own, which know the pendulum to a part of its variance.
    errors = [float(word.strip("[]")) for word in lines[0][3:] if word.strip("[]")]
    assert len(set(errors)) == 3
    assert all(0 < error < 0.1 for error in errors)
    # No step earns more than 0, or less than -(pi^2 + 6.5 + 0.001).
    returns = [float(line[3]) for line in lines[2:]]
    assert all(-3_300 < value < 0 for value in returns)


@pytest.mark.slow
def test_ube_in_jax_agrees_with_itself_and_with_the_sampled_values():
    eager, jitted, ensemble, closed_form, over_policies = (
        rows("ube_in_jax", label)[0]
        for label in ("eager", "jit", "ensemble", "closed_form", "policies")
    )
    np.testing.assert_allclose(jitted, eager, rtol=1e-4)
    # The MDPs are acyclic. A variance of 2000 samples has a standard error of about 3 %.
    np.testing.assert_allclose(eager, ensemble, rtol=0.1)
    np.testing.assert_allclose(eager, closed_form, rtol=0.15)
    # The values of the last layer are one reward of variance 1/10, averaged over two actions.
    np.testing.assert_allclose(closed_form[6:], 0.05, atol=1e-5)
    np.testing.assert_allclose(over_policies[0], eager[0], rtol=1e-4)  # the uniform one
    assert len(set(over_policies)) == 4


@pytest.mark.slow
def test_ube_in_jax_is_better_with_few_members_and_another_thing_with_cycles():
    ((exact, ensemble),) = rows("ube_in_jax", "few_members")
    # Of normal values the variance of N = 5 has the relative bias -1/N and the standard deviation
    # sqrt(2 (N - 1)) / N: a root mean square of 0.6, found from 4,000 draws within a few percent.
    np.testing.assert_allclose(ensemble, 0.6, rtol=0.05)
    assert exact < 0.75 * ensemble
    ((exact, ensemble),) = rows("ube_in_jax", "cyclic")
    assert exact < 0.5 * ensemble


@pytest.mark.slow
def test_ube_in_jax_gradient_vanishes_where_all_values_move_alike():
    gradient = rows("ube_in_jax", "gradient")
    assert gradient.shape == (9, 2)
    # Episodes start at state 0, and pass through one state of each later layer.
    np.testing.assert_allclose(gradient[:3], 0, atol=1e-5)
    for layer in (gradient[3:6], gradient[6:]):
        np.testing.assert_allclose(layer.sum(), 0, atol=1e-4)
        assert np.max(np.abs(layer)) > 1e-3
