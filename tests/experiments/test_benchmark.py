"""The benchmark's numbers, at small sizes; mistakes show before it computes."""

import dataclasses
import functools
import io
import json
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import cli, operations, seeds
from experiments.benchmark import (
    agents,
    command,
    jobs,
    loops,
    measure,
    runs,
    solves,
    table,
    tabular,
    torch_agent,
    torch_baseline,
)
from qusac_jax import environments, ube
from qusac_jax.qusac import agent, fitting, presets
from qusac_jax.qusac.state import dynamics_model
from qusac_jax.task import Task
from tests import sizes
from tests.tasks import never

TASK = Task(5, 1, never)
LIMITS = measure.Limits(1e11, 1e10, 1e9)
FIELDS = {
    *("case", "method", "num_seeds", "per_second", "flops"),
    *("share_of_peak", "ratio_to_baseline", "limit", "versions", "device", "git_commit"),
}


@pytest.fixture
def tiny(monkeypatch):
    """Small agents, short calls, and limits that nobody has to measure."""
    config_of = agents.config_of
    monkeypatch.setattr(agents, "config_of", lambda *a, **k: sizes.small(config_of(*a, **k)))
    monkeypatch.setattr(measure, "limits", lambda: LIMITS)
    monkeypatch.setattr(agents, "_FIT_DATA", {True: 40})
    monkeypatch.setattr(solves, "_STATES", {True: (6,)})
    monkeypatch.setattr(tabular, "_LENGTHS", {True: (3,)})


def run(*arguments):
    return command.main(["benchmark", *arguments])


def rows_of(path):
    rows = json.loads(path.read_text())
    assert all(set(row) >= FIELDS for row in rows)
    assert all(row["per_second"] > 0 for row in rows)
    return rows


@pytest.mark.slow
def test_updates_become_a_row_for_each_number_of_seeds(tiny, tmp_path, capsys):
    files = [f"--json={tmp_path / 'rows.json'}", f"--markdown={tmp_path / 'table.md'}"]
    arguments = ["--quick", "--case=agent_update", "--method=sac", "--num_seeds=1,2", "--repeat=2"]
    assert run(*arguments, "--nobaselines", *files) == 0
    rows = rows_of(tmp_path / "rows.json")
    assert [row["num_seeds"] for row in rows] == [1, 2]
    assert [row["calls"] for row in rows] == [2, 2]
    # Of one update of one seed, however many there are.
    assert rows[0]["flops"] == pytest.approx(rows[1]["flops"], rel=0.05)
    printed, said = capsys.readouterr()
    assert (tmp_path / "table.md").read_text().rstrip() == printed.rstrip()
    assert said.count("up to 3 calls of 10 updates, at least") == 2


@pytest.mark.parametrize(
    ("case", "code", "said"),
    [
        (["--case=dynamics_fit,agent_update"], 1, 1),
        (["--case=agent_update,tabular_episode"], 0, 0),  # which does not know the method
        ([], 0, 1),  # all cases
    ],
)
def test_a_case_without_rows_is_named(monkeypatch, capsys, case, code, said):
    monkeypatch.setattr(command, "_measured", lambda job, limits, free: (None, limits))
    assert run(*case, "--method=sac", "--num_seeds=1") == code
    needs = "dynamics_fit: nothing to measure; fits and rollouts need"
    assert capsys.readouterr().err.count(needs) == said


@pytest.mark.slow
def test_every_case_of_a_quick_table_has_a_row(tiny, tmp_path):
    assert run("--quick", "--repeat=1", f"--json={tmp_path / 'rows.json'}") == 0
    rows = rows_of(tmp_path / "rows.json")
    expected = {name for name, case in command.CASES.items() if case.quick}
    assert {row["case"] for row in rows} == expected
    for name in ("act_loop", "ube_solve", "tabular_episode"):
        (row,) = (row for row in rows if row["case"] == name)
        assert row["ratio_to_baseline"] == pytest.approx(
            row["per_second"] / row["baseline_per_second"]
        )


