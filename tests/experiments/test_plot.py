"""The plotting command: its files and tables, and bad input."""

import csv
import os

import numpy as np
import pytest

from experiments import plot, results, run_reader
from tests.run_files import change_config, rows_for, write_run

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_an_aggregate_of_other_steps_is_called_one(tmp_path, capsys):
    for env, steps in (("pendulum", (0, 100, 200)), ("acrobot", (0, 100, 200))):
        write_run(tmp_path / env / "a", env, "pombu", rows_for([0], [1.0], steps))
    write_run(tmp_path / "acrobot" / "b", "acrobot", "upper_bound", rows_for([0], [1.0]))
    write_run(tmp_path / "pendulum" / "b", "pendulum", "upper_bound", rows_for([0], [1], (0, 50)))
    runs = [str(path) for path in sorted(tmp_path.glob("*/*"))]
    assert plot.main(["plot", *runs, f"--output={tmp_path}"]) == 0
    err = capsys.readouterr().err
    assert "those of pendulum end at 50 to 200 steps" in err
    assert "those of acrobot" not in err


def test_command_writes_everything(tmp_path, capsys):
    runs = []
    for env in ("pendulum", "acrobot"):
        for method, final in (("upper_bound", 800.0), ("ensemble_mean", 100.0)):
            rows = rows_for([0, 1, 2], [final, final + 30, final + 60])
            runs.append(str(write_run(tmp_path / f"{env}-{method}", env, method, rows)))
    assert plot.main(["plot", *runs, f"--output={tmp_path / 'out'}"]) == 0
    assert sorted(os.listdir(tmp_path / "out")) == [
        "aggregate.csv",
        "aggregate.png",
        "learning_curves.csv",
        "learning_curves.png",
    ]
    # Standard deviation 30, by sqrt(3).
    printed = capsys.readouterr().out
    assert "| pendulum | upper_bound | 3 | 200 | 830.0 ± 17.3 | 831.0 ± 17.3 |" in printed
    assert "| acrobot | ensemble_mean | 3 | 200 | 130.0 ± 17.3 | 131.0 ± 17.3 |" in printed
    with (tmp_path / "out" / "learning_curves.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["task"], last["method"], last["num_seeds"]) == ("pendulum", "upper_bound", "3")
    assert float(last["mean"]) == 830.0
    with (tmp_path / "out" / "aggregate.csv").open() as file:
        rows = {(row["label"], row["statistic"]): row for row in csv.DictReader(file)}
    np.testing.assert_allclose(float(rows["upper_bound", "median"]["value"]), 0.83)
    assert (tmp_path / "out" / "learning_curves.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_drawn_and_no_return_has_a_column_of_its_last_values(tmp_path):
    rows = [(step, seed, 1.0, 1.0, step * (seed + 1)) for step in (0, 10) for seed in (0, 1)]
    curves = run_reader.read_runs([write_run(tmp_path / "a", "e", "sac", rows)], y="mean_q")
    head, _, row = plot.table(results.group(curves), "mean_q").split("\n")
    assert head.endswith("| without action cost | mean_q |")
    assert row.endswith("| 1.0 ± 0.0 | 15.0 ± 5.0 |")


def test_last_values_are_those_of_the_last_evaluation_along_any_axis(tmp_path):
    rows = [(0, 0, 1.0, 1.0, 9.0), (10, 0, 2.0, 2.0, 5.0)]
    run = write_run(tmp_path / "a", "e", "sac", rows)
    curves = run_reader.read_runs([run], x="mean_q", y="mean_q")
    assert plot.table(results.group(curves), "mean_q").endswith("| 10 | 2.0 | 2.0 | 5.0 |")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nothing"], "error: runs: found no run in "),
        ([], "error: arguments are missing: run directories"),
        (["{}", "--smoth=3"], "error: --smoth is no flag (did you mean '--smooth'?)"),
        (["{}/run", "--y=return", "--output={}/new"], "has no column return; it has"),
        (
            ["{}/run", "--output=/proc/here"],
            "error: output '/proc/here/learning_curves.png' cannot",
        ),
        (["{}/run", "--output={}/file"], "file/learning_curves.png' cannot be written"),
    ],
)
def test_mistakes_end_the_command_with_code_2_and_one_line(tmp_path, capsys, arguments, message):
    (tmp_path / "file").write_text("")
    write_run(tmp_path / "run", "pendulum", "pombu", rows_for([0], [1.0]))
    given = [argument.format(tmp_path) for argument in arguments]
    out = [] if any("output" in argument for argument in given) else [f"--output={tmp_path}"]
    assert plot.main(["plot", *given, *out]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_infinite_and_huge_values_are_left_out_with_a_warning(tmp_path, capsys):
    rows = rows_for([0, 1], [5.0, 7.0], (0, 100, 200, 300))
    for row, value in ((2, 1e308), (3, "inf"), (4, "-inf")):
        rows[row] = (*rows[row][:2], value, *rows[row][3:])
    rows += [(400, 0, "nan", "nan", 0)]
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows)
    curves = run_reader.read_runs([run])
    assert [list(curve.x) for curve in curves] == [[0, 300], [0, 200, 300]]
    assert "has infinite values, or some beyond 1e+100, in 3 of 9 lines" in capsys.readouterr().err
    assert plot.main(["plot", str(run), f"--output={tmp_path}"]) == 0
    only = write_run(tmp_path / "b", "pendulum", "pombu", [(0, 0, "inf", 1, 1)])
    assert plot.main(["plot", str(only), f"--output={tmp_path}"]) == 2
    assert "has no finite value of eval_return" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["x" * 3000, "$\\frac{$", "_hidden", "a\nb\x00\x1b[31m", "\ud800", "方法", "a|b%s{}"]
)
def test_odd_names_are_drawn_and_written(tmp_path, name):
    run = write_run(tmp_path / "a", name, name, rows_for([0, 1], [5.0, 6.0]))
    change_config(run, config={name: name})
    other = write_run(tmp_path / "b", name, name, rows_for([2], [5.0]))
    change_config(other, config={name: name * 2})
    assert plot.main(["plot", str(run), str(other), f"--output={tmp_path}"]) == 0
    assert (tmp_path / "learning_curves.png").stat().st_size < 500_000
    assert "\x00" not in (tmp_path / "learning_curves.csv").read_text(encoding="utf-8")


