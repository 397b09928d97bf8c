"""A worker without Spark, for tests of what drives workers: a process that does what its assignment's step says.
Run as ``python -m tests.support.tiny_worker``; a table names its steps ``tests.support.tiny_worker:stage``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dagster_pipes import PipesContext
from pyiceberg.io import FileIO, load_file_io

from lakehouse_assets.environment import aws
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.settings import worker_settings
from lakehouse_assets.step.window import OpenedFile
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import OUT_OF_REACH, Assignment
from lakehouse_assets.worker import pipes
from lakehouse_assets.worker.__main__ import end_with_parent


def receipt_of(assignment: Assignment) -> Receipt:
    return Receipt.of(
        assignment,
        metadata_location="nowhere",
        rows=0,
        stage_seconds=0.0,
        created_at="2024-01-01T00:00:00+00:00",
        worker=str(os.getpid()),
    )


def report(pipes: PipesContext, assignment: Assignment) -> None:
    """All is well."""
    pipes.report_custom_message({"receipt": receipt_of(assignment).to_json()})


def write(pipes: PipesContext, assignment: Assignment) -> None:
    """The durable receipt is written, and the process dies before it could report it."""
    Path(assignment.receipt).write_text(receipt_of(assignment).to_json())
    os.kill(os.getpid(), signal.SIGKILL)


def write_beside(pipes: PipesContext, assignment: Assignment) -> None:
    """As write, once another worker has left its child: tests that end it there find it on a slow machine, too."""
    while not list(Path(assignment.receipt).parent.glob("*.child")):
        time.sleep(0.05)
    write(pipes, assignment)


def write_and_report(pipes: PipesContext, assignment: Assignment) -> None:
    """As a real worker: the durable receipt first."""
    Path(assignment.receipt).write_text(receipt_of(assignment).to_json())
    report(pipes, assignment)


def tear(pipes: PipesContext, assignment: Assignment) -> None:
    """Half a receipt is written, then the process dies."""
    Path(assignment.receipt).write_text(receipt_of(assignment).to_json()[:40])
    os.kill(os.getpid(), signal.SIGKILL)


def die(pipes: PipesContext, assignment: Assignment) -> None:
    """Killed, with a child of its own (the JVM's stand-in) that would live on."""
    _leave_child(assignment)
    os.kill(os.getpid(), signal.SIGKILL)


def abandon(pipes: PipesContext, assignment: Assignment) -> None:
    """All is well, but for a child that nobody waits for."""
    _leave_child(assignment)
    report(pipes, assignment)


def abandon_and_complain(pipes: PipesContext, assignment: Assignment) -> None:
    """The step raised, and left a child."""
    _leave_child(assignment)
    complain(pipes, assignment)


def garble(pipes: PipesContext, assignment: Assignment) -> None:
    """A step's own messages that look like ours; lines that are no messages, a receipt among them, and half a line at
    the end."""
    for own in (5, "receipt", {"receipt": 5}, {"error": 5}, {"error": {}}):
        pipes.report_custom_message(own)
    messages = Path(pipes._message_channel._path)  # type: ignore[attr-defined]
    with messages.open("ab", buffering=0) as file:
        file.write(b'\xff\xfe not text\n{"method": "open\n42\n{"method": "no such"}\n\n')
        report(pipes, assignment)
        file.write(b'{"method": "report_custom_mess')
    os._exit(0)


def complain(pipes: PipesContext, assignment: Assignment) -> None:
    """The step raised."""
    pipes.report_custom_message({"error": {"type": "KeyError", "message": "'carrier'", "traceback": "  line 1\n"}})
    sys.exit(1)


def hang(pipes: PipesContext, assignment: Assignment) -> None:
    """Stopped: it answers no signal but SIGKILL, and has a child and a temporary file."""
    _leave_child(assignment)
    tempfile.mkstemp(prefix="step")
    os.kill(os.getpid(), signal.SIGSTOP)


def linger(pipes: PipesContext, assignment: Assignment) -> None:
    """Reports, and then doesn't end."""
    report(pipes, assignment)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def resist(pipes: PipesContext, assignment: Assignment) -> None:
    """Asked to end, it doesn't, and interrupts whoever asked, as a signal that comes while a run ends its workers."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))
    Path(assignment.receipt + ".child").write_text(str(os.getpid()))
    time.sleep(600)


def stage(pipes: PipesContext, assignment: Assignment) -> None:
    """As steps:numbers, by PyIceberg: three rows a day. Notes its start as ``<pid> <key>`` in ``<home>/started``,
    waits while ``<home>/hold`` names its day, fails when ``<home>/fail`` does (and only once with the word once), ends
    as if all were well, and leaves nothing, when ``<home>/leave`` does.
    Its step has opened the files of its days in ``<home>/opened``."""
    home = Path(os.environ["LAKEHOUSE_HOME"])
    with (home / "started").open("a") as started:
        started.write(f"{os.getpid()} {' '.join(assignment.window.keys)}\n")
    while _named(home / "hold", assignment):
        time.sleep(0.05)
    if _named(failing := home / "fail", assignment):
        if "once" in failing.read_text():
            failing.unlink()
        complain(pipes, assignment)
    from tests.support.light_stage import stage as stage_days

    if _named(home / "leave", assignment):
        return
    files = (file for key in assignment.window.keys for file in sorted((home / "opened").glob(f"{key}*")))
    opened = tuple(OpenedFile(f"file:{file}", file.stat().st_size, 0) for file in files)
    receipt = stage_days(
        assignment, _properties(assignment), each=3, stage_seconds=0.0, worker=str(os.getpid()), files=opened
    )
    receipt.write(_io(assignment), assignment.receipt)
    pipes.report_custom_message({"receipt": receipt.to_json()})


def attend(pipes: PipesContext, assignment: Assignment) -> None:
    """Notes its start as a line ``<pid>`` in ``<home>/started``, waits while there is a ``<home>/hold``, then leaves a
    durable receipt and reports it."""
    home = Path(os.environ["LAKEHOUSE_HOME"])
    with (home / "started").open("a") as started:
        started.write(f"{os.getpid()}\n")
    while (home / "hold").exists():
        time.sleep(0.05)
    receipt_of(assignment).write(_io(assignment), assignment.receipt)
    report(pipes, assignment)


def lose_s3(pipes: PipesContext, assignment: Assignment) -> None:
    """S3 is out of reach at the first attempt."""
    if _first(assignment):
        sys.exit(os.EX_TEMPFAIL)
    report(pipes, assignment)


def lose_s3_together(pipes: PipesContext, assignment: Assignment) -> None:
    """S3 is out of reach at the first attempt, and for another chunk at the same time."""
    if _first(assignment):
        while len(list(Path(assignment.receipt).parent.glob("*.attempted"))) < 2:
            time.sleep(0.05)
        sys.exit(os.EX_TEMPFAIL)
    report(pipes, assignment)


def miss_s3(pipes: PipesContext, assignment: Assignment) -> None:
    """The same, and the worker can say so."""
    if _first(assignment):
        error = {"type": "OSError", "message": "AWS Error", "traceback": "", OUT_OF_REACH: True}
        pipes.report_custom_message({"error": error})
        sys.exit(1)
    report(pipes, assignment)


def leave(pipes: PipesContext, assignment: Assignment) -> None:
    """Ends as if all were well, and leaves nothing."""
    print("I leave nothing", flush=True)


def _leave_child(assignment: Assignment) -> None:
    """A process that would live on, its id in ``<receipt>.child``."""
    child = subprocess.Popen(["sleep", "600"])
    Path(assignment.receipt + ".child").write_text(str(child.pid))


def _io(assignment: Assignment) -> FileIO:
    """The FileIO of the place for the receipt."""
    return load_file_io(_properties(assignment), assignment.receipt)


def _properties(assignment: Assignment) -> dict[str, str]:
    """The catalog's, found as the real worker does it."""
    settings = worker_settings()
    return catalog_properties(settings, assignment.catalog)


def _first(assignment: Assignment) -> bool:
    """Whether no attempt at the chunk was made before."""
    attempted = Path(assignment.receipt + ".attempted")
    was = attempted.exists()
    attempted.touch()
    return not was


def _named(file: Path, assignment: Assignment) -> bool:
    return file.exists() and bool(set(file.read_text().split()) & set(assignment.window.keys))


def work(pipes: PipesContext, assignment: Assignment) -> None:
    """Takes a moment, and notes when it ran, for tests of how many run at once."""
    started = time.monotonic()
    time.sleep(0.3)
    Path(assignment.receipt + ".ran").write_text(f"{started} {time.monotonic()}")
    report(pipes, assignment)


STEPS: dict[str, Callable[[PipesContext, Assignment], None]] = {
    f.__name__: f
    for f in (
        report,
        write,
        write_beside,
        write_and_report,
        tear,
        die,
        abandon,
        abandon_and_complain,
        garble,
        complain,
        hang,
        linger,
        resist,
        stage,
        attend,
        lose_s3,
        lose_s3_together,
        miss_s3,
        leave,
        work,
    )
}


def hurry() -> None:
    """Have less patience with a lost network than a worker has, where a test says so."""
    if looks := os.environ.get("TINY_MISSED_LOOKS"):
        pipes.MISSED_LOOKS, pipes.LOOK_SECONDS = int(looks), 0.5
        aws.TIMEOUTS["read_timeout"] = 1
    if retries := os.environ.get("TINY_RETRIES"):
        from lakehouse_assets.environment import file_io  # with PyArrow, which most of the steps do without

        file_io.RETRIES = int(retries)


def main(context: PipesContext) -> int:
    assignment = Assignment.from_json(context.get_extra("work"))
    STEPS[assignment.step.rpartition(":")[2]](context, assignment)
    return 0


if __name__ == "__main__":
    end_with_parent()
    hurry()
    sys.exit(pipes.in_session(main))