@pytest.mark.slow
def test_every_task_that_loads_is_looped_on_the_device(tiny, monkeypatch, tmp_path):
    pendulum = ("functional:tests.pendulum:Pendulum", "gym:Pendulum-v1")
    missing = ("functional:tests.pendulum:Missing", "gym:Pendulum-v1")
    monkeypatch.setattr(loops, "_PLAYGROUND", (missing, pendulum))
    monkeypatch.setattr(loops, "config_of", agents.config_of)
    monkeypatch.setattr(loops, "_STEPS", {True: 5})
    monkeypatch.setattr(loops, "_LEARNING_STEPS", {True: 3})
    file = tmp_path / "rows.json"
    cases = "--case=device_loop,device_act_loop"
    assert run("--quick", cases, "--method=sac", "--repeat=1", f"--json={file}") == 0
    learning, acting = rows_of(file)
    assert (learning["case"], acting["case"]) == ("device_loop", "device_act_loop")
    for row in (learning, acting):
        assert row["sizes"].startswith(pendulum[0])
        assert row["baseline"] == "host loop of gym:Pendulum-v1"
        assert row["ratio_to_baseline"] > 0
    config, task = agents.config_of("sac", "small"), environments.spec(pendulum[0]).task("never")
    updates = config.updates_per_step * operations.update_flops(config, task)
    assert learning["flops"] == pytest.approx(updates)  # by hand
    assert learning["flops"] > acting["flops"] > 0  # the latter of the host's program, as bytes are
    assert learning["bytes"] > acting["bytes"] > 0
    assert (
        run("--quick", cases, "--method=sac", "--repeat=1", "--nobaselines", f"--json={file}") == 0
    )
    learning, acting = rows_of(file)
    assert learning["flops"] == pytest.approx(updates)
    assert [learning["bytes"], acting["flops"], acting["bytes"]] == [None] * 3
    assert learning["share_of_peak"] > 0


@pytest.mark.slow
def test_limits_count_all_products_and_both_directions_of_all_copies(monkeypatch):
    calls = []

    def one_second(call, repeat):
        calls.append([call() for _ in range(1 + repeat)])
        return measure.Timing(1.0, (1.0,) * repeat)

    monkeypatch.setattr(measure, "timed", one_second)
    probe = measure._Probe(matmul_size=8, num_products=3, copy_bytes=(64,), copy_total=640)
    assert measure._matmul_rate(probe) == 3 * 2 * 8**3
    assert measure._copy_rate(64, probe) == 2 * 640
    assert len(calls) == 2
    # What is counted is also done: 8^3 ones in a row, and ten copies that add 1 each.
    np.testing.assert_array_equal(measure._products(jnp.ones((8, 8)), 3), np.full((8, 8), 8.0**3))
    np.testing.assert_array_equal(measure._copies(jnp.zeros(16), 10), np.full(16, 10.0))


@pytest.mark.slow
def test_xla_counts_the_products_that_cost_counts_by_hand(monkeypatch):
    config = dataclasses.replace(
        presets.get("qusac"),
        num_members=2,
        replay_capacity=100,
        warmup_steps=50,
        rollouts_per_step=1,
        fit_every=4,
        critic_hidden=(64, 64),
        unet_hidden=(64, 64),
        actor_hidden=(64, 64),
    )
    state = agents.filled_state(config, TASK, 1, 100)
    transition = jax.tree.map(lambda x: x[:, 0], state.replay.data)
    step = seeds.mapped(agent.train_step, config=config, task=TASK)
    compiled = measure.compile_for(step, state, transition, transition.observation)
    # The loop of ten updates is counted once; element-wise work is the little that is left.
    by_hand = operations.update_flops(config, TASK)
    assert by_hand < compiled.cost.flops < 1.1 * by_hand
    work = compiled.work(per_iteration=1, per_call=10)
    assert work.flops == compiled.cost.flops
    monkeypatch.setattr(measure, "_counts_loops_once", lambda: False)
    work = compiled.work(per_iteration=1, per_call=10)
    assert work.flops == pytest.approx(compiled.cost.flops / 10)


@pytest.mark.parametrize(
    ("function", "sizes", "elements"),
    [
        (lambda x: x + 1.0, [(64, 64)], 2 * 64 * 64),  # read once, written once
        (lambda x, y: x @ y, [(16, 32), (32, 8)], 16 * 32 + 32 * 8 + 16 * 8),
    ],
)
def test_xla_counts_the_bytes_that_are_counted_by_hand(function, sizes, elements):
    compiled = measure.compile_for(jax.jit(function), *map(jnp.zeros, sizes))
    # The constant of the first is read, too.
    assert compiled.cost.bytes == pytest.approx(4 * elements, rel=0.01)


