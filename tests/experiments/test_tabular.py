"""The command `experiments.tabular` and its files."""

import contextlib
import dataclasses
import json
import os
import pty
import shutil
import signal
import termios
import types
from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments import heat_maps
from experiments.tabular import (
    catalogue,
    command,
    figures,
    finished_runs,
    outcome,
    recorded_run,
    setup,
)
from qusac_jax.tabular import agent, environments, experiment, problems
from tests import programs
from tests.run_files import change_config, metrics_rows


def run(*arguments):
    return command.main(["tabular", *map(str, arguments)])


def test_toy_prints_table_1(capsys):
    assert run("--env=toy", "--device=cpu") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["s0", "-0.5625", "5.0625", "21.3125", "15.6875", "15.6875"] in lines
    assert ["s2", *["25.0000"] * 5] in lines


def test_run_writes_metrics_summary_and_figure(tmp_path, capsys):
    options = ("--length=3", "--method=psrl", "--num_seeds=2", "--num_episodes=20")
    assert run(*options, f"--workdir={tmp_path}") == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["method"] == "psrl"
    assert summary["env"] == "deep_sea"
    assert summary["length"] == 3
    assert summary["num_seeds"] == 2
    assert summary["seconds_per_episode"] > 0
    rows = metrics_rows(tmp_path)
    assert len(rows) == 2 * 20
    for seed in range(2):
        own = [row for row in rows if row["seed"] == str(seed)]
        unsolved = sum(row["solved"] == "0" for row in own)
        assert float(own[-1]["total_regret"]) == summary["total_regret"][seed] == unsolved
    assert (tmp_path / "regret.png").stat().st_size > 0
    assert "20/20" not in capsys.readouterr().err  # a progress bar would fill a log


def interrupt(progress, *arguments):
    """Runs the command with a terminal and sends what Ctrl-C sends once `progress` is shown there.

    Returns the exit code, what was printed and what was shown.
    """
    terminal, its_end = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))  # a progress bar needs room
    process = programs.start("tabular", *arguments, stderr=its_end)
    os.close(its_end)
    shown, is_sent = "", False
    with contextlib.suppress(OSError):  # how the terminal tells that the process has ended
        while part := os.read(terminal, 4096):
            shown += part.decode(errors="replace")
            if not is_sent and progress in shown:
                process.send_signal(signal.SIGINT)
                is_sent = True
    os.close(terminal)
    out, _ = process.communicate(timeout=120)
    assert is_sent, shown
    return process.returncode, out, shown


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path):
    options = ("--length=4", "--num_seeds=2", "--num_episodes=1000", "--method=psrl")
    code, out, _ = interrupt("20/1000", *options, f"--workdir={tmp_path / 'stopped'}")
    assert code == 130
    assert "the same command goes on" in out
    stopped = json.loads((tmp_path / "stopped" / "summary.json").read_text())
    assert 20 <= stopped["num_episodes"] < 1000
    assert run(*options, f"--workdir={tmp_path / 'stopped'}") == 0
    assert run(*options, f"--workdir={tmp_path / 'undisturbed'}") == 0
    metrics = [
        (tmp_path / name / "metrics.csv").read_bytes() for name in ("stopped", "undisturbed")
    ]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_workdir_of_another_run_is_refused_and_more_episodes_are_added(tmp_path, capsys):
    options = ("--length=3", "--method=psrl", "--num_seeds=1", f"--workdir={tmp_path}")
    assert run(*options, "--num_episodes=4") == 0
    before = (tmp_path / "metrics.csv").read_bytes()
    assert run(*options, "--num_episodes=4", "--discount=0.5") == 2
    assert "config.agent.discount: 0.99 there, 0.5 now" in capsys.readouterr().err
    assert (tmp_path / "metrics.csv").read_bytes() == before
    assert run(*options, "--num_episodes=6") == 0
    after = (tmp_path / "metrics.csv").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 1 + 6
    (tmp_path / "metrics.csv").write_bytes(before)  # damaged: the checkpoint has the others
    assert run(*options, "--num_episodes=6") == 0
    assert (tmp_path / "metrics.csv").read_bytes() == after


