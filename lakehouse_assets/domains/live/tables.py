"""The declarations of the tables of live: flights as they happen, from a topic and from a table of PostgreSQL.

Their rows are moved as they are, so that there are no steps.
"""

from __future__ import annotations

from datetime import timedelta

from lakehouse_assets import Append, KafkaTopic, Merge, PostgresTable, Rewrites, Table, column

OWNERS = ("team:flight-data",)
FLIGHT = (
    column("flight_date", "date", "Local day of the scheduled departure", required=True),
    column("carrier", "string", "Carrier's code", required=True),
    column("flight", "int", "Flight number", required=True),
    column("origin", "string", "Departure airport: EWR, JFK or LGA", required=True),
    column("sched_dep_time", "int", "Scheduled departure, local, as HHMM", required=True),
)
HAPPENED = (
    column("dest", "string", "Destination airport's FAA code"),
    column("delay", "int", "Minutes late; negative when early; null when cancelled"),
    column("happened_at", "timestamptz", "When it happened, in 2013"),
    column("sent_at", "timestamptz", "When the replay sent it"),
)

flight_events = Table(
    identifier="live.flight_events",
    description="Departures, arrivals, corrections and cancellations, each once, in the order in which they came.",
    columns=(
        *FLIGHT,
        column("kind", "string", "departure, arrival, correction or cancellation", required=True),
        *HAPPENED,
    ),
    source=KafkaTopic("flight-events", floor=20_000, latency=timedelta(minutes=2)),
    write_mode=Append(),
    partitioned_by=("flight_date",),
    owners=OWNERS,
    kinds=frozenset({"bronze"}),
)

flight_state = Table(
    identifier="live.flight_state",
    description="Each flight as it stands: what happened last.",
    columns=(
        *FLIGHT,
        column("status", "string", "departed, arrived or cancelled", required=True),
        *HAPPENED,
    ),
    source=PostgresTable("flight_state", floor=20_000, latency=timedelta(minutes=2), grace=timedelta(minutes=5)),
    write_mode=Merge([c.name for c in FLIGHT], delete_when="deleted", rewrites=Rewrites.MERGE_ON_READ),
    partitioned_by=("flight_date",),
    owners=OWNERS,
    kinds=frozenset({"silver"}),
)
