"""What a person sees of a run: a bar on a terminal, elsewhere few lines, each with something new; and tables."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lakehouse_assets.cli import terminal
from lakehouse_assets.cli.terminal import Lines, duration, table
from lakehouse_assets.run.progress import Progress, listening, report


def test_without_a_terminal_repeats_are_left_out_and_the_end_is_told() -> None:
    out = io.StringIO()
    with Lines(out) as lines:
        line = lines.add("[1/2] nyc.flights", 365)
        with listening(line.update):
            for done in range(365):
                report(Progress("nyc.flights", done, 365, 2, time.time()))
        line.end("done")
    assert out.getvalue().splitlines() == [
        "[1/2] nyc.flights  0/365 partitions  0:00",
        "[1/2] nyc.flights  done in 0:00",
    ]


def test_a_change_is_told_once_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0)
    out = io.StringIO()
    with Lines(out) as lines:
        line = lines.add("nyc.planes", None)
        for running in (1, 1, 2):
            line.update(Progress("nyc.planes", 0, 1, running, time.time() - 65))
    assert out.getvalue().splitlines() == [
        "nyc.planes  0:00",
        "nyc.planes  1 worker running  1:05",
        "nyc.planes  2 workers running  1:05",
    ]


def test_waiting_for_a_slot_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0)
    out = io.StringIO()
    with Lines(out) as lines:
        lines.add("nyc.planes", None).update(Progress("nyc.planes", 0, 1, 0, time.time(), waiting=True))
    assert out.getvalue().endswith("nyc.planes  waiting for a slot  0:00\n")


SHOWN = """
import sys, time
from lakehouse_assets.cli.terminal import Lines, table
from lakehouse_assets.run.progress import Progress
with Lines(sys.stdout) as lines:
    flights = lines.add("[1/2] nyc.flights", 365)
    planes = lines.add("[2/2] nyc.planes", None)
    for done in (0, 100, 200):
        time.sleep(0.1)
        flights.update(Progress("nyc.flights", done, 365, 2, time.time()))
    flights.end("done")
    planes.end("failed")
cells = ("nyc.route_delays_monthly", "10 columns, partitioned by month, sorted by carrier")
print(table(("table", "declared"), [cells]))
print(table("abc", [("a" * 30, "b" * 30, "1")]))
"""
FOLDED = """\
table                     declared
───────────────────────── ──────────────────────────────────────
nyc.route_delays_monthly  10 columns, partitioned by month,
                          sorted by carrier
a                               b                               c
─────────────────────────────── ─────────────────────────────── ─
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb  1
"""


def on_a_terminal(**environment: str) -> str:
    """What a terminal of 64 columns gets of SHOWN."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 24, 64, 0, 0))
    variables = os.environ | {"TERM": "xterm", "NO_COLOR": "1"} | environment
    with subprocess.Popen([sys.executable, "-c", SHOWN], env=variables, stdin=reader, stdout=writer) as process:
        os.close(writer)
        shown = b""
        with suppress(OSError):  # Linux says so when the other side is closed
            while chunk := os.read(reader, 4096):
                shown += chunk
    os.close(reader)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_sees_a_bar_with_an_estimate_and_folded_cells() -> None:
    shown = on_a_terminal()
    states = [state.split("\x1b[1A")[0].rstrip("\r") for state in shown.split("\x1b[2K")]
    flights = r"\[1/2\] nyc\.flights [━╸╺]+ +200/365  2 workers 0:00:0\d 00:0\d left"
    planes = r"\[2/2\] nyc\.planes [━╸╺ ]+ 0:00:0\d +"
    both = [state for state in states if re.fullmatch(f"{flights}\n{planes}", state)]
    assert both, "a bar for each of the two"
    assert max(map(len, both[-1].split("\n"))) < 64, "the terminal would show ^C in the next line, and bars would stay"
    first = next(state for state in states if "done" in state)
    assert re.fullmatch(rf"\[1/2\] nyc\.flights  done in 0:00\n{planes}", first), "the other's bar goes on below"
    assert "".join(states[-2:]).replace("\r", "") == f"[2/2] nyc.planes  failed in 0:00\n\x1b[?25h{FOLDED}"
    assert shown.index("\x1b[?25l") < shown.index("\x1b[?25h"), "the cursor is hidden, then shown again"


def test_a_dumb_terminal_gets_lines() -> None:
    begun = "[1/2] nyc.flights  0/365 partitions  0:00\n[2/2] nyc.planes  0:00\n"
    lines = f"{begun}[1/2] nyc.flights  done in 0:00\n[2/2] nyc.planes  failed in 0:00\n"
    assert on_a_terminal(TERM="dumb") == lines + FOLDED


def test_a_pipe_gets_lines_and_whole_cells_even_if_colours_are_asked_for() -> None:
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "40"}
    done = subprocess.run([sys.executable, "-c", SHOWN], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[1/2] nyc.flights  0/365 partitions  0:00",
        "[2/2] nyc.planes  0:00",
        "[1/2] nyc.flights  done in 0:00",
        "[2/2] nyc.planes  failed in 0:00",
        "table                     declared",
        "───────────────────────── ───────────────────────────────────────────────────",
        "nyc.route_delays_monthly  10 columns, partitioned by month, sorted by carrier",
        *FOLDED.splitlines()[-3:],
    ]


INTO_A_FULL_LOG = """
import sys
from pathlib import Path
from lakehouse_assets.cli.terminal import output_to
with output_to(Path("/dev/full")) as terminal:
    print("for the log")
    print("for a person", file=terminal)
print("behind it")
"""


def test_what_a_full_disk_keeps_out_of_the_log_is_not_told_on_the_terminal() -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", INTO_A_FULL_LOG], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "for a person\nbehind it\n", "")


INTO_A_LOG = """
import sys
from pathlib import Path
from lakehouse_assets.cli.terminal import output_to
with output_to(Path(sys.argv[1])) as terminal:
    print(sys.argv[2], flush=True)
    print("logged", file=terminal, flush=True)
    sys.stdin.read()
    print(sys.argv[2], "ends", flush=True)
"""


def test_two_processes_share_a_log_and_the_next_one_begins_it_anew(tmp_path: Path) -> None:
    log = tmp_path / "run.log"

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", INTO_A_LOG, str(log), name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "logged\n"
        return process

    first, second = start("first"), start("second")
    first.communicate()
    second.communicate()
    assert log.read_text().splitlines() == ["first", "second", "first ends", "second ends"]
    start("third").communicate()
    assert log.read_text().splitlines() == ["third", "third ends"]


def test_no_report_arrives_after_the_context() -> None:
    received: list[Progress] = []
    with listening(received.append):
        report(Progress("a.b", 1, 2, 1, 0.0))
    report(Progress("a.b", 2, 2, 0, 0.0))
    assert received == [Progress("a.b", 1, 2, 1, 0.0)]


def test_numbers_line_up_to_the_right() -> None:
    assert table(("table", "rows"), [("nyc.flights", "336,776"), ("x", "1")]).splitlines() == [
        "table           rows",
        "──────────── ───────",
        "nyc.flights  336,776",
        "x                  1",
    ]


def test_a_table_may_have_no_rows() -> None:
    assert table(("table", "rows"), []).splitlines() == ["table  rows", "────── ────"]


def test_durations_are_minutes_and_seconds() -> None:
    assert [duration(seconds) for seconds in (0.4, 59.9, 60, 3600)] == ["0:00", "0:59", "1:00", "60:00"]
