"""Errors that people see. Each message names the table, what was expected, what was found, and the remedy."""


class LakehouseError(Exception):
    """Base of all errors raised on purpose."""


class DeclarationError(LakehouseError, ValueError):
    """Declarations can't work; raised when the code location loads."""

    def __init__(self, *problems: str) -> None:
        """problems: sentences with their tables' names."""
        super().__init__("\n".join(["the declarations are not valid:", *problems] if len(problems) > 1 else problems))


class PublishRefused(LakehouseError):
    """The staged work can't be published. Nothing was committed."""


class BadRunTag(LakehouseError, ValueError):
    """A run's tag has an unknown value. Nothing was changed."""


class StageAgain(PublishRefused):
    """Others changed what the staged rows depend on: they must be staged again, on the current table.

    inputs_moved: whether the step's inputs changed.
    """

    def __init__(self, message: str, *, inputs_moved: bool = False) -> None:
        super().__init__(message)
        self.inputs_moved = inputs_moved


class RolledBack(PublishRefused):
    """The run's snapshot is no ancestor of main any more: it was rolled back. A person must decide."""


class RollbackRefused(LakehouseError):
    """A table can't be rolled back as requested. Nothing was changed."""


class PublishContended(LakehouseError):
    """Each attempt to commit failed for a reason that may pass, such as other commits or an unreachable catalog."""


class ReleaseRefused(LakehouseError):
    """The tables can't be released together. Readers keep the previous release."""


class NoSuchRelease(LakehouseError, LookupError):
    """A reader requested a release that is gone, or a table that it can't provide."""


class HandOffRefused(LakehouseError):
    """The table can't be handed off. Readers keep the previous version."""


class HandOffUnfinished(LakehouseError):
    """A hand-off failed temporarily. A re-execution from failure continues it."""


class MaintenanceRefused(LakehouseError):
    """A table can't be maintained. Nothing was changed."""


class MaintenanceContended(LakehouseError):
    """Each attempt to commit maintenance failed temporarily; the next run tries again."""


class UnknownStorage(LakehouseError, ValueError):
    """A location is neither a path on this machine nor on S3."""


class StorageRefused(LakehouseError):
    """The storage refused a request of the collector. The collector's ledger lists what it did before."""


class UnknownPartitions(LakehouseError, ValueError):
    """The table lacks the requested partition keys."""


class ForeignVersion(LakehouseError):
    """A durable record has a version that this code can't read and must not ignore."""


class UnreadableMetadata(LakehouseError):
    """A table's metadata file is torn or foreign."""


class SourceLost(LakehouseError):
    """A source lost rows that its table has not read, or was replaced. A person must decide."""


class SourceUnreachable(LakehouseError):
    """A source does not answer or is not configured; it may later."""


class SourceRefused(LakehouseError):
    """A source's database forbids a write. Nothing was written."""


class BadValue(LakehouseError, ValueError):
    """A source's value can't be read as its column's type."""


class TooMuchHot(LakehouseError):
    """A source has more rows that are not moved yet (hot) than a reader accepts."""
