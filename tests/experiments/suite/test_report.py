"""The report of a suite, by hand."""

import numpy as np
import pytest

from experiments import published_curves, run_reader
from experiments.suite import command, queue, report
from tests.experiments.suite.runs_and_jobs import finish, planned
from tests.run_files import change_config, rows_for, write_run

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_a_damaged_run_ends_neither_the_suite_nor_its_report(tmp_path):
    runs = planned(tmp_path / "runs", 2)
    for run in runs:
        write_run(run.path, "pendulum", "sac", rows_for([0], [4.0], (0, 10)))
    (runs[0].path / "metrics.csv").write_text("step,eval_return\n1,x\n")
    assert queue._last_evaluation(runs[0])[0] == 0
    assert queue._last_evaluation(runs[1]) == (10, 4.0)
    (runs[0].path / "summary.json").write_text("")
    finish(runs[1].path)
    # What is no run, and what was deleted, is not waited for; what failed at its start is.
    (tmp_path / "runs" / ".ipynb_checkpoints").mkdir()
    for name in ("deleted", "failed", "queued"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "1_submitted.pkl").touch()
    (tmp_path / "jobs" / "deleted" / "1_0_result.pkl").touch()
    (tmp_path / "jobs" / "failed" / "1_0_log.err").write_text("error: no room\n")
    text, unfinished = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "| pendulum | sac | 1 | 10 |" in text
    assert [one.name for one in unfinished] == ["failed", "queued", "run0"]
    assert not runs[0].is_done()
    assert "- failed: error: no room\n" in text
    assert "summary.json cannot be read" in unfinished[2].reason
    assert "delete it, and the run goes on" in unfinished[2].reason


def test_a_run_that_lost_its_config_is_missed(tmp_path):
    run = tmp_path / "runs" / "lost"
    write_run(run, "pendulum", "sac", rows_for([0], [4.0], (0, 10)))
    (run / "config.json").unlink()
    text, (unfinished,) = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert f"- lost: {run / 'config.json'} is missing; put it back" in text
    assert unfinished.name == "lost"


def test_runs_without_an_evaluation_are_no_mistake(tmp_path):
    run = write_run(tmp_path / "runs" / "new", "pendulum", "sac", [])
    change_config(run, num_steps=10)
    text, (unfinished,) = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert text.startswith("No run has an evaluation yet.\n")
    assert unfinished.name == "new"
    assert "the suite's command goes on with it" in unfinished.reason


def test_a_suite_of_which_nothing_is_left_has_failed(tmp_path, capsys):
    (tmp_path / "runs" / ".ipynb_checkpoints").mkdir(parents=True)
    assert command.main(["suite", f"--workdir={tmp_path}", "--report"]) == 1
    assert f"no run in {tmp_path / 'runs'}\n" in capsys.readouterr().out


def test_report_by_hand(tmp_path):
    steps = tuple(range(0, 50_001, 2_500))
    for method, finals in (("ensemble_mean", [400.0, 600.0]), ("upper_bound", [100.0, 300.0])):
        for env in ("pendulum", "ball_in_cup"):
            name = f"{env}-{method}-s0"
            write_run(tmp_path / "runs" / name, env, method, rows_for([0, 1], finals, steps))
            change_config(tmp_path / "runs" / name, num_steps=50_000, action_cost=0.0)
            finish(tmp_path / "runs" / name, steps=50_000)
    finish(tmp_path / "runs" / "pendulum-upper_bound-s0", steps=20_000)
    text, unfinished = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    # A line from 0 to 400 in 20 steps: its last ten values have the mean 400 * 15.5 / 20 = 310, and
    # those to 600 have 465; the error is half their difference.
    pendulum = published_curves.curves("pendulum", 0.0)
    theirs = next(curve for curve in pendulum if curve.name == "ensemble_mean")
    assert theirs.at(50_000)[:2] == (theirs.mean[4], theirs.standard_error[4])
    assert theirs.at(50_000)[2:] == (111.9, 873.7)  # of ten seeds
    assert theirs.at(57_500)[0] == pytest.approx(0.25 * theirs.mean[4] + 0.75 * theirs.mean[5])
    assert round(theirs.mean[4]) == 605
    assert np.isnan(theirs.at(9_999)[0])
    assert theirs.at(250_000)[:2] == (theirs.mean[-1], theirs.standard_error[-1])
    assert np.isnan(theirs.at(250_001)[0])  # of which nothing was published
    row = next(line for line in text.splitlines() if line.startswith("| pendulum | ensemble_mean"))
    assert "| 2 | 50000 | 387.5 ± 77.5 | 387.5 [" in row
    assert row.endswith(
        f"| {theirs.mean[4]:.1f} ± {theirs.standard_error[4]:.1f} | 111.9 to 873.7 |"
    )
    assert "| upper_bound | 2 | 2 | 0.155 [0.0" in text
    assert [one.name for one in unfinished] == ["pendulum-upper_bound-s0"]
    assert (tmp_path / "learning_curves.png").stat().st_size > 10_000
    assert (tmp_path / "report.md").read_text() == text


