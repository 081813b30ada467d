"""Seeds on several devices: any number of them, the same results and files."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest

from experiments import memory
from qusac_jax import _memory, qusac
from tests import programs, run_files
from tests.tiny import OFFLINE, ONLINE

NUM_SEEDS = 8  # one on each device


def on_eight_devices(program):
    result = subprocess.run(
        [sys.executable, "-c", f"import jax, sys\n{program}"],
        cwd=programs.ROOT,
        env=programs.with_devices(8),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_rows_that_fill_up_are_invisible():
    on_eight_devices("""
import numpy as np
from experiments import seeds
devices = jax.devices()
for r, d, used, rows in ((3, 2, 2, 4), (3, 8, 3, 3), (5, 4, 3, 6), (16, 8, 8, 16), (8, 3, 3, 9)):
    placement = seeds.placement(r, devices[:d])
    assert (placement.mesh.size, placement.num_rows) == (used, rows)
assert seeds.placement(1, devices) is seeds.placement(5, devices[:1]) is None

placement = seeds.placement(3, devices[:2])
keys, x = seeds.keys([4, 5, 6], 1)[:, 0], np.arange(6.0, dtype=np.float32).reshape(3, 2)
draw = lambda key, x: {"drawn": jax.random.normal(key), "sum": x.sum()}
alone = seeds.mapped(draw)(keys, x)
spread = seeds.mapped(draw, placement=placement)(keys, x)
for name in alone:
    np.testing.assert_array_equal(np.asarray(jax.block_until_ready(spread)[name]), alone[name])

placed = seeds.placed({"x": x, "key": keys}, placement)
assert placed["x"].shape == (4, 2) and len(placed["x"].sharding.device_set) == 2
np.testing.assert_array_equal(placed["x"][3], x[2])
again = seeds.cropped(placed, placement)
np.testing.assert_array_equal(again["x"], x)
assert (again["key"] == keys).all()
of_each = np.arange(6)  # two for each seed
assert seeds.filled(of_each, placement, 2).tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
assert seeds.cropped(seeds.filled(of_each, placement, 2), placement, 2).tolist() == of_each.tolist()
""")


def test_memory_is_that_of_the_seeds_on_one_device(monkeypatch):
    monkeypatch.setattr(_memory, "host_available", lambda: None)
    task, config = qusac.Task(3, 1, lambda *x: x), qusac.Config()

    def said(num_seeds, num_devices, platform):
        device = types.SimpleNamespace(platform=platform, memory_stats=lambda: None)
        return memory.describe(config, task, num_seeds, [device] * num_devices)

    assert said(5, 4, "gpu") == said(16, 8, "gpu") == said(2, 1, "gpu")
    # Those of a CPU have one memory together: six rows for five seeds.
    assert said(5, 4, "cpu") == said(6, 1, "cpu")


PROGRAMS = {
    # With a model, runs of this kind are compared with one device in test_processes.
    "online": [*ONLINE, "--preset=sac", "--checkpoint_every=60"],
    "online on the device": [
        *(flag for flag in ONLINE if not flag.startswith("--termination")),
        "--env=functional:tests.pendulum:Pendulum",
        "--checkpoint_every=60",
    ],
    "offline": OFFLINE,
    "tabular": ["--length=4", "--method=exact_ube"],
}
# Steps after which a run is stopped, where it would have evaluated in any case, and all of them.
STEPS = {"online": (60, 80), "offline": (8, 12), "tabular": (50, 100)}


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_goes_on_with_another_number_of_devices(name, tmp_path):
    program = name.partition(" ")[0]
    flag = "--num_episodes" if program == "tabular" else "--num_steps"
    some, all_steps = STEPS[program]
    # Three devices have nine rows: the last seed is there twice.
    runs = [("one", 1, all_steps), ("two", 3, some), ("two", 8, all_steps)]
    on_eight_devices(f"""
from experiments import cli, offline, online
from experiments.tabular import command as tabular
everything = jax.devices()
for directory, count, steps in {runs}:
    jax.devices = cli.select_device = lambda *_: everything[:count]
    flags = {PROGRAMS[name]} + ["--num_seeds={NUM_SEEDS}", f"{flag}={{steps}}"]
    code = {program}.main(["{program}", *flags, "--workdir={tmp_path}/" + directory])
    assert code == 0, (directory, count, steps)
""")
    one, other = tmp_path / "one", tmp_path / "two"
    expected = run_files.metrics(one)
    assert set(expected["seed"]) == set(range(NUM_SEEDS))
    metrics = run_files.metrics(other)
    for column in expected.dtype.names:
        np.testing.assert_allclose(
            metrics[column], expected[column], rtol=1e-3, atol=1e-4, err_msg=column
        )
    summaries = [json.loads((path / "summary.json").read_text()) for path in (one, other)]
    assert summaries[1]["seeds"] == summaries[0]["seeds"] == list(range(NUM_SEEDS))
    if name == "online":
        assert summaries[1]["compilations"] == summaries[0]["compilations"]
