"""Checks that a worker runs the code that its run was planned with: before it works and before it leaves a receipt.

What belongs to that code is decided in protocol/steps.py.
"""

from __future__ import annotations

from lakehouse_assets.wire.code import worker_code
from lakehouse_assets.wire.work import Assignment

SHARED_PROCESS = "inline"
ADVICE = {
    "local": "it was edited after the run had begun",
    SHARED_PROCESS: "it was edited after the run had begun, or after this process had imported it; start a new process",
}
OF_TWO_BUILDS = (
    "they come from two builds, or it was edited after the run had begun; deploy the code location and the workers "
    "(the image of the task definition, the zip under LAKEHOUSE_CODE) from one build"
)
IMPORTED: dict[str, str] = {}
"""The sources of what this process has imported, by module, where it works for several runs (inline): Python does not
import again what was edited between two of them."""


class OtherCode(RuntimeError):
    """This worker's code is not the code that its run was planned with."""


def check_code(assignment: Assignment) -> None:
    """Compares the files, and what a shared process has imported, with the run's code. Raises OtherCode.

    A process for one chunk has imported the run's code if the files are the run's before it imports the step and when
    it is done.
    """
    try:
        found = worker_code(assignment.step, assignment.checks.values())
    except (ImportError, ValueError) as error:
        found = f"none: {error}"
    _compare(assignment, found)
    check_imported(assignment)


def check_imported(assignment: Assignment) -> None:
    """Compares what a shared process has imported with the run's code, and remembers it. Raises OtherCode.

    It is called right after an import, while the files are what was imported.
    """
    if assignment.compute == SHARED_PROCESS:
        _compare(assignment, worker_code(assignment.step, assignment.checks.values(), IMPORTED))


def _compare(assignment: Assignment, found: str) -> None:
    if found != assignment.code:
        advice = ADVICE.get(assignment.compute, OF_TWO_BUILDS)
        raise OtherCode(
            f"the worker has other code for the step {assignment.step} than the run (its hash is {found}, the run's "
            f"{assignment.code}): {advice}. What the earlier code staged is staged again"
        )