def test_results_are_never_overwritten_by_fewer_or_none(tmp_path, capsys):
    options = ("--length=3", "--method=psrl", "--num_seeds=1", f"--workdir={tmp_path}")
    assert run(*options, "--num_episodes=6") == 0
    files = [tmp_path / name for name in ("metrics.csv", "summary.json", "config.json")]
    before = [file.read_bytes() for file in files]
    assert run(*options, "--num_episodes=4") == 2
    assert "use --num_episodes=6 or more" in capsys.readouterr().err
    assert run(*options, "--num_episodes=6") == 0
    shutil.rmtree(tmp_path / "checkpoints")
    assert run(*options, "--num_episodes=6") == 2
    assert "no checkpoint to continue from" in capsys.readouterr().err
    assert [file.read_bytes() for file in files] == before


def test_checkpoints_of_another_run_are_refused(tmp_path, capsys):
    options = ("--length=3", "--method=psrl", "--num_seeds=1", f"--workdir={tmp_path}")
    assert run(*options, "--num_episodes=6") == 0
    change_config(tmp_path, seeds=[7])
    names = ("metrics.csv", "summary.json", "config.json")
    before = [(tmp_path / name).read_bytes() for name in names]
    assert run(*options, "--num_episodes=8", "--seed=7") == 2
    assert "seeds: [0] there, [7] now" in capsys.readouterr().err
    assert [(tmp_path / name).read_bytes() for name in names] == before


def test_latest_good_replaces_the_damaged_checkpoint(tmp_path):
    options = ("--length=3", "--method=psrl", "--num_seeds=1", f"--workdir={tmp_path}")
    assert run(*options, "--num_episodes=4") == 0
    assert run(*options, "--num_episodes=8") == 0
    undamaged = (tmp_path / "metrics.csv").read_bytes()
    files = [f for f in (tmp_path / "checkpoints" / "8" / "device").rglob("*") if f.is_file()]
    max(files, key=lambda f: f.stat().st_size).write_bytes(b"")
    assert run(*options, "--num_episodes=8") == 2
    assert run(*options, "--num_episodes=8", "--resume=latest_good") == 0
    assert run(*options, "--num_episodes=8") == 0
    assert (tmp_path / "metrics.csv").read_bytes() == undamaged


def defaults(*arguments):
    options = command.make_flags()
    options(["tabular", *arguments])
    length = options.length if options.env.startswith("deep_sea") else 0
    environment = setup.make_environment(options, length)
    return setup.make_config(options, environment, method="exact_ube", length=length)


def test_defaults_are_the_paper_settings():
    sea = defaults("--env=deep_sea", "--length=7")
    assert (sea.num_episodes, sea.count_weight, sea.noise_precision) == (1000, 7.0, 1e6)
    assert (sea.agent.min_local, sea.agent.num_members, sea.agent.discount) == (-0.05, 5, 0.99)
    noisy = defaults("--env=deep_sea_stochastic", "--length=7")
    assert (noisy.num_episodes, noisy.count_weight, noisy.noise_precision) == (1000, 7.0, 1.0)
    rooms = defaults("--env=seven_room")
    assert (rooms.num_episodes, rooms.count_weight, rooms.noise_precision) == (5000, 1.0, 1e6)
    assert rooms.agent.min_local == 0.0


