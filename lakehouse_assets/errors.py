"""The errors that people see: each names the table, what was expected, what was found and what to do next.

They are handled elsewhere. A library's error is wrapped only where that adds such a text.
"""


class LakehouseError(Exception):
    """Base of all errors raised on purpose."""


class DeclarationError(LakehouseError, ValueError):
    """Tables are declared in a way that can't work; raised when the code location loads."""

    def __init__(self, *problems: str) -> None:
        """Joins the problems to one message. problems: a sentence each, with its table's name."""
        super().__init__("\n".join(["the declarations can't work:", *problems] if len(problems) > 1 else problems))


class PublishRefused(LakehouseError):
    """The staged work can't be published as it stands. Nothing was committed."""


class BadRunTag(LakehouseError, ValueError):
    """A tag of a run has a value that nothing stands for. Nothing was changed."""


class InputsMoved(PublishRefused):
    """Inputs that workers can only read as they are have changed since the run pinned them. Staging again may help."""


class HeadMoved(PublishRefused):
    """Others changed what the staged rows depend on in the table: they must be staged again, on the current table."""


class RolledBack(PublishRefused):
    """The run's snapshot exists but is not an ancestor of main: it was rolled back. A person must decide."""


class RollbackRefused(LakehouseError):
    """A table can't be rolled back as asked; nothing was changed."""


class PublishContended(LakehouseError):
    """Every attempt to commit failed for temporary reasons: other commits, a locked or unreachable catalog."""


class ReleaseRefused(LakehouseError):
    """The tables can't be released together as they stand. Readers go on with the release before."""


class NoSuchRelease(LakehouseError, LookupError):
    """A reader asked for a release that is not kept, or for a table that it can't give any more."""


class HandOffRefused(LakehouseError):
    """The table can't be handed off as it stands. Readers go on with the version before."""


class HandOffUnfinished(LakehouseError):
    """A hand-off stopped for reasons that may pass. What it wrote is kept: a re-execution from failure goes on."""


class MaintenanceRefused(LakehouseError):
    """A table can't be maintained as it stands. Nothing was changed."""


class MaintenanceContended(LakehouseError):
    """Every attempt to commit what maintenance did failed for temporary reasons; the next run tries again."""


class UnknownStorage(LakehouseError, ValueError):
    """A location lies in a kind of storage whose files can't be collected."""


class StorageRefused(LakehouseError):
    """The storage did not do what the collector asked of it. What the collector had done by then is in the ledger."""


class UnknownPartitions(LakehouseError, ValueError):
    """The table does not have the requested partition keys."""


class ForeignVersion(LakehouseError):
    """Something durable has a version that this code does not read, and ignoring it would do harm."""


class UnreadableMetadata(LakehouseError):
    """A file of a table's metadata is torn or foreign."""


class SourceLost(LakehouseError):
    """Rows of a source that its table has not read are gone, or the source is another one. A person must decide."""


class SourceUnreachable(LakehouseError):
    """A source does not answer, or is not configured; later it may."""


class SourceRefused(LakehouseError):
    """A rule of a source's database forbids what was to be written there. Nothing was written."""


class BadValue(LakehouseError, ValueError):
    """A value of a source can't be read as its column's type."""


class TooMuchHot(LakehouseError):
    """A source holds more rows that are not moved than a reader would take."""
