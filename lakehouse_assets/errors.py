"""The errors people meet: each names the table, what was expected, what was found and what to do next.
No handling here, and no error of a library wrapped without adding that."""


class LakehouseError(Exception):
    """Base of all errors raised on purpose."""


class DeclarationError(LakehouseError, ValueError):
    """A table's declaration can't work; raised when the code location loads."""


class PublishRefused(LakehouseError):
    """What was staged can't be published as it stands. Nothing was committed."""


class RolledBack(PublishRefused):
    """The run's snapshot exists but is no ancestor of main: somebody rolled the table back. A person decides."""


class PublishContended(LakehouseError):
    """Every attempt to commit failed for reasons that pass: other commits, a locked or unreachable catalog."""


class UnknownPartitions(LakehouseError, ValueError):
    """Partition keys were asked for that the table does not have."""


class PartitionRefused(LakehouseError, ValueError):
    """A partition key that was asked for can't be the name of a partition where the table's files lie."""


class ForeignVersion(LakehouseError):
    """Something durable was written in a version that this code does not read, and leaving it out would do harm."""
