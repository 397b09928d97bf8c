"""The declarations of the tables of nyc: their columns, partitions and dependencies, and when they are updated.

The rows are computed in steps.py.
"""

from __future__ import annotations

import warnings
from functools import partial

import dagster as dg

from lakehouse_assets import Arrivals, Column, Table, column, when_updated

OWNERS = ("team:flight-data",)
LANDING = dg.AssetKey(["nyc", "landing"])
STEPS = "lakehouse_assets.domains.nyc.steps"

DAYS = dg.DailyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")
MONTHS = dg.MonthlyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)  # allow_nonexistent…, needed because no day follows the last one
    # The local day D ends at 05:00 UTC of D+1 (04:00 in summer): its weather lies in two UTC days.
    TWO_UTC_DAYS = dg.TimeWindowPartitionMapping(end_offset=1, allow_nonexistent_upstream_partitions=True)

READINGS = (
    column("temp", "double", "Temperature, °F"),
    column("dewp", "double", "Dew point, °F"),
    column("humid", "double", "Relative humidity, percent"),
    column("wind_dir", "int", "Direction the wind comes from, degrees from north"),
    column("wind_speed", "double", "Wind speed, mph"),
    column("wind_gust", "double", "Speed of gusts, mph; null when there were none"),
    column("precip", "double", "Precipitation in the hour, inches"),
    column("pressure", "double", "Pressure at sea level, millibars"),
    column("visib", "double", "Visibility, miles"),
)
FLIGHT = (
    column("flight_date", "date", "Local day of the scheduled departure", required=True),
    column("year", "int", "Year of the scheduled departure, local", required=True),
    column("month", "int", "Month of the scheduled departure, local, 1 to 12", required=True),
    column("day", "int", "Day of the scheduled departure in its month, local", required=True),
    column("dep_time", "int", "Actual departure, local, as HHMM; null when cancelled"),
    column("sched_dep_time", "int", "Scheduled departure, local, as HHMM", required=True),
    column("dep_delay", "int", "Minutes the departure was late; negative when early; null when cancelled"),
    column("arr_time", "int", "Actual arrival, local, as HHMM; null when it did not arrive"),
    column("sched_arr_time", "int", "Scheduled arrival, local, as HHMM", required=True),
    column("arr_delay", "int", "Minutes the arrival was late; negative when early; null when cancelled or diverted"),
    column("carrier", "string", "Carrier's code, see nyc.airlines", required=True),
    column("flight", "int", "Flight number", required=True),
    column("tailnum", "string", "The plane's registration, see nyc.planes"),
    column("origin", "string", "Departure airport: EWR, JFK or LGA", required=True),
    column("dest", "string", "Destination airport's FAA code, see nyc.airports", required=True),
    column("air_time", "int", "Minutes in the air; null when cancelled or diverted"),
    column("distance", "int", "Miles between the airports", required=True),
    column("hour", "int", "Hour of sched_dep_time", required=True),
    column("minute", "int", "Minute of sched_dep_time", required=True),
    column("scheduled_hour_at", "timestamptz", "The hour of the scheduled departure (time_hour)", required=True),
)
FLIGHT_KEY = ("flight_date", "carrier", "flight", "origin", "sched_dep_time")
# Bronze tables are read from the drop zone.
bronze = partial(Table, deps=(LANDING,), owners=OWNERS, kinds=frozenset({"bronze"}))