def test_agents_know_the_noise_of_rewards():
    assert defaults("--env=umbrella", "--size=3").noise_precision == 1.0
    assert defaults("--env=umbrella", "--size=1").noise_precision == 1e6  # no step but the last
    assert defaults("--env=chain").noise_precision == 1e6
    zeros = np.zeros((1, 2, 1))
    make = lambda std: environments.from_arrays(
        zeros, zeros[..., 0], 0, episode_length=1, reward_std=np.array([[0.0, std]])
    )
    assert make(0.5).noise_precision == 4.0
    assert make(1e-9).noise_precision == 1e6


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, with what is drawn in them."""
    figures = []
    save = Figure.savefig

    def note(figure, *arguments, **options):
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", note)
    return figures


def heights(axes):
    """Everything drawn in axes: lines, scattered points and bars."""
    found = [y for line in axes.lines for y in np.atleast_1d(line.get_ydata())]
    found += [y for dots in axes.collections for y in np.ravel(dots.get_offsets())]
    return [*found, *(bar.get_height() for bar in axes.patches)]


@pytest.mark.slow
def test_seven_room_runs_and_overlays_published_means(tmp_path, drawn):
    published = tmp_path / "published.csv"
    published.write_text("method,episode,seed,total_regret\npsrl,0,0,1\npsrl,1,0,7.25\n")
    options = ("--env=seven_room", "--figure", "--methods=psrl", "--num_seeds=1")
    more = ("--num_episodes=2", f"--published={published}", f"--workdir={tmp_path / 'runs'}")
    assert run(*options, *more) == 0
    summary = json.loads((tmp_path / "runs" / "psrl" / "summary.json").read_text())
    assert summary["env"] == "seven_room"
    assert summary["num_episodes"] == 2
    assert 7.25 in heights(drawn[-1].axes[0])


def test_figure_runs_what_is_missing_and_overlays_published_means(tmp_path, capsys, drawn):
    published = tmp_path / "published.csv"
    published.write_text("method,length,seed,total_regret,learning_time\npsrl,3,0,5.125,4.25\n")
    options = (
        "--figure",
        "--lengths=3",
        "--methods=psrl,ensemble_mean",
        "--num_seeds=2",
        "--num_episodes=20",
        f"--published={published}",
        f"--workdir={tmp_path / 'runs'}",
    )
    assert run(*options) == 0
    assert (tmp_path / "runs" / "figure.png").stat().st_size > 0
    assert {4.25, 5.125} <= {y for axes in drawn[-1].axes for y in heights(axes)}
    assert run(*options) == 0
    assert capsys.readouterr().out.count("20 of 20 episodes are done") == 2
    # A file that was damaged since is written anew.
    metrics = next((tmp_path / "runs").rglob("metrics.csv"))
    intact = metrics.read_bytes()
    metrics.write_bytes(intact[:-9] + b"q" + intact[-8:])
    assert run(*options) == 0
    assert metrics.read_bytes() == intact


def test_damaged_runs_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"summary\.json cannot be read"):
        finished_runs.read([tmp_path])
    (tmp_path / "summary.json").write_text('{"num_seeds": 2, "num_episodes": 2}')
    (tmp_path / "metrics.csv").write_text("seed,total_regret\n0,1\n0,2\n1,3\n")
    with pytest.raises(ValueError, match=r"2 seeds, which do not go with the 3 lines"):
        finished_runs.read([tmp_path])
    (tmp_path / "metrics.csv").write_text("seed,total_regret\n0,1\n0,2\n")  # goes by two
    with pytest.raises(ValueError, match=r"2 seeds, which do not go with the 2 lines"):
        finished_runs.read([tmp_path])
    (tmp_path / "metrics.csv").write_text("seed,total_regret\n0,1\n0,2\n1,3\n1,4\n")
    (run,) = finished_runs.read([tmp_path])
    np.testing.assert_array_equal(run.total_regret, [[1, 2], [3, 4]])


def test_maps_of_a_column_have_one_colour_scale():
    first, second = np.array([[0.0, 1.0]]), np.array([[np.nan, 5.0]])
    column = heat_maps.Column("visits", [first, second])
    _, axes = heat_maps.draw([column], ["a", "b"], panel=(2, 1), title="")
    assert [axis.images[0].get_clim() for axis in axes[:, 0]] == [(0.0, 5.0)] * 2


@pytest.mark.slow
def test_inspect_draws_heat_maps(tmp_path):
    options = ("--length=4", "--inspect", "--inspect_episodes=2,4", f"--workdir={tmp_path}")
    assert run(*options) == 0
    assert (tmp_path / "inspect.png").stat().st_size > 0
    assert json.loads((tmp_path / "summary.json").read_text())["num_episodes"] == 4
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + 4
    config = json.loads((tmp_path / "config.json").read_text())
    change_config(tmp_path, git_commit="another")
    assert run(*options) == 0
    again = json.loads((tmp_path / "config.json").read_text())
    assert again["git_commit"] == config["git_commit"]


@pytest.mark.slow
def test_ctrl_c_keeps_the_heat_maps_that_are_done(tmp_path):
    workdir = tmp_path / "stopped"
    options = ("--length=4", "--method=psrl", "--inspect", "--inspect_episodes=20,100000")
    code, out, shown = interrupt("20/100000", *options, f"--workdir={workdir}")
    assert code == 130, shown
    assert "snapshots are kept" in out
    assert (workdir / "inspect.png").stat().st_size > 0
    assert json.loads((workdir / "summary.json").read_text())["num_episodes"] >= 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("method,episode,total_regret\npsrl,3,5\n", "columns length, method, total_regret"),
        ("method,length,total_regret\npsrl,3,5\npsrl,3,abc\n", "line 3: total_regret is 'abc'"),
        ("method,length,total_regret\npsrl,,5\n", "line 2: length is ''"),
        ("length,total_regret,method\n3,5,psrl\n3,6\n", "line 3 names no method"),
    ],
)
def test_bad_published_results_are_named_before_the_work(tmp_path, capsys, content, message):
    (tmp_path / "published.csv").write_text(content)
    options = ("--figure", "--lengths=3", f"--published={tmp_path / 'published.csv'}")
    assert run(*options, f"--workdir={tmp_path / 'runs'}") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env=mazes"], "env 'mazes' is unknown (did you mean 'maze'?); choose from toy"),
        (["--length=1"], "length must be an integer of at least 2, got 1"),
        (["--num_episodes=0"], "num_episodes must be an integer of at least 1, got 0"),
        (["--num_seeds=0"], "num_seeds must be at least 1, got 0"),
        (["--seed=2147483647"], "seed + num_seeds - 1 must be below 2**31, got 2147483651"),
        (["--figure", "--lengths=5,5"], "lengths: 5 is given twice; leave one out"),
        (["--figure", "--methods=psrl,psrl"], "methods: 'psrl' is given twice; leave one out"),
        (["--figure", "--published=missing.csv"], "published must be a CSV, but missing.csv"),
        (["--method=dqn"], "method 'dqn' is unknown; choose from ensemble_mean"),
        (["--seed_axis=foo"], "seed_axis 'foo' is unknown; choose from auto, vmap, map"),
        (["--discount=1.5"], "discount must be in [0, 1) in float32, got 1.5"),
        (["--figure", "--lengths=ten"], "lengths must be integers"),
        (["--figure", "--methods=dqn"], "method 'dqn' is unknown"),
        (["--figure", "--methods="], "methods must name at least one"),
        (["--figure", "--inspect"], "figure and inspect are two programs"),
        (
            ["--env=toy", "--figure"],
            "env 'toy', which prints a table, does not read --workdir, --figure",
        ),
        (["--env=toy", "--method=nope"], "a table, does not read --method, --workdir"),
        (
            ["--figure", "--length=3"],
            "figure, which compares --methods at --lengths, does not read --length",
        ),
        (["--figure", "--method=psrl"], "at --lengths, does not read --method; leave"),
        (["--figure", "--env=seven_room", "--lengths=3"], "has no length, does not read --lengths"),
        (["--inspect", "--num_seeds=3"], "one seed, does not read --num_seeds"),
        (
            ["--published=missing.csv"],
            "a single run, without --figure or --inspect, does not read --published",
        ),
        (
            ["--method=psrl", "--risk=7", "--num_members=50", "--min_local=-3"],
            "method 'psrl' does not read --risk=7.0 (which ensemble_var, pombu, exact_ube, "
            "upper_bound, moments read), --num_members=50 (which ensemble_var, pombu, exact_ube, "
            "upper_bound read), --min_local=-3.0 (which pombu, exact_ube, upper_bound read); leave",
        ),
        (
            ["--inspect", "--method=ensemble_var", "--min_local=0"],
            "not read --min_local=0.0 (which",
        ),
        (
            ["--figure", "--methods=psrl,ensemble_mean", "--lengths=3", "--risk=1"],
            "a figure of method 'psrl', 'ensemble_mean' does not read --risk=1.0 (which",
        ),
        (["--env=catch", "--support", "--solver=lu"], "'catch_support' is sparse, as with"),
        (["--env=catch", "--support", "--method=moments"], "method 'moments' needs a dense env"),
        (["--figure", "--num_seeds=0"], "num_seeds must be at least 1, got 0"),
        (["--seed=-1"], "seed"),
        (["--seed=99999999999999999999999"], "seed"),
        (["--figure", "--published=missing.csv"], "missing.csv"),
        (
            ["--length=4", "--inspect", "--timed", "--inspect_episodes=2"],
            "env 'deep_sea' is none with --timed; leave that out",
        ),
        (["--inspect", "--inspect_episodes=0"], "inspect_episodes must be positive"),
        (["--inspect", "--num_episodes=1", "--inspect_episodes=x"], "must be integers"),
        (["--inspect", "--num_episodes=3", "--inspect_episodes=5"], "leave num_episodes out"),
        (["deep_sea"], "flags look like --name=value"),
        (["--num_episode=5"], "is no flag"),
        (["--length=ten"], "invalid literal"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, message, tmp_path, capsys):
    assert run(*arguments, f"--workdir={tmp_path}") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing was begun


@pytest.mark.parametrize(("seconds", "said"), [(100, ["sea: about 15 min are left"]), (0.2, [])])
def test_a_long_run_says_how_long_it_takes(seconds, said):
    # Of 20 episodes after the first chunk; nine times as many are left.
    lines = []
    bar: Any = types.SimpleNamespace(write=lines.append)
    config = experiment.Config(num_episodes=210)
    timestamps = [(10, 0.0), (20, seconds / 2), (30, seconds)]
    recorded_run._announce_duration(bar, "sea", config, timestamps)
    assert lines == said


def test_grid_from_a_map_with_known_successors(tmp_path):
    (tmp_path / "yard.txt").write_text("S.\n.G\n")
    options = ("--env=grid", f"--map={tmp_path}/yard.txt", "--support", "--method=psrl")
    workdir = tmp_path / "run"
    assert run(*options, "--num_seeds=1", "--num_episodes=4", f"--workdir={workdir}") == 0
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["env"] == "yard_support"
    assert summary["warnings"] == []
    assert {row["unsolved"] for row in metrics_rows(workdir)} == {"0"}


@pytest.mark.slow
def test_each_map_has_a_workdir_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in (("yard", "S.\n.G\n"), ("hall", "S..G\n")):
        (tmp_path / f"{name}.txt").write_text(content)
        options = ("--env=grid", f"--map={name}.txt", "--method=psrl", "--num_seeds=1")
        assert run(*options, "--num_episodes=2") == 0
    runs = {path.name for path in (tmp_path / "runs" / "tabular").iterdir()}
    assert runs == {"grid_yard_psrl", "grid_hall_psrl"}


@pytest.mark.slow
def test_environments_of_one_name_are_told_apart(tmp_path, capsys):
    grid = tmp_path / "map.txt"
    grid.write_text("S.\n.G\n")
    options = ("--env=grid", f"--map={grid}", "--method=psrl", "--num_seeds=1")
    workdir = f"--workdir={tmp_path / 'run'}"
    assert run(*options, "--num_episodes=2", workdir) == 0
    assert run(*options, "--num_episodes=4", workdir) == 0
    capsys.readouterr()
    grid.write_text("S..\n..G\n")
    assert run(*options, "--num_episodes=4", workdir) == 2
    error = capsys.readouterr().err
    assert "belongs to a run with other values (env_hash: '" in error
    assert error.count("\n") == 1


def test_the_hash_of_an_environment_is_of_all_that_it_does():
    environment = problems.grid("S.\n.G\n")
    arrays = {"reward": environment.reward + 1e-6, "start": environment.start[::-1].copy()}
    changes = {"episode_length": 3, "reward_std": np.ones_like(environment.reward), **arrays}
    changed = [dataclasses.replace(environment, **{name: new}) for name, new in changes.items()]
    several = [environment, environments.with_support(environment), *changed]
    assert len({catalogue._hash(each) for each in several}) == len(several)
    same = dataclasses.replace(environment, reward=environment.reward * (1 + 1e-15))
    assert catalogue._hash(same) == catalogue._hash(environment)


def test_memory_of_a_figure_is_told_once_for_each_run(tmp_path, capsys):
    options = ("--figure", "--memory", "--lengths=3,4", "--methods=psrl,pombu")
    assert run(*options, f"--workdir={tmp_path / 'runs'}") == 0
    told = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == [f"deep_sea {n} {method}" for n in (3, 4) for method in ("psrl", "pombu")]
    assert not (tmp_path / "runs").exists()


def test_a_flag_that_one_of_the_methods_reads_is_no_mistake(tmp_path):
    options = ("--figure", "--memory", "--lengths=3", "--methods=psrl,pombu", "--min_local=0")
    assert run(*options, "--risk=2", "--num_members=3", f"--workdir={tmp_path}") == 0


@pytest.mark.slow
def test_unsolved_systems_are_counted_and_warned_of(tmp_path, capsys, monkeypatch):
    from qusac_jax import _sparse_linear

    monkeypatch.setattr(_sparse_linear, "_MAX_ITERATIONS", 1)
    jax.clear_caches()
    options = ("--env=maze", "--size=4", "--support", "--method=pombu", "--num_seeds=1")
    assert run(*options, "--num_episodes=3", f"--workdir={tmp_path}") == 0
    jax.clear_caches()
    rows = metrics_rows(tmp_path)
    unsolved = [int(row["unsolved"]) for row in rows]
    assert sum(unsolved) > 0
    warnings = json.loads((tmp_path / "summary.json").read_text())["warnings"]
    assert warnings[0].startswith(f"{sum(unsolved)} solves, in {np.count_nonzero(unsolved)} of 3")
    said = capsys.readouterr().err
    assert all(said.count(warning) == 1 for warning in warnings)
    assert "lower --discount" in said


def test_doubtful_plans_are_warned_of():
    steps = np.array([[40, 3], [40, 40]])
    metrics = experiment.Metrics(steps, steps, steps, np.array([[0, 2], [0, 1]]))
    unsolved, cut_off = outcome._warnings(metrics, agent.Config(method="psrl"))
    assert unsolved.startswith("3 solves, in 2 of 4 plans")
    assert "all of its 40 steps in 3 of 4 plans" in cut_off
    dense = metrics._replace(unsolved=None)
    assert outcome._warnings(dense, agent.Config(method="exact_ube")) == []
    short = dense._replace(steps=steps - 1)
    assert outcome._warnings(short, agent.Config(method="psrl")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env=deep_sea", "--size=3"], "size is not read by env 'deep_sea'"),
        (["--env=umbrella", "--size=0"], "size: length must be an integer of at least 1, got 0"),
        (["--env=maze", "--size=100000"], "size 100000 would take about"),
        (["--env=catch", "--size=100000000"], "size 100000000 would take about"),
        (["--env=chain", "--map=x"], "map must be given for env 'grid' alone"),
        (["--env=grid"], "map is missing: pass --map=FILE"),
        (["--env=grid", f"--map={heat_maps.__cached__}"], "pass a text file with the map"),
        (["--env=grid", "--map=/nowhere"], "cannot be read"),
        (["--env=river", "--size=3"], "did you mean 'river_swim'"),
    ],
)
def test_wrong_environments_are_named(options, message, capsys):
    assert run(*options) == 2
    assert message in capsys.readouterr().err


def a_run(method, length, total_regret, learning_time=()):
    about = {"method": method, "env": "sea", "length": length}
    about |= {"total_regret": [row[-1] for row in total_regret], "learning_time": learning_time}
    return finished_runs.FinishedRun(about, np.array(total_regret, float))


@pytest.fixture
def saved_figures(monkeypatch):
    """The figures that are to be saved."""
    found = []
    monkeypatch.setattr(figures.style, "save", lambda figure, path: found.append(figure))
    return found


def test_deep_sea_is_drawn_from_its_learning_times_and_regrets(saved_figures):
    runs = [
        a_run("psrl", 20, [[1, 40], [1, 60]], [8.0, 12.0]),
        a_run("psrl", 10, [[1, 4], [1, 8]], [2.0, 4.0]),
        a_run("pombu", 10, [[1, 5], [1, 5]], [3.0, None]),
    ]
    published = [{"method": "psrl", "length": "10", "total_regret": "7", "learning_time": "9"}]
    figures.draw_deep_sea(runs, published, None)
    left, right = saved_figures[0].axes
    lines = [line.get_xydata().tolist() for line in left.lines]
    # One seed of pombu has not learned: its mean would be of the others alone.
    assert lines[:2] == [[[10, 3], [20, 10]], [[10, 9]]]
    assert len(lines) == 3  # the last one for the legend
    assert [bar.get_height() for bar in right.patches] == [5, 6, 50]
    assert [line.get_ydata().tolist() for line in right.lines if line.get_marker() == "x"] == [[7]]
    ends = [part.get_segments() for part in right.collections]
    assert [[segment[:, 1].tolist() for segment in each] for each in ends] == [
        [[5, 5]],
        [[4, 8], [40, 60]],
    ]


def test_seven_rooms_are_drawn_with_standard_errors(saved_figures):
    figures.draw_rooms([a_run("psrl", None, [[0, 2], [0, 6]])], None, None)
    (axes,) = saved_figures[0].axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [0, 4])
    band = axes.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(np.unique(band[band[:, 0] == 1, 1]), [2, 6])


def test_heat_maps_show_the_actions_of_the_policy_where_states_lie(saved_figures):
    cells = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    environment = types.SimpleNamespace(name="grid", cells=cells, start=np.eye(5)[2])
    rng = np.random.default_rng(0)
    policy, q, variance, reward = rng.integers(2, size=5), *rng.normal(size=(3, 5, 2))
    visits = rng.integers(1, 9, size=(5, 2))
    snapshot = figures.Snapshot(7, policy, visits, q, variance, reward)
    figures.draw_snapshots(environment, [snapshot], None, "pombu")
    panels = [axes for axes in saved_figures[0].axes if axes.images]
    chosen = lambda x: x[np.arange(5), policy]
    expected = (
        chosen(q),
        np.sqrt(np.maximum(chosen(variance), 0)),
        chosen(reward),
        np.log10(1 + visits.sum(-1)),
    )
    for panel, values in zip(panels, expected, strict=True):
        image = np.ma.filled(panel.images[0].get_array(), np.nan)
        np.testing.assert_allclose(image[tuple(cells.T)], values)
        assert np.isnan(image[1, 2])
        np.testing.assert_array_equal(panel.lines[0].get_xydata(), [[2, 0]])  # the start


def test_published_means_are_over_seeds_and_of_places_where_all_have_a_value():
    row = lambda place, value: {"method": "psrl", "length": place, "learning_time": value}
    rows = [row("20", "4"), row("10", "1"), row("10", "2"), row("30", "5"), row("30", "")]
    found = finished_runs.published_means(rows, "length", "learning_time")
    np.testing.assert_array_equal(found["psrl"], [[10, 20], [1.5, 4]])
    assert finished_runs.published_means(None, "length", "learning_time") == {}


def test_published_results_and_maps_may_be_saved_by_a_spreadsheet_or_an_editor(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("method,length,total_regret\npsrl,10,4\n", encoding="utf-8-sig")
    found = finished_runs.read_published(str(path), "length")
    assert found == [{"method": "psrl", "length": "10", "total_regret": "4"}]
    path.write_text("S.G\n", encoding="utf-8-sig")
    assert catalogue._read_grid(path).num_states == 2  # the goal ends an episode


def test_flags_reach_the_agent():
    options = command.make_flags()
    given = ["--risk=-2", "--num_members=7", "--min_local=0.25", "--solver=lu", "--discount=0.5"]
    options(["tabular", *given])
    environment = setup.make_environment(options, 3)
    found = setup.make_config(options, environment, method="pombu", length=3).agent
    assert found == agent.Config("pombu", 0.5, -2.0, 7, 0.25, solver="lu")


def test_seconds_per_episode_are_of_a_seed_and_without_compilation():
    measured = outcome.seconds_per_episode
    assert measured([(10, 50.0), (20, 60.0), (30, 70.0)], 2) == 0.5
    # The last chunk, of another size, was compiled as well.
    assert measured([(10, 50.0), (20, 60.0), (30, 70.0), (33, 99.0)], 2) == 0.5
    assert measured([(10, 50.0)], 2) is None


def test_mean_learning_times_say_of_how_many_seeds():
    assert recorded_run._mean_learning_time([2.0, 4.0]) == "3.0"
    assert recorded_run._mean_learning_time([2.0, None, 5.0]) == "3.5 (2 of 3 seeds)"
    assert recorded_run._mean_learning_time([None]) == "- (0 of 1 seeds)"


def test_a_discount_too_near_1_for_single_precision_is_warned_of():
    steps = np.ones((1, 2))
    metrics = experiment.Metrics(steps, steps, steps)
    (said,) = outcome._warnings(metrics, agent.Config(discount=1 - 1e-6))
    assert "so near 1 that values may be off by up to 12 %" in said
    assert outcome._warnings(metrics, agent.Config(discount=0.9999)) == []
