"""Ctrl-C and SIGTERM from a program's first line on: one line and the usual code."""

import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments import interrupts
from tests import programs


def start(program):
    """The program, once it catches SIGTERM: before that, Python has just begun."""
    process = programs.start(program)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            return process
        time.sleep(0.005)
    raise AssertionError(f"it never catches SIGTERM: {process.communicate()}")


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").is_file(), reason="needs /proc")
@pytest.mark.parametrize(
    ("program", "number", "delay"),
    [
        ("online", signal.SIGINT, 0.0),
        ("online", signal.SIGTERM, 0.5),
        ("offline", signal.SIGINT, 0.3),
        ("collect", signal.SIGINT, 0.1),
        ("tabular", signal.SIGINT, 0.2),
        ("plot", signal.SIGTERM, 0.1),
        ("benchmark", signal.SIGINT, 0.4),
        ("studies.critic_noise", signal.SIGINT, 0.1),
    ],
)
def test_signals_while_modules_are_imported(program, number, delay):
    process = start(program)
    time.sleep(delay)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    said = {signal.SIGINT: "interrupted\n", signal.SIGTERM: "terminated\n"}
    assert (process.returncode, out, err) == (128 + number, "", said[number])


def test_importing_the_package_leaves_the_handlers_alone():
    code = "import signal, experiments.cli as _; print(signal.getsignal(signal.SIGTERM).name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=programs.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "SIG_DFL\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_half_written_stays_where_a_program_leaves_at_once(number, tmp_path):
    (tmp_path / "rows.csv").write_text("kept")
    code = (
        "import pathlib, signal\n"
        "from experiments import files, interrupts\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "interrupts.leave_at_once()\n"
        f"with files.replacing(pathlib.Path({str(tmp_path / 'rows.csv')!r})) as file:\n"
        "    file.write('half')\n"
        f"    signal.raise_signal({int(number)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=programs.ROOT, timeout=120)
    assert done.returncode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert (tmp_path / "rows.csv").read_text() == "kept"


def test_the_first_signal_says_how_soon_it_stops_and_the_second_does_not_wait(capfd):
    with interrupts.stop_signals(interrupts.saving(", after 8 updates")) as stopped:
        assert stopped() is None
        signal.raise_signal(signal.SIGINT)
        assert stopped() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == (
        "\nstopping and saving, after 8 updates; Ctrl-C now leaves without saving\n"
    )


def test_what_is_ignored_stays_so(capfd):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as scripts set it for `&`
    try:
        with interrupts.stop_signals() as stopped:
            signal.raise_signal(signal.SIGINT)
            assert stopped() is None
            signal.raise_signal(signal.SIGTERM)
            assert stopped() == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err.count("stopping and saving") == 1


def test_signals_act_as_before_afterwards(capfd):
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in both]
    with interrupts.stop_signals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in both] == before


def test_only_ctrl_c_does_not_wait(capfd):
    with interrupts.stop_signals() as stopped:
        for _ in range(3):  # as a suite sends it again and again
            signal.raise_signal(signal.SIGTERM)
        assert stopped() == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err.count("stopping and saving") == 1


def test_a_thread_of_a_notebook_or_a_server_runs_without():
    noted = []

    def run():
        with interrupts.stop_signals() as stopped:
            noted.append(stopped())

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert noted == [None]
    assert signal.getsignal(signal.SIGINT) is before
