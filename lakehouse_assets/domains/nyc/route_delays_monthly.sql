-- Counts and delays by month, route and carrier.
SELECT
  trunc(flight_date, 'month') AS month,
  origin,
  dest,
  carrier,
  count(*) AS flights,
  count_if(dep_time IS NULL) AS cancelled,
  count(arr_delay) AS arrived,
  avg(dep_delay) AS mean_dep_delay,
  avg(arr_delay) AS mean_arr_delay,
  percentile(arr_delay, 0.9) AS p90_arr_delay
-- Not nyc.flights_enriched: nothing joined is used, so a late weather reading redoes no month.
FROM lake.nyc.flights
-- The range lets Iceberg skip files; the window may lack some of its months.
WHERE flight_date >= :start_date AND flight_date < :end_date AND trunc(flight_date, 'month') IN (:keys)
GROUP BY ALL