def test_seeds_that_are_not_as_far_are_compared_where_all_have_been(tmp_path):
    for seed, last in enumerate((20_000, 100_000)):
        steps = tuple(range(0, last + 1, 1_000))
        run = tmp_path / "runs" / f"pendulum-sac-s{seed}"
        write_run(run, "pendulum", "sac", rows_for([seed], [last / 100], steps))
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    # Both have step / 100, and so the mean of 110 to 200 at 20,000 steps.
    assert "| pendulum | sac | 2 | 20000 | 155.0 ± 0.0 | 155.0 [155.0, 155.0] |" in text


def test_a_task_has_the_median_of_its_seeds(tmp_path):
    for seed, last in enumerate((100.0, 200.0, 900.0)):
        run = tmp_path / "runs" / f"pendulum-sac-s{seed}"
        write_run(run, "pendulum", "sac", rows_for([seed], [last], (0, 1_000)))
    write_run(tmp_path / "runs" / "alone", "acrobot", "sac", rows_for([0], [1.0], (0, 1_000)))
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    pendulum, alone = (
        next(line for line in text.splitlines() if line.startswith(f"| {task} |")).split(" | ")
        for task in ("pendulum", "acrobot")
    )
    header = next(line for line in text.splitlines() if line.startswith("| task |")).split(" | ")
    column = header.index("median over seeds")
    # Of two evaluations, the first 0, the mean.
    assert pendulum[column] == "100.0 [50.0, 450.0]"
    assert alone[column - 1 : column + 1] == ["-", "-"]
    assert len(pendulum) == len(alone) == len(header)


def test_methods_are_compared_over_tasks_where_all_have_been(tmp_path):
    for env in ("pendulum", "ball_in_cup"):
        for method in ("ensemble_mean", "upper_bound"):
            for seed in range(3):
                is_behind = (env, method, seed) == ("pendulum", "upper_bound", 2)
                steps = tuple(range(0, 20_001 if is_behind else 100_001, 1_000))
                rows = rows_for([seed], [steps[-1] / 100], steps)
                write_run(tmp_path / "runs" / f"{env}-{method}-s{seed}", env, method, rows)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "have reached (ball_in_cup 100000, pendulum 20000):" in text
    over_tasks = text.partition("Over tasks")[2]
    found = [line.split("|")[4:6] for line in over_tasks.splitlines() if "| 2 | 3 |" in line]
    assert len(found) == 2
    assert found[0] == found[1]
    # A task on which one has made no step yet waits for it, and so does one of a method alone.
    rows = rows_for([3], [0.0], (0, 1))[:1]
    write_run(tmp_path / "runs" / "begun", "pendulum", "upper_bound", rows)
    alone = rows_for([0], [1.0], (0, 1_000))
    write_run(tmp_path / "runs" / "alone", "acrobot", "upper_bound", alone)
    begun, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "Over tasks" not in begun  # one is left


