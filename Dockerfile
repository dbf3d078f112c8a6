# syntax=docker/dockerfile:1
# The programs of Claim2Source in a container, for a CPU or for an NVIDIA GPU:
#   docker build -t claim2source .
#   docker build -t claim2source:gpu --build-arg DEVICE=gpu .
# The folder of the host that you mount at /data is the current folder:
#   docker run --rm -v "$PWD:/data" claim2source index demo --out idx
#   docker run --rm -v "$PWD:/data" claim2source find "new study: masks cut outbreaks" --index idx
#   docker run --rm -v "$PWD:/data" --gpus all --shm-size 8g claim2source:gpu finetune --wandb.mode off

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY claim2source claim2source
COPY configs configs
COPY eval eval
COPY train train
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11-slim
ARG DEVICE=cpu
ARG EXTRAS=demo,index,serve,llm
# Triton compiles kernels on the GPU machine and needs a C compiler for it. Debian has only the
# newest version of a package, so none is named.
# hadolint ignore=DL3008
RUN case "$DEVICE" in \
      cpu) ;; \
      gpu) apt-get update \
        && apt-get install -y --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/* ;; \
      *) echo "DEVICE is cpu or gpu, not $DEVICE" >&2; exit 1 ;; \
    esac
# PyTorch's own index has a build without CUDA; PyPI has the one with it.
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ "$DEVICE" = cpu ]; then \
      pip install --index-url https://download.pytorch.org/whl/cpu "torch>=2.11,<2.14"; \
    fi
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install "$(echo /wheel/claim2source-*.whl)[$DEVICE,$EXTRAS]"
# Anyone may write here, so that `--user "$(id -u)"` works.
RUN mkdir -m 1777 /data /store
ENV CLAIM2SOURCE_STORE=/store HF_HOME=/store/huggingface HOME=/store
USER 1000
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["claim2source"]
CMD ["--help"]