def _optional(prefix: str, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Returns the columns as the joined side of a left join gives them: none of them required."""
    return tuple(column(prefix + c.name, c.type, c.doc) for c in columns)


AIRLINE = (column("name", "string", "The carrier's name", required=True),)
AIRPORT = (
    column("name", "string", "The airport's name", required=True),
    column("lat", "double", "Latitude, degrees", required=True),
    column("lon", "double", "Longitude, degrees", required=True),
    column("alt", "int", "Altitude, feet", required=True),
    column("tz", "int", "Hours from UTC without daylight saving", required=True),
    column("dst", "string", "Daylight saving: A as in the US, N none, U unknown", required=True),
    column("tzone", "string", "IANA time zone"),
)
PLANE = (
    column("year", "int", "Year of manufacture"),
    column("type", "string", "Kind of plane", required=True),
    column("manufacturer", "string", "Manufacturer", required=True),
    column("model", "string", "Model", required=True),
    column("engines", "int", "Number of engines", required=True),
    column("seats", "int", "Number of seats", required=True),
    column("speed", "int", "Average cruising speed, mph"),
    column("engine", "string", "Kind of engine", required=True),
)

airlines = bronze(
    identifier="nyc.airlines",
    description="Carriers by their two-letter code.",
    columns=(column("carrier", "string", "Two-letter code", required=True), *AIRLINE),
    step=f"{STEPS}:airlines",
    arrivals=Arrivals("dimensions/airlines.csv.gz"),
    sorted_by=("carrier",),
    unique=("carrier",),
)

airports = bronze(
    identifier="nyc.airports",
    description="Airports of the United States by their FAA code. Four destinations (BQN, PSE, SJU, STT) are missing.",
    columns=(column("faa", "string", "FAA code", required=True), *AIRPORT),
    step=f"{STEPS}:airports",
    arrivals=Arrivals("dimensions/airports.csv.gz"),
    sorted_by=("faa",),
    unique=("faa",),
)

planes = bronze(
    identifier="nyc.planes",
    description="Planes by their registration. 721 of the registrations that flew are missing.",
    columns=(column("tailnum", "string", "Registration", required=True), *PLANE),
    step=f"{STEPS}:planes",
    arrivals=Arrivals("dimensions/planes.csv.gz"),
    sorted_by=("tailnum",),
    unique=("tailnum",),
)

weather = bronze(
    identifier="nyc.weather",
    description="Hourly weather at the three airports, by UTC day. Hours are missing; 2013-12-31 has none at all.",
    columns=(
        column("origin", "string", "Airport: EWR, JFK or LGA", required=True),
        column("year", "int", "Year, local", required=True),
        column("month", "int", "Month, local, 1 to 12", required=True),
        column("day", "int", "Day of the month, local", required=True),
        column("hour", "int", "Hour, local", required=True),
        *READINGS,
        column("observed_at", "timestamptz", "The hour of the reading (time_hour)", required=True),
    ),
    step=f"{STEPS}:weather",
    arrivals=Arrivals("weather/{observed_at}.csv.gz"),
    partitions=DAYS,
    partitioned_by=("day(observed_at)",),
    sorted_by=("origin", "observed_at"),
    unique=("origin", "observed_at"),
    allow_empty=True,
)

flights = bronze(
    identifier="nyc.flights",
    description="Flights that left New York City's airports, by the local day of their scheduled departure.",
    columns=FLIGHT,
    step=f"{STEPS}:flights",
    arrivals=Arrivals("flights/{flight_date}.csv.gz"),
    partitions=DAYS,
    partitioned_by=("flight_date",),
    sorted_by=("scheduled_hour_at", "carrier", "flight"),
    unique=FLIGHT_KEY,
)

flights_enriched = Table(
    identifier="nyc.flights_enriched",
    description=(
        "Every flight with the weather of its scheduled hour at its origin, its plane, its carrier's name and its "
        "destination. `observed_at` is null where there is no weather for that hour."
    ),
    columns=(
        *FLIGHT,
        column("observed_at", "timestamptz", "The hour of the weather; null where none was recorded"),
        *READINGS,
        *_optional("carrier_", AIRLINE),
        *_optional("dest_", AIRPORT),
        *_optional("plane_", PLANE),
    ),
    step=f"{STEPS}:flights_enriched",
    partitions=DAYS,
    partitioned_by=("flight_date",),
    sorted_by=("scheduled_hour_at", "carrier", "flight"),
    unique=FLIGHT_KEY,
    deps=(
        flights.key,
        dg.AssetDep(weather.key, partition_mapping=TWO_UTC_DAYS),
        planes.key,
        airlines.key,
        airports.key,
    ),
    automation=when_updated(flights.key, weather.key),
    owners=OWNERS,
    kinds=frozenset({"silver"}),
)

route_delays_monthly = Table(
    identifier="nyc.route_delays_monthly",
    description="Flights, cancellations and delays by month, route and carrier.",
    columns=(
        column("month", "date", "First day of the month", required=True),
        column("origin", "string", "Departure airport", required=True),
        column("dest", "string", "Destination airport", required=True),
        column("carrier", "string", "Carrier's code", required=True),
        column("flights", "long", "Scheduled flights", required=True),
        column("cancelled", "long", "Flights without a departure", required=True),
        column("arrived", "long", "Flights with an arrival delay: the weight of mean_arr_delay", required=True),
        column("mean_dep_delay", "double", "Mean departure delay, minutes, over the flights that departed"),
        column("mean_arr_delay", "double", "Mean arrival delay, minutes, over the flights that arrived"),
        column("p90_arr_delay", "double", "90th percentile of the arrival delay, minutes, exact, interpolated"),
    ),
    step="route_delays_monthly.sql",
    partitions=MONTHS,
    partitioned_by=("month(month)",),
    sorted_by=("origin", "dest", "carrier"),
    unique=("month", "origin", "dest", "carrier"),
    automation=when_updated(flights.key),
    owners=OWNERS,
    kinds=frozenset({"gold"}),
)