def test_a_step_of_a_fit_is_three_products_with_each_weight_and_row():
    config = presets.get("qusac", "small")
    inputs, outputs = TASK.observation_size + TASK.action_size, 2 * (TASK.observation_size + 1)
    weights = inputs * 128 + 128 * 128 + 128 * 128 + 128 * outputs
    assert operations.fit_step_flops(config, TASK) == 3 * 2 * weights * config.num_members * 128


def _step_of_a_fit(config):
    """A gradient step alone, and what it is called with."""
    state = agents.filled_state(config, TASK, 1, config.replay_capacity)
    parts = state.replay, state.dynamics
    buffer, dynamics = (jax.tree.map(lambda x: x[0], part) for part in parts)
    network = dynamics_model(config, TASK)
    counts = jnp.int32(config.replay_capacity), jnp.int32(1)
    problem = fitting._Problem(
        network, config.dynamics, config.fit_batch_size, dynamics, buffer, *counts, None
    )
    order = jnp.tile(jnp.arange(config.replay_capacity), (config.num_members, 1))
    members = jnp.zeros(config.num_members)
    weights = fitting._Weights(dynamics.params, dynamics.opt_state, dynamics.params, members)
    return functools.partial(fitting._gradient_step, problem), (order, jnp.int32(0), weights)


def test_xla_counts_the_bytes_of_a_fit_that_are_counted_by_hand():
    config = dataclasses.replace(presets.get("qusac"), replay_capacity=5000)
    step, arguments = _step_of_a_fit(config)
    compiled = measure.compile_for(jax.jit(step), *arguments)
    by_hand = operations.fit_step_bytes(config, TASK)
    # What is element-wise has operations of its own, which is as much again.
    assert by_hand < compiled.cost.bytes < 2.5 * by_hand


def test_xla_counts_the_bytes_of_rollouts_that_are_counted_by_hand():
    config = dataclasses.replace(presets.get("mbpo"), roll_out_every=5)
    state = agents.filled_state(config, TASK, 1, 100)
    one_step = dataclasses.replace(config, rollout_length=1)
    roll_out = seeds.mapped(agent.roll_out, donate=(0,), config=one_step, task=TASK)
    compiled = measure.compile_for(roll_out, state)
    by_hand = operations.rollout_bytes(one_step, TASK)
    assert by_hand < compiled.cost.bytes < 2.5 * by_hand


def test_bytes_of_rollouts_are_those_of_each_product():
    qusac = dataclasses.replace(presets.get("qusac"), roll_out_every=5)  # 2,000 rollouts together
    # Rows are read and written by a layer, its weights read: 6 -> 4 x 200 -> 12, 5 -> 2 x 128 -> 2.
    model, actor = 6 + 8 * 200 + 12, 5 + 4 * 128 + 2
    weights = 5 * (6 * 200 + 3 * 200**2 + 200 * 12), 5 * 128 + 128**2 + 128 * 2
    each = model + actor + 2 * 6 + 12  # noise written and read, a transition written
    rows = 2000, 5 * 2000  # of D_model, of D_1..D_5
    floats = 5 * sum(n * each + sum(weights) for n in rows)
    assert operations.rollout_bytes(qusac, TASK) == 4 * floats
    mopo = dataclasses.replace(presets.get("mopo"), rollouts_per_step=400, roll_out_every=5)
    alone = dataclasses.replace(mopo, penalty=None)
    # All members at each pair.
    steps = mopo.rollout_length
    more = operations.rollout_bytes(mopo, TASK) - operations.rollout_bytes(alone, TASK)
    assert more == 4 * steps * (5 * 2000 * model + weights[0])


