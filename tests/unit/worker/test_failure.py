"""Whose failure it was: S3's, which another attempt may not meet, or the step's. Messages are as they were seen.
What a person reads of a step's errors is in test_faults_spark.py and test_nyc_dropzone.py."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.errors import SourceLost
from lakehouse_assets.step.window import BadPartitions
from lakehouse_assets.wire.work import Cause
from lakehouse_assets.worker.changes import ChangesError
from lakehouse_assets.worker.failure import (
    CannotReadOn,
    ChangesUnknown,
    CheckError,
    CredentialsExpired,
    OtherCode,
    cause_of,
    describe,
    out_of_reach,
)

S3S = {
    "PyArrow, cut off": "When initiating multiple part upload for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION "
    "during CreateMultipartUpload operation: curlCode: 52, Server returned nothing (no headers, no data)",
    "PyArrow, throttled": "When uploading part for key 'a' in bucket 'b': AWS Error SLOW_DOWN during UploadPart "
    "operation: Please reduce your request rate. (Request ID: 0)",
    "PyArrow, throttled without words": "When getting information for key 'a' in bucket 'b': AWS Error UNKNOWN (HTTP "
    "status 503) during HeadObject operation: No response body.",
    "Java, cut off": "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Read "
    "timed out (SDK Attempt Count: 6)",
    "Java, throttled": "software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate. "
    "(Service: S3, Status Code: 503, Request ID: 0)",
}
STEPS = {
    "a bug": "'carrier'",
    "PyArrow, no such file": "When reading information for key 'a' in bucket 'b': AWS Error RESOURCE_NOT_FOUND during "
    "HeadObject operation: No response body.",
    "PyArrow, not allowed": "When reading information for key 'a' in bucket 'b': AWS Error ACCESS_DENIED during "
    "HeadObject operation: No response body.",
    "Java, not allowed": "software.amazon.awssdk.services.s3.model.S3Exception: Access Denied. (Service: S3, Status "
    "Code: 403, Request ID: 0)",
}


@pytest.mark.parametrize("message", S3S.values(), ids=S3S)
def test_s3_that_is_busy_or_silent_is_not_the_steps_fault(message: str) -> None:
    assert out_of_reach(OSError(message))


@pytest.mark.parametrize("message", STEPS.values(), ids=STEPS)
def test_what_s3_would_say_again_is(message: str) -> None:
    assert not out_of_reach(OSError(message))


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (Py4JError("SparkSession does not exist in the JVM"), -9, "the worker's JVM was killed (SIGKILL), by a person"),
        (ConnectionRefusedError(111, "Connection refused"), -6, "the worker's JVM was ended by SIGABRT while the step"),
        (TypeError("'JavaPackage' object is not callable"), 3, "the worker's JVM exited with status 3 while the step"),
        (
            KeyError("carrier"),
            3,
            "exited with status 3 while the step used it; the step then raised KeyError: 'ca",
        ),
    ],
)
def test_of_a_jvm_that_ended_a_person_reads_how(error: Exception, status: int, says: str) -> None:
    described = describe(error, status)
    assert says in described["message"]
    assert described["type"] == "JVMEnded"
    assert not any(word in described["message"] for word in ("in the JVM", "refused", "JavaPackage"))


CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'x' to 'true'"
FRAMES = (
    "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:710)\n\t... 26 more\n"
)
UDF_DIED = (
    f"An error occurred while calling o80.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to "
    f"stage failure: Task 1 in stage 0.0 failed 1 times, most recent failure: Lost task 1.0: {CRASHED}\n{FRAMES}"
    f"Caused by: java.io.EOFException\n{FRAMES}\nDriver stacktrace:\n{FRAMES}Caused by: {CRASHED}\n{FRAMES}"
    f"Caused by: java.io.EOFException\n{FRAMES}"
)


def test_of_java_a_person_reads_the_root_cause_and_what_it_caused() -> None:
    assert describe(RuntimeError(UDF_DIED))["message"] == f"java.io.EOFException; which caused {CRASHED}"
    malformed = "Encountered error while reading file /a.json.\n\tat x\n" + (
        f"Caused by: A: malformed\n{FRAMES}Caused by: B: C: no number\n{FRAMES}Caused by: C: no number\n{FRAMES}"
    )
    told = describe(RuntimeError(malformed))["message"]
    assert told == "C: no number, while reading /a.json; which caused A: malformed"


def test_the_partitions_that_a_step_names_are_told() -> None:
    assert describe(BadPartitions("no input", ["2024-01-02"]))["partitions"] == ["2024-01-02"]
    assert describe(ValueError("no input"))["partitions"] == []


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        (Cause.INPUT, BadPartitions("no input")),
        (Cause.INPUT, FileNotFoundError("orders.csv")),
        (Cause.INPUT, RuntimeError("[PATH_NOT_FOUND] Path does not exist: file:/landing/orders. SQLSTATE: 42K03")),
        (Cause.INPUT, RuntimeError("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a.gz.")),
        (Cause.INPUT, ChangesUnknown("what changed in demo.t can't be told")),
        (Cause.INPUT, SourceLost("the rows of kafka:events are not all there")),
        (Cause.STEP, CheckError("the check 'positive' can't be evaluated")),
        (Cause.STEP, CannotReadOn("the step reads changes of demo.t")),
        (Cause.STEP, KeyError("carrier")),
        (Cause.STEP, ChangesError("some keys have several changes")),  # of the input, or by want of an order
        (Cause.STEP, RuntimeError("[UNRESOLVED_COLUMN] `carrier`")),
        (Cause.STEP, OSError("5")),
        (Cause.WORKER, CredentialsExpired("the keys expired", transient=False)),
        (Cause.WORKER, OtherCode("the worker has other code")),
        (Cause.WORKER, ModuleNotFoundError("No module named 'pandas'")),
        (Cause.WORKER, SettingsError("LAKEHOUSE_STAGING is no URL")),
        (Cause.WORKER, RuntimeError("java.io.IOException: No space left on device")),
    ],
)
def test_whose_fault_an_error_is(cause: Cause, error: Exception) -> None:
    assert cause_of(error) is cause


def test_what_a_step_raises_as_its_jvm_has_ended_is_not_its_own_fault() -> None:
    assert cause_of(KeyError("carrier"), jvm_exit=-9) is Cause.WORKER
