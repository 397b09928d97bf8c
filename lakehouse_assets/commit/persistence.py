"""Tries a commit again: after which errors, after how long a wait, and how it finds out whether it landed after all.

What is committed is the business of publish.py and expire_commit.py.
"""

from __future__ import annotations

import errno
import logging
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)

from lakehouse_assets.errors import LakehouseError
from resources.aws import is_transient

logger = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 20
# Full jitter from 100 ms (Iceberg's commit.retry.min-wait-ms) up to 5 s: with 20 attempts over 40 s on average, so a
# catalog locked by somebody else for 10 s is outlasted.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
# requests' errors and timeouts are OSErrors.
TRANSIENT = (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    OSError,
)
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def commit_persistently(
    identifier: str,
    verb: str,
    attempt: Callable[[], T],
    landed: Callable[[], T | None],
    contended: Callable[[str, Exception], LakehouseError],
    attempts: int,
) -> T:
    """Returns the result of the first attempt that succeeds.

    identifier, verb: the table's name, and what is done to it, for the log.
    attempt: loads the table, looks whether an earlier attempt has landed, plans and commits; an error that it raises on
        purpose (LakehouseError) ends the loop.
    landed: asked once after the last error, whatever that was; returns the result if the commit is there.
    contended: makes the error to raise, of the problem and the last error, when the attempts ran out or the catalog
        stayed out of reach.
    """
    for number in range(1, attempts + 1):
        if number > 1:
            time.sleep(random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (number - 2))))
        try:
            return attempt()
        except LakehouseError:
            raise
        except Exception as error:
            failure = error
            if not _transient(error):
                break
            _log(f"{number} of {attempts} to {verb}", identifier, error)
    try:
        found = landed()
    except LakehouseError:
        raise
    except Exception as error:
        raise contended(f"the catalog can't be asked whether the commit landed ({error!r})", failure) from error
    if found is not None:
        return found
    if not _transient(failure):
        raise failure
    raise contended(f"not committed in {attempts} attempts", failure) from failure


def _log(attempt: str, identifier: str, error: Exception) -> None:
    if isinstance(error, CommitFailedException):  # expected where several runs write a table
        text = "%s: another commit came first at attempt %s; trying again on what is there now"
        logger.info(text, identifier, attempt)
    else:
        logger.warning("%s: attempt %s failed: %r", identifier, attempt, error)


def _transient(error: Exception) -> bool:
    from sqlalchemy.exc import OperationalError  # half a second: not needed to load definitions

    if "botocore" in sys.modules and is_transient(error):  # PyIceberg imports it with Glue
        return True
    # SQLite's "database is locked" is an OperationalError, and so is a connection PostgreSQL dropped; a full disk too.
    if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return False
    return isinstance(error, (*TRANSIENT, OperationalError)) and getattr(error, "errno", None) not in LASTING