@pytest.mark.parametrize(
    ("method", "reads", "multiplied"),
    [
        # Of N = 2 MDPs with S = 3, A = 2: 18 probabilities each, 9 of them the policy's.
        ("psrl", 18 + 9, 18 + 9),
        ("ensemble_var", 3 * 18 + 3 * 9, 3 * 18 + 3 * 9),
        ("pombu", 4 * 18 + 2 * 9, 4 * 18 + 2 * 9),
        ("exact_ube", 4 * 18 + 4 * 9, 8 * 18 + 4 * 9),
    ],
)
def test_what_a_plan_takes_at_least(method, reads, multiplied):
    config = tabular.agent.Config(method=method, num_members=2)
    work = tabular.least_work(config, 3, 2, [4.0, 5.0, 9.0])
    sampled = 18 * (1 if method == "psrl" else 2)
    assert work == measure.Work(2 * 5 * multiplied, 4 * (sampled + 5 * reads))


def test_a_penalty_asks_all_members_at_each_transition_of_rollouts():
    mopo = presets.get("mopo")
    alone = dataclasses.replace(mopo, penalty=None)
    inputs, outputs = TASK.observation_size + TASK.action_size, 2 * (TASK.observation_size + 1)
    each = 2 * (inputs * 200 + 3 * 200 * 200 + 200 * outputs)
    transitions = mopo.rollouts_per_step * mopo.rollout_interval * mopo.rollout_length
    difference = operations.rollout_flops(mopo, TASK) - operations.rollout_flops(alone, TASK)
    assert difference == transitions * mopo.num_members * each


@pytest.mark.parametrize(
    ("preset", "is_known"), [("qusac", True), ("explore_upper_bound", False), ("combo", False)]
)
def test_plain_pytorch_stands_for_what_it_computes(preset, is_known):
    assert torch_agent.is_known(presets.get(preset)) == is_known


def test_this_backend_counts_loops_once():
    assert measure._counts_loops_once()


@pytest.mark.parametrize(
    ("flops", "size", "expected"),
    [
        (1e9, 1e6, (0.05, "compute")),
        (1e6, 1e9, (0.5, "memory")),
        (1e6, None, (5e-5, "compute")),
    ],
)
def test_the_share_is_of_the_nearer_limit(flops, size, expected):
    share, limit = LIMITS.share(5.0, measure.Work(flops, size))
    assert (pytest.approx(share), limit) == expected


def test_the_better_limits_count():
    assert LIMITS.or_better(measure.Limits(2e11, 1e9, 2e9)) == measure.Limits(2e11, 1e10, 2e9)


def test_a_row_has_medians_quartiles_and_the_ratio():
    job = jobs.Job("case", "method", 2, "sizes", "things", 10**6, "5 calls", lambda: found)
    found = jobs.Measurement(
        units=20,
        timing=measure.Timing(9.0, (1.0, 2.0, 4.0, 5.0, 10.0)),
        compile_seconds=3.0,
        work=measure.Work(1e9, None),
        baseline=jobs.Baseline("plain", 2.0),
    )
    row = table.row(job, found, LIMITS)
    assert row["per_second"] == 5.0
    assert row["quartiles"] == [4.0, 10.0]
    assert row["ratio_to_baseline"] == 2.5
    assert row["share_of_peak"] == pytest.approx(0.05)
    assert (row["compile_seconds"], row["warmup_seconds"]) == (3.0, 9.0)
    line = table.line(row)
    assert line.count("|") == table.HEADER.splitlines()[0].count("|")
    assert "| 5 things | 4 to 10 | 3 | 9 | 5 | 1 | - | 5% | compute | 2.5x | plain |" in line


def test_long_calls_are_not_repeated(monkeypatch):
    clock = iter(range(0, 1000, 15))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert measure.timed(lambda: None, 9) == measure.Timing(15, (15,))
    clock = iter(range(1000))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert measure.timed(lambda: None, 3) == measure.Timing(1, (1, 1, 1))


@pytest.mark.parametrize("method", ["exact_ube", "pombu", "upper_bound"])
def test_numpy_solves_the_same_problem(method):
    problem = solves.dense_problem(8)
    solve = functools.partial(solves._METHODS[method], discount=solves._DISCOUNT)
    theirs = solves.solve_by_numpy(method, *(np.asarray(x, np.float64) for x in problem))
    np.testing.assert_allclose(jax.jit(solve)(*problem).q, theirs, rtol=5e-3)


