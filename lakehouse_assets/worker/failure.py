"""How a worker describes a failure, and the check that its code is the run's."""

from __future__ import annotations

import re
import signal
import traceback
from pathlib import Path
from typing import Any

from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.errors import BadValue, SourceLost, SourceUnreachable
from lakehouse_assets.step.window import BadPartitions
from lakehouse_assets.wire.code import worker_code
from lakehouse_assets.wire.work import Assignment, Cause, OtherLibrary

# The compute whose workers all run in the run's own process.
SHARED_PROCESS = "inline"
ADVICE = {
    "local": "it was edited after the run had begun",
    SHARED_PROCESS: "it was edited after the run began or after this process imported it; start a new process",
}
OF_TWO_BUILDS = (
    "they come from two builds, or it was edited after the run began; deploy the code location and the workers (the "
    "image of the task definition, the zip under LAKEHOUSE_CODE) from one build"
)
IMPORTED: dict[str, str] = {}
"""Module → the source that was imported, in a process for several runs (inline): Python imports no later edits."""


class OtherCode(RuntimeError):
    """The worker's code is not the code that its run was planned with."""


def check_code(assignment: Assignment) -> None:
    """Raises OtherCode if the files, or the imports of a shared process, are not the run's code.

    Called before the step is imported and again at the end. If the files are the run's both times, a process for one
    chunk has imported the run's code.
    """
    try:
        found = worker_code(assignment.step, assignment.checks.values(), hooks=assignment.hooks)
    except (ImportError, ValueError) as error:
        found = f"none: {error}"
    _compare(assignment, found)
    check_imported(assignment)


def check_imported(assignment: Assignment) -> None:
    """Raises OtherCode if a shared process has imported other code than the run's. Call it right after an import."""
    if assignment.compute == SHARED_PROCESS:
        found = worker_code(assignment.step, assignment.checks.values(), IMPORTED, assignment.hooks)
        _compare(assignment, found)


def _compare(assignment: Assignment, found: str) -> None:
    if found != assignment.code:
        advice = ADVICE.get(assignment.compute, OF_TWO_BUILDS)
        raise OtherCode(
            f"the worker has other code for the step {assignment.step} than the run (its hash is {found}, the run's "
            f"{assignment.code}): {advice}. What the earlier code staged is staged again"
        )


# A cause's message may have several lines: it ends where the stack begins.
CAUSED_BY = re.compile(r"^Caused by: (.+?)(?=^\s+(?:at |\.\.\. )|\Z)", re.MULTILINE | re.DOTALL)
# Spark names the file before the cause.
READING = re.compile(r"Encountered error while reading file (\S+)\.\s")
# Py4J's message has Java's error on a line of its own, after a colon: a class name with dots, and perhaps a message.
JAVA_ERROR = re.compile(r"^: ((?:[\w$]+\.)+[\w$]+(?:: .*)?)$", re.MULTILINE)
# How storage refuses a write to an input, whose location is below /dev/null (catalog_in_spark.NOWHERE).
READ_ONLY = re.compile(r"inputs-are-read-only|not a directory: file:/dev/null")
# How Spark reports a table that the catalog ``lake`` lacks.
NO_INPUT = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\][^`]*`lake`\.((?:`[^`]+`\.?)+)")
# Frames in these folders are not the user's step.
MACHINERY = (
    "site-packages/pyspark/",
    "site-packages/py4j/",
    "lakehouse_assets/worker/",
    "lakehouse_assets/files/",
    "lakehouse_assets/inputs/",
    "lakehouse_assets/extensions/",
    "lakehouse_assets/environment/launchers/",
    "importlib",
)
MESSAGE_LENGTH = 2000
# Errors of PyArrow and of Java's AWS SDK, after all their retries, when S3 does not answer or is busy.
S3_OUT_OF_REACH = re.compile(
    r"AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|UNKNOWN \(HTTP status 50\d\))"
    r"|SdkClientException: Unable to execute HTTP request"
    r"|Service: S3, Status Code: 50\d"
)

# Spark's error conditions for files that it can't find, open or parse.
UNREADABLE = re.compile(r"\[(?:PATH_NOT_FOUND|FAILED_READ_FILE|MALFORMED_RECORD_IN_PARSING|MALFORMED_CSV_RECORD)\b")
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")


class CredentialsExpired(RuntimeError):
    """Vended keys expired before the work was done. transient: whether keys vended now may live long enough."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class InputMoved(RuntimeError):
    """An input that is read live is no longer at the run's pin, the version that the plan has fixed."""


class ChangesUnknown(RuntimeError):
    """The changes of an input since the table's position are unknown."""


class CannotReadOn(RuntimeError):
    """The declaration of a table or an input does not allow reading the input's changes."""


class InputDropped(RuntimeError):
    """A step has dropped its private copy of an input."""


class CheckError(RuntimeError):
    """A declared condition can't be evaluated on its rows."""


