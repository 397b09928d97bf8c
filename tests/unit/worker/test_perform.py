"""What a worker does before its work: the order of its imports, in which a mistake fails a worker now and then."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.worker.perform import perform
from tests.conftest import ROOT

# A stand-in for Spark's context ends the work when all imports are under way. A thread says what it finds imported.
SCRIPT = """
import sys, threading
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.wire.work import Assignment
from lakehouse_assets.wire.code import worker_code
from lakehouse_assets.step.window import Window
from lakehouse_assets.worker.perform import perform

class Watched(threading.Thread):
    def start(self):
        # The name that a module on its way through pyspark's circle of imports does not have yet.
        print("complete" if hasattr(sys.modules.get("pyspark.sql"), "SQLContext") else "not imported")
        sys.modules["pyspark"].SparkContext.getOrCreate = no_context
        super().start()

threading.Thread = Watched

def no_context(conf):
    raise RuntimeError("no session is needed")

step = "lakehouse_assets.domains.nyc.steps:flights"
payload = Assignment("demo.t", step, "token", 0, Window(), "", "", "1", worker_code(step)).to_fields()
print(perform(payload, None, read_settings)["error"]["message"])
"""


def test_pyspark_is_imported_before_a_second_thread_imports_what_needs_it() -> None:
    """Else one of them may find ``pyspark.sql`` half made: an ImportError of a circular import."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    complete, message = done.stdout.splitlines()
    assert complete == "complete"
    assert message.startswith("no session is needed")


def test_what_a_worker_reports_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_API_TOKEN", "hush-hush")
    error = perform({"kind": "known by hush-hush"}, lambda _: None, read_settings)["error"]
    assert "of the kind 'known by …'" in error["message"]
    assert "hush-hush" not in str(error)
