"""A worker whose work is no table's: it counts the lines of a file. Its proof is ``{"file": name, "lines": number}``.
Run as ``python -m tests.support.counting_worker``; how it is driven is in tests/unit/drive/test_job.py."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from dagster_pipes import open_dagster_pipes

# How its file asks for something else than to be counted, by its first line.
LOSES_ITS_FIRST_WORKER, HANGS, WAITS = "lose the first", "hang", "wait"


def main() -> int:
    with open_dagster_pipes() as pipes:
        file = Path(pipes.get_extra("work")["file"])
        with file.with_suffix(".started").open("a") as started:
            started.write(f"{os.getpid()}\n")
        lines = file.read_text().splitlines()
        if lines[0] == LOSES_ITS_FIRST_WORKER and len(file.with_suffix(".started").read_text().split()) == 1:
            return os.EX_TEMPFAIL
        while lines[0] == HANGS or (lines[0] == WAITS and file.with_name("hold").exists()):
            time.sleep(0.05)
        proof = {"file": file.name, "lines": len(lines)}
        file.with_suffix(".proof").write_text(json.dumps(proof))
        pipes.report_custom_message({"proof": proof})
    return 0


if __name__ == "__main__":
    sys.exit(main())
