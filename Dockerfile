# An image that runs pipelines and files of SQL, from the wheel that `make dist` built:
#
#   make dist && docker build -t zset-join .
#   docker run --rm zset-join demo
#   docker run --rm -v "$PWD:/work" zset-join run pipeline.sql --once --directory state
#
# For queries inside Spark: docker build --build-arg EXTRAS=sql,spark --build-arg PACKAGES=openjdk-17-jre-headless .
# The wheel brings its kernels compiled for the Python version it was built with; with another one they are compiled at first use.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm
ARG EXTRAS=sql,console
ARG PACKAGES=""
RUN if [ -n "$PACKAGES" ]; then \
        apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi
COPY dist/*.whl /tmp/dist/
RUN wheel="$(ls /tmp/dist/*.whl)" && pip install --no-cache-dir "${wheel}[${EXTRAS}]" && rm -rf /tmp/dist
RUN useradd --create-home zset
USER zset
WORKDIR /work
RUN zset-join --version
ENTRYPOINT ["zset-join"]
CMD ["doctor"]