def test_scipy_solves_the_same_sparse_problem():
    transition, reward, policy = solves.sparse_problem(50, "local")
    systems = solves._systems(transition, reward, policy, 0.95)
    assert len(systems) == len(reward) + 2
    first = jax.tree.map(jnp.asarray, transition)
    first = first._replace(probability=first.probability[0])
    values = ube.solve_bellman(first, reward[0], policy, 0.95).v
    for solver in (solves._lu, solves._bicgstab):
        np.testing.assert_allclose(solver(*systems[0])[:, 0], values, rtol=1e-4, atol=1e-5)


def test_storing_takes_no_more_where_d_is_larger():
    small, large = (
        loops.collect_work(
            dataclasses.replace(sizes.small(presets.get("sac")), replay_capacity=capacity), TASK
        )
        for capacity in (100, 10_000)
    )
    assert small == large
    assert 0 < small.bytes < 10_000 * 13 * 4  # less than D


@pytest.mark.slow
def test_a_step_of_several_seeds_counts_as_one_of_each(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(loops, "_STEPS", {True: 3})
    arguments = ["--quick", "--case=act_loop", "--num_seeds=1,3", "--repeat=1", "--nobaselines"]
    assert run(*arguments, f"--json={tmp_path / 'rows.json'}") == 0
    one, three = rows_of(tmp_path / "rows.json")
    assert (one["num_seeds"], three["num_seeds"]) == (1, 3)
    assert one["bytes"] == three["bytes"] > 0


def test_the_least_work_of_a_sparse_solution_is_that_of_its_arrays():
    transition, reward, policy = solves.sparse_problem(50, "local")
    work = solves.least_sparse_work(50)
    one_q = reward[0].nbytes
    given = sum(np.asarray(x).nbytes for x in (*transition, reward, policy))
    assert work.bytes == given + one_q
    systems = solves._systems(transition, reward, policy, 0.95)
    num_rhs = sum(len(rhs) for _, rhs in systems)
    assert work.flops == 2 * num_rhs * transition.next_state.size


@pytest.mark.parametrize("platform", ["tpu", "cpu"])
def test_programs_are_started_where_the_benchmark_computes_if_that_serves_several(
    monkeypatch, capsys, platform
):
    device = types.SimpleNamespace(platform=platform, memory_stats=dict)
    monkeypatch.setattr(cli, "select_device", lambda kind: [device])
    monkeypatch.setattr(measure, "limits", lambda: LIMITS)
    seen = []

    def parts(run, folder, number):
        seen.append(run.device)
        return dict.fromkeys(runs._MARKS, 1.0) | {"compiling": 0.5}

    monkeypatch.setattr(runs, "_parts", parts)
    assert run("--quick", "--case=start", "--num_seeds=1") == 0
    said = capsys.readouterr()
    assert seen == ([] if platform == "tpu" else ["cpu", "cpu"])
    assert ("start: left out, as a TPU serves one process" in said.err) == (platform == "tpu")
    assert ("| start |" in said.out) == (platform == "cpu")


@pytest.mark.parametrize(
    ("case", "more", "said"),
    [
        ("agent_update", [], 1),
        ("agent_update", ["--nobaselines"], 0),
        ("tabular_episode", ["--method=psrl"], 0),
    ],
)
def test_pytorch_is_missed_where_it_would_be_timed(case, more, said, tiny, monkeypatch, capsys):
    monkeypatch.setattr(torch_agent, "torch", None)
    monkeypatch.setattr(command, "_measured", lambda job, limits, free: (None, limits))
    assert run("--quick", f"--case={case}", *more) == 0
    assert capsys.readouterr().err.count(torch_baseline.INSTALL) == said


@pytest.mark.slow
def test_nothing_that_is_timed_comes_from_a_cache(tmp_path):
    command_line = [sys.executable, "-m", "experiments.benchmark", "--quick", "--case=ube_solve"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command_line, "--method=pombu", "--repeat=1", "--nobaselines"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "| ube_solve |" in done.stdout
    assert not list(tmp_path.glob("cache/*"))


class _Process:
    def __init__(self, text):
        self.stdout = io.StringIO(text)

    def kill(self):
        pass

    def wait(self):
        pass


def test_a_run_is_timed_from_what_it_prints(monkeypatch, tmp_path):
    printed = (
        "run directory: x\nFinished XLA compilation of jit(f) in 2.5 sec\n"
        "120 steps will take about 1 s\nFinished XLA compilation of jit(g) in 1e-1 sec\n"
        "step 0: return 1.0\nstep 120: return 1.0\ndone: summary.json\n"
    )
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: _Process(printed))
    run = runs._Run("cartpole_swingup", "sac", 1, "cpu", ())
    parts = runs._parts(run, tmp_path, 0)
    assert list(parts) == ["import", "first update", "first evaluation", "whole run", "compiling"]
    assert parts["compiling"] == pytest.approx(2.6)
    large = printed.replace("120 steps will take about 1 s\n", "")
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: _Process(large))
    assert "first update" not in runs._parts(run, tmp_path, 0)
    failing = "run directory: x\nerror: something is wrong\n"
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: _Process(failing))
    with pytest.raises(ValueError, match=r"whole run missing\): error: something is wrong"):
        runs._parts(run, tmp_path, 0)


