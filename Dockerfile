# pdserve for one engine, the head or a load balancer; the same image for all of them.
#
#   docker build -t pdserve .                     the default target, `cpu`
#   docker build -t pdserve --target cuda .       with Mooncake for CUDA
#
# PyPI's torch for Linux brings CUDA along; a smaller image for CPUs alone takes PyTorch's own index:
#
#   docker build -t pdserve --build-arg PIP_EXTRA_INDEX_URL=... --build-arg TORCH='torch==2.12.*+cpu' .
#
# BASE may be any Debian or Ubuntu with Python PYTHON_VERSION.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS base
ARG PYTHON_VERSION=3.12
# What NIXL and Mooncake link against, also where no RDMA device is.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libcurl4 libibverbs1 librdmacm1 libnuma1 \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -c "import sys; v = '%d.%d' % sys.version_info[:2]; sys.exit(v != '${PYTHON_VERSION}' and f'Python {v}')"
ENV PATH=/opt/pdserve/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1

FROM base AS build
ARG RAY_VERSION=2.60.0
ARG TORCH
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY pyproject.toml ./
# The largest first, in a layer that outlives changes of the code; torch as pyproject.toml allows it.
RUN python3 -m venv /opt/pdserve \
 && torch="$(sed -n 's/^ *"\(torch[^"]*\)",$/\1/p' pyproject.toml)" \
 && pip install --no-cache-dir "ray[default]==${RAY_VERSION}" "${TORCH:-$torch}"
# Nodes of one cluster must agree on Ray and Python: no later step may change the former.
COPY README.md ./
COPY bootstrap bootstrap
COPY kv_transfer kv_transfer
COPY engine engine
COPY prefill prefill
COPY decode decode
COPY cluster cluster
RUN pip install --no-cache-dir ".[traces]" "ray[default]==${RAY_VERSION}"

FROM build AS build-cuda
RUN pip install --no-cache-dir "mooncake-transfer-engine>=0.3.12"

FROM build AS build-cpu
RUN pip install --no-cache-dir "mooncake-transfer-engine-non-cuda>=0.3.12"

FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/pdserve /opt/pdserve
USER 10001:10001
WORKDIR /tmp
CMD ["pdserve", "--help"]

FROM base AS cpu
COPY --from=build-cpu /opt/pdserve /opt/pdserve
USER 10001:10001
WORKDIR /tmp
CMD ["pdserve", "--help"]
