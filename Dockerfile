# syntax=docker/dockerfile:1
# An image whose command is `agilerl`.
#
#     docker build -t agilerl .
#     docker run --rm -v "$PWD/runs:/work/runs" --user "$(id -u):$(id -g)" agilerl train CartPole-v1
#
# Extras: --build-arg EXTRAS=box2d,render. A smaller torch, without CUDA: --build-arg PIP_EXTRA_INDEX_URL=URL, the index of
# its CPU wheels.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
# The compiler is for the C library and for extras without wheels; it stays in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev swig \
    && rm -rf /var/lib/apt/lists/*
ARG EXTRAS=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/agilerl
ENV PATH=/opt/agilerl/bin:$PATH
WORKDIR /src
# Dependencies first, with an empty package: this layer stays while only code changes.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir agilerl && touch agilerl/__init__.py \
    && pip install -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
    && pip uninstall -y agilerl && rm -r agilerl build ./*.egg-info
COPY setup.py MANIFEST.in ./
COPY agilerl agilerl
RUN pip install --no-deps . && agilerl doctor

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/agilerl /opt/agilerl
RUN useradd --uid 1000 --create-home agilerl && install -d -o agilerl -g agilerl /work /work/runs
ENV PATH=/opt/agilerl/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /work
ENTRYPOINT ["agilerl"]
CMD ["--help"]
