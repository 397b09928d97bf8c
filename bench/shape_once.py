"""One traced run of one day of nyc.flights: prints the lines of this package that op and worker executed, by file.
The worker is traced by the same code, which Python loads as sitecustomize."""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'lakehouse_assets'}/"
OUTPUT = "BENCH_SHAPE_OUTPUT"
SITE = f"""
import runpy, sys
if "lakehouse_assets.worker" in sys.orig_argv:
    runpy.run_path({str(Path(__file__).resolve())!r})["trace_this_process"]()
"""


class Tracer:
    """The lines of functions that are executed."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = defaultdict(set)

    def of_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # else the body of a module or a class
        if not is_function or not name.startswith(PACKAGE) or "/domains/" in name:
            return None
        return self.of_line

    def of_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self.of_line

    def start(self) -> None:
        threading.settrace(self.of_call)
        sys.settrace(self.of_call)

    def stop(self) -> dict[str, list[int]]:
        sys.settrace(None)
        threading.settrace(None)
        return {name: sorted(lines) for name, lines in self.lines.items()}


def trace_this_process() -> None:
    """From now on; the lines are written when the process ends."""
    import atexit

    tracer = Tracer()
    atexit.register(lambda: Path(os.environ[OUTPUT]).write_text(json.dumps(tracer.stop())))
    tracer.start()


def main(output: str) -> None:
    from bench.one_run import materialize, prepare
    from lakehouse_assets.domains.nyc import tables
    from lakehouse_assets.run import table_run

    prepare(tables.flights)
    tracer, run = Tracer(), table_run.materialize

    def traced(*arguments: Any) -> Any:
        tracer.start()
        events = run(*arguments)
        while True:
            sys.settrace(tracer.of_call)
            try:
                event = next(events)
            except StopIteration:
                return
            yield event

    with patch.object(table_run, "materialize", traced), tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(SITE)
        os.environ["PYTHONPATH"] = f"{folder}:{ROOT}"
        os.environ[OUTPUT] = output
        result, *_ = materialize(tables.flights, "2013-01-01", "2013-01-01")
    assert result.success
    found = {name: set(lines) for name, lines in tracer.stop().items()}
    for name, lines in json.loads(Path(output).read_text()).items():
        found.setdefault(name, set()).update(lines)
    print(json.dumps({name: sorted(lines) for name, lines in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