@pytest.mark.slow
def test_whole_runs_on_the_device_are_timed_beside_the_host(monkeypatch, tmp_path):
    pendulum = ("functional:tests.pendulum:Pendulum", "gym:Pendulum-v1")
    monkeypatch.setattr(loops, "_PLAYGROUND", (pendulum,))
    monkeypatch.setattr(runs, "_DEVICE_STEPS", {True: 120})
    file = tmp_path / "rows.json"
    arguments = ["--case=device_run", "--num_seeds=1", "--device=cpu", f"--json={file}"]
    assert run("--quick", *arguments) == 0
    (row,) = rows_of(file)
    assert (row["sizes"], row["baseline"]) == (
        f"small, 120 steps of {pendulum[0]}",
        f"run of {pendulum[1]}",
    )
    seconds = row["details"]
    assert row["per_second"] == pytest.approx(1 / seconds["warm whole run"])
    assert row["ratio_to_baseline"] == pytest.approx(
        seconds["host warm whole run"] / seconds["warm whole run"]
    )
    assert "host cold first update" in seconds
    assert "cold first update" not in seconds
    assert seconds["warm compiling"] < seconds["cold compiling"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--method=", "method must name at least one, got none; choose from ensemble_mean"),
        ("--method=mbpoo", "method 'mbpoo' is unknown (did you mean 'mbpo'"),
        ("--case=agent_updat", "case 'agent_updat' is unknown (did you mean 'agent_update'"),
        ("--case=", "case must name at least one, got none"),
        ("--num_seeds=0", "num_seeds must be integers from 1 on, got [0]"),
        ("--num_seeds=", "num_seeds must be integers from 1 on, got []"),
        ("--num_seeds=1,5,1", "num_seeds: 1 is given twice; leave one out"),
        ("--num_seeds=one", "num_seeds must be integers separated by commas"),
        ("--env=pendulums", "there is no environment 'pendulums' (did you mean 'pendulum'"),
        ("--json=/proc/numbers.json", "output '/proc/numbers.json' cannot be written"),
        ("--markdown=/proc/table.md", "output '/proc/table.md' cannot be written"),
        ("--repeat=0", "repeat"),
    ],
)
def test_mistakes_show_before_it_computes(argument, message, capsys, monkeypatch):
    monkeypatch.setattr(measure, "limits", None)
    assert run(argument) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_method_must_be_known_to_one_of_the_cases(capsys, monkeypatch):
    monkeypatch.setattr(measure, "limits", None)
    assert run("--case=agent_update", "--method=psrl") == 2
    assert "method 'psrl' is unknown" in capsys.readouterr().err


def test_what_does_not_fit_into_memory_is_left_out(capsys):
    measured = lambda: pytest.fail("it was measured")
    job = jobs.Job("case", "sac", 2, "sizes", "things", 2 * 10**9, "5 calls", measured, 5e11)
    assert command._measured(job, LIMITS, 10**9) == (None, LIMITS)
    said = capsys.readouterr().err
    assert "left out, as 1 GB are free: case sac, 2 seeds: about 2,000 MB, 5 calls" in said
    assert "at least 5 s and compiling" in said