NOT_THE_STEPS = (CredentialsExpired, ImportError, OtherCode, OtherLibrary, SettingsError)
"""Errors in what the worker was given: keys, code, settings."""
OF_INPUT = (BadPartitions, BadValue, FileNotFoundError, ChangesUnknown, SourceLost, SourceUnreachable)
"""Errors in what the step reads."""


def describe(error: BaseException, jvm_exit: int | None = None) -> dict[str, Any]:
    """Returns an error's ``type``, ``message`` and ``traceback``, and the ``partitions`` that a step named.

    The message ends with the line of user code that raised. Java's stack is left out, and library frames if there are
    user frames. jvm_exit: the JVM's return code, None while it runs; if it has ended, PySpark's many unclear messages
    about that are left out.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in Path(f.filename).as_posix() for part in MACHINERY)]
    kind, message = type(error).__name__, root_message(str(error))
    if READ_ONLY.search(message):
        message = (
            "the step wrote to the catalog lake, which workers may only read: return the rows instead, and the run "
            f"publishes them ({message})"
        )
    if unknown := NO_INPUT.search(message):
        message = no_input(unknown[1].replace("`", ""))
    if jvm_exit is not None:
        raised = "" if _is_pysparks(error) else f"; the step then raised {kind}: {message}"
        kind, message = "JVMEnded", f"the worker's JVM {_ended(jvm_exit)} while the step used it{raised}"
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return {
        "type": kind,
        "message": f"{message[:MESSAGE_LENGTH]}{place}",
        "traceback": "".join(traceback.format_list(own or frames)),
        "partitions": list(error.partitions) if isinstance(error, BadPartitions) else [],
    }


WAYS_OUT = (
    "To read all of it, materialize with the run tag lakehouse/read_all: true (an Append without dedup_on then adds "
    "all rows once more: delete its rows first)"
)


def changes_unknown(name: str, table: str, why: str) -> ChangesUnknown:
    """Returns the error for an input or source whose changes since the table's position are unknown."""
    return ChangesUnknown(f"it is unknown what changed in {name} since {table} read it: {why}. {WAYS_OUT}")


def no_input(name: str) -> str:
    """Explains how a table becomes an input of the run. name: its identifier."""
    return (
        f"the step uses lake.{name}, which is not one of this run's inputs: add it to the table's deps if it is an "
        f"asset of this code location, otherwise declare reads=[{name!r}]. The table of a dep must exist when the run "
        "begins. Then materialize again in a new run: a re-execution from failure reads the inputs of the first run's "
        "plan"
    )


def _is_pysparks(error: BaseException) -> bool:
    """Whether PySpark may have raised this because its JVM did not answer."""
    # "'JavaPackage' object is not callable" is what a call of a Java class can raise after the JVM's end.
    origin = type(error).__module__.partition(".")[0]
    return origin in ("py4j", "pyspark") or isinstance(error, (ConnectionError, EOFError)) or "JavaP" in str(error)


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return (
            "was killed (SIGKILL), by a person or by the system because memory ran out (see `dmesg`; try fewer "
            "partitions per worker or a smaller spark.driver.memory)"
        )
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def out_of_reach(error: BaseException) -> bool:
    """Whether S3 or a source failed, not the step, so that the same work may succeed later or elsewhere."""
    if isinstance(error, SourceUnreachable):
        return True
    return (isinstance(error, CredentialsExpired) and error.transient) or S3_OUT_OF_REACH.search(str(error)) is not None


def cause_of(error: BaseException, jvm_exit: int | None = None) -> Cause:
    """Returns whose fault an error is; the step's if unknown, as a step may raise anything for wrong input."""
    # The dead JVM comes first: whatever PySpark raised for it says nothing about the step.
    if jvm_exit is not None or isinstance(error, NOT_THE_STEPS) or DISK_FULL.search(str(error)):
        return Cause.WORKER
    if isinstance(error, InputMoved):
        return Cause.MOVED
    of_input = isinstance(error, OF_INPUT) or UNREADABLE.search(str(error))
    return Cause.INPUT if of_input else Cause.STEP


def root_message(text: str) -> str:
    """Returns Java's root cause from a stack trace, and what it caused; else the text before a ``JVM stacktrace``.

    The root alone may say nothing, such as the EOFException of a Python worker that died.
    """
    # The root is last in a trace. Without repetitions: Spark prints an executor's causes again in the driver's trace.
    causes = dict.fromkeys(cause.strip() for cause in reversed(CAUSED_BY.findall(text)))
    if causes:
        root, *later = causes
        file = READING.search(text)
        told = root if file is None or file[1] in root else f"{root}, while reading {file[1]}"
        return "; which caused ".join([told, *(cause for cause in later if root not in cause)])
    if match := JAVA_ERROR.search(text):
        return match[1]
    return text.partition("\n\nJVM stacktrace:")[0].strip()