def test_seeds_without_a_common_range_are_named(tmp_path, capsys):
    runs = [
        write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0], (0, 100))),
        write_run(tmp_path / "b", "pendulum", "pombu", rows_for([1], [5.0], (200, 300))),
        write_run(tmp_path / "c", "pendulum", "mbpo", rows_for([1], [5.0], (200, 300))),
    ]
    assert plot.main(["plot", *map(str, runs), f"--output={tmp_path}"]) == 0
    error = capsys.readouterr().err
    assert "the seeds of pendulum pombu have no part of the x axis in common" in error
    assert "seed 0 from 0 to 100, seed 1 from 200 to 300" in error
    with (tmp_path / "learning_curves.csv").open() as file:
        assert {row["method"] for row in csv.DictReader(file)} == {"mbpo"}
    assert plot.main(["plot", *map(str, runs[:2]), f"--output={tmp_path}"]) == 2


def test_tasks_that_count_for_no_aggregate_are_named(tmp_path, capsys):
    def run(env, method):
        return str(write_run(tmp_path / f"{env}{method}", env, method, rows_for([0], [5.0])))

    runs = [run("acrobot", "mbpo"), run("acrobot", "pombu"), run("pendulum", "pombu")]
    output = tmp_path / "out"
    assert plot.main(["plot", *runs, f"--output={output}"]) == 0
    said = capsys.readouterr()
    assert "No aggregate over tasks: one task was run with every method." in said.out
    assert "runs: pendulum: not run with every method" in said.err
    assert not (output / "aggregate.png").exists()
    runs.append(run("pendulum", "mbpo"))
    assert plot.main(["plot", *runs, f"--output={output}"]) == 0  # one seed each: no intervals
    assert ",nan,nan,2,1" in (output / "aggregate.csv").read_text()


def test_an_aggregate_of_an_earlier_call_is_named(tmp_path, capsys):
    def run(env, method):
        return str(write_run(tmp_path / f"{env}{method}", env, method, rows_for([0], [5.0])))

    runs = [run(env, method) for env in ("acrobot", "pendulum") for method in ("mbpo", "pombu")]
    output = f"--output={tmp_path / 'out'}"
    assert plot.main(["plot", *runs, output]) == 0
    assert "earlier" not in capsys.readouterr().err
    for fewer in (runs[:3], runs[:2]):
        assert plot.main(["plot", *fewer, output]) == 0
        said = capsys.readouterr().err
        assert "aggregate.csv and aggregate.png are those of an earlier call" in said
