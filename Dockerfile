# One image for everything that runs this code: the code location's server, its runs, and the workers on ECS; with
# deploy/ Dagster's webserver and daemon as well.

# Debian 12: its own Python is 3.11 and comes without pip, its own Java is 17, which wants a place for manual pages that
# the slim image leaves out.
FROM debian:bookworm-slim AS runtime
ARG DEBIAN_FRONTEND=noninteractive
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates openjdk-17-jre-headless python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/*.log

# Python's packages, as uv.lock has them; what installs them stays behind.
FROM runtime AS packages
ARG UV_VERSION=0.13.9
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir uv==${UV_VERSION}
WORKDIR /opt/lakehouse
COPY pyproject.toml uv.lock ./
ENV UV_PROJECT_ENVIRONMENT=/opt/lakehouse/venv UV_PYTHON=/usr/bin/python3 UV_LINK_MODE=copy
# Without the project: its code is a layer of its own, so that a changed step sends kilobytes.
RUN --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv sync --locked --no-dev --extra production --extra demo --no-install-project --compile-bytecode \
    && rm venv/.lock

FROM runtime
RUN groupadd --gid 10001 lakehouse \
    && useradd --uid 10001 --gid lakehouse --create-home --home-dir /var/lib/lakehouse --shell /usr/sbin/nologin lakehouse
WORKDIR /opt/lakehouse
COPY --from=packages /opt/lakehouse/venv venv
# Dagster stores a run's events in batches of that size: one by one, a run of many partitions takes minutes longer.
ENV PATH=/opt/lakehouse/venv/bin:$PATH \
    PYTHONPATH=/opt/lakehouse \
    PYTHONUNBUFFERED=1 \
    DAGSTER_EVENT_BATCH_SIZE=1000 \
    LAKEHOUSE_HOME=/var/lib/lakehouse \
    LAKEHOUSE_CACHE=/opt/lakehouse/cache
# Spark's jars and the class-data archive, from no more of the code than makes them. Here and not in a stage of their
# own: the archive holds for these very files, their paths and times.
COPY lakehouse_assets/__init__.py lakehouse_assets/errors.py lakehouse_assets/
COPY lakehouse_assets/cli lakehouse_assets/cli
COPY lakehouse_assets/environment lakehouse_assets/environment
COPY lakehouse_assets/worker lakehouse_assets/worker
RUN python -B -m lakehouse_assets.cli setup \
    && ls cache/archives/*.jsa \
    && rm -rf /tmp/* /var/lib/lakehouse/tmp
COPY deploy deploy
COPY lakehouse_assets lakehouse_assets
COPY resources resources
# Readable whatever the umask of the checkout, and compiled: nobody can write here later.
RUN chmod -R u=rwX,go=rX deploy lakehouse_assets resources \
    && python -m compileall -q lakehouse_assets resources

USER 10001:10001
# Dagster's commands make their temporary home where they are started.
WORKDIR /var/lib/lakehouse
EXPOSE 4000
# A process that is a container's first ignores SIGTERM unless it handles it: ECS would kill it 30 seconds later.
ENTRYPOINT ["/usr/bin/tini", "-g", "--"]
# The code location. A run is given its command by the run launcher, a worker is `python -m lakehouse_assets.worker`.
CMD ["dagster", "api", "grpc", "--host", "0.0.0.0", "--port", "4000", "--module-name", "lakehouse_assets.definitions"]