def test_the_published_sac_makes_as_many_updates_as_the_paper_s(tmp_path):
    for preset in ("sac", "paper_sac"):
        rows = rows_for([0], [500.0], (0, 50_000))
        run = tmp_path / "runs" / f"pendulum-{preset}-s0"
        write_run(run, "pendulum", "ensemble_mean", rows, preset=preset)
        change_config(run, config={"updates_per_step": 1 if preset == "sac" else 10})
    offline_before = tmp_path / "runs" / "pendulum-mbpo-s0"
    write_run(offline_before, "pendulum", "ensemble_mean", rows, preset="mbpo")
    change_config(offline_before, init_from="runs/offline")
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    last = {
        line.split(" | ")[1]: line.split(" | ")[-2:]
        for line in text.splitlines()
        if "±" in line or "- |" in line
    }
    assert last["sac"] == ["-", "- |"]
    assert "±" in last["paper_sac"][0]
    assert last["paper_sac"][1] == "0.0 to 843.9 |"
    (continued,) = (cells for label, cells in last.items() if label.startswith("mbpo"))
    assert continued == ["-", "- |"]


def test_published_curves_are_drawn_where_all_runs_have_their_action_cost(tmp_path):
    for name, cost in (("free", 0.0), ("dear", 0.1)):
        run = tmp_path / name
        write_run(run, "pendulum", "ensemble_mean", rows_for([0], [500.0], (0, 50_000)))
        change_config(run, action_cost=cost)
    curves = [run_reader.read_runs([tmp_path / name])[0] for name in ("free", "dear")]
    assert list(report._published_curves(curves[:1])) == ["pendulum"]
    assert report._published_curves(curves) == {}


def test_seeds_that_share_no_steps_are_not_compared(tmp_path):
    steps = (0, 1000, 2000)
    first, later = [(0, 0, 5.0, 5.0, 0.0)], [(1000, 1, 5.0, 5.0, 0.0), (2000, 1, 5.0, 5.0, 0.0)]
    write_run(tmp_path / "runs" / "a", "pendulum", "upper_bound", first)
    write_run(tmp_path / "runs" / "b", "pendulum", "upper_bound", later)
    write_run(tmp_path / "runs" / "c", "pendulum", "pombu", rows_for([0, 1], [7.0, 9.0], steps))
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "| pendulum | upper_bound | 2 | 0 | - | - | - | - |" in text
    assert "| pendulum | pombu | 2 | 2000 |" in text


def test_scores_of_other_tasks_are_said_to_be_of_these_runs(tmp_path):
    for env in ("gym:Pendulum-v1", "pendulum"):
        for method, final in (("mbpo", 100.0), ("pombu", 300.0)):
            name = f"{env[:3]}-{method}"
            rows = rows_for([0], [final], (0, 1_000))
            write_run(tmp_path / "runs" / name, env, method, rows)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "(gym:Pendulum-v1: from the worst, 0, to the best, 1, of these runs)" in text
    # Means of 0 and the final return: 50 and 150, so 0 and 1, and 0.05 and 0.15; one seed each.
    assert "| mbpo | 2 | 1 | 0.025 | 0.025 |" in text
    assert "| pombu | 2 | 1 | 0.575 | 0.575 |" in text
    assert "Of runs with fewer than 10 evaluations all count" in text
    long = rows_for([1], [100.0], tuple(range(0, 1_001, 50)))
    write_run(tmp_path / "runs" / "long", "pendulum", "mbpo", long)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "Of runs with fewer than 10 evaluations all count" in text  # of some


def test_published_curves_are_handed_to_the_figure(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "a"
    write_run(run, "pendulum", "ensemble_mean", rows_for([0], [500.0], (0, 50_000)))
    drawn = []
    draw = lambda *_, published=(), **more: drawn.append(list(published))
    monkeypatch.setattr(report.figures, "draw_curves", draw)
    report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert drawn == [["pendulum"]]
