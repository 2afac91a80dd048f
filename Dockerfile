# Muster's images: coordinator, ps, worker, cli, ps-rdma, worker-cuda (tools/images.sh, docs/kubernetes_settings.md).
#
#   docker build --target ps --build-arg VERSION=$(cat VERSION) -t muster-ps:$(cat VERSION) .
#
# All but the last hold one program and the libraries that it loads: no shell, no package manager. They run as 65532 with a
# read-only root; what they write goes to volumes (the coordinator: /var/lib/muster) and /tmp.
# tools/images.sh --programs builds one stage alone, with the root of the image as the context (stage_of there).

# Debian 12. Without a registry: tools/images.sh --debootstrap.
ARG BASE=debian:12-slim
# What worker-cuda runs on: CUDA 13's cuBLAS, cuDNN and NCCL in the loader's path, /bin/sh, glibc of any age (its own comes along).
ARG CUDA_RUNTIME=nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04

# What the images' labels say.
ARG VERSION=unknown
ARG COMMIT=unknown

FROM ${BASE} AS build
WORKDIR /src
COPY . .
RUN tools/setup.sh && apt-get install -y --no-install-recommends libucx0 ibverbs-providers
# With CUDA where the base has the toolkit in /usr/local/cuda.
RUN bazel build //:coordinator //:ps //:worker //:muster
RUN tools/images.sh --roots bazel-bin /roots

FROM scratch AS coordinator
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="muster-coordinator" \
      org.opencontainers.image.description="Muster, a parameter-server system for training neural networks: the coordinator" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /roots/coordinator/ /
USER 65532:65532
EXPOSE 7070 9400 9410
VOLUME /var/lib/muster
ENTRYPOINT ["/usr/bin/muster-coordinator"]
CMD ["--state_dir=/var/lib/muster"]

FROM scratch AS ps
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="muster-ps" \
      org.opencontainers.image.description="Muster, a parameter-server system for training neural networks: a parameter server" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /roots/ps/ /
USER 65532:65532
EXPOSE 9401 9410 9500
ENTRYPOINT ["/usr/bin/muster-ps"]

FROM scratch AS ps-rdma
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="muster-ps-rdma" \
      org.opencontainers.image.description="Muster, a parameter-server system for training neural networks: a parameter server, with UCX for RDMA" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /roots/ps-rdma/ /
USER 65532:65532
EXPOSE 9401 9410 9500
ENTRYPOINT ["/usr/bin/muster-ps"]

FROM scratch AS worker
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="muster-worker" \
      org.opencontainers.image.description="Muster, a parameter-server system for training neural networks: a worker on CPUs" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /roots/worker/ /
USER 65532:65532
EXPOSE 9402 9410 9500
ENTRYPOINT ["/usr/bin/muster-worker"]

FROM scratch AS cli
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="muster-cli" \
      org.opencontainers.image.description="Muster, a parameter-server system for training neural networks: the muster command" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /roots/cli/ /
USER 65532:65532
ENTRYPOINT ["/usr/bin/muster"]

# The driver comes from the node (NVIDIA's container runtime), CUDA's libraries from the base.
FROM ${CUDA_RUNTIME} AS worker-cuda
ARG VERSION COMMIT
LABEL org.opencontainers.image.title="muster-worker-cuda" \
      org.opencontainers.image.description="Muster, a parameter-server system for training neural networks: a worker on GPUs" \
      org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /roots/worker-cuda/ /opt/muster/
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
EXPOSE 9402 9410 9500
ENTRYPOINT ["/opt/muster/muster-worker"]
