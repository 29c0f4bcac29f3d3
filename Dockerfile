# syntax=docker/dockerfile:1
# The program alone on distroless: no shell, no package manager, not root.
#
#   docker build -t troupe --build-arg VERSION=$(git describe --tags --always) .
#   docker buildx build --platform linux/amd64,linux/arm64 -t troupe .
#
# The stage that compiles runs on the builder's own platform and cross-compiles: nothing is emulated.
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=""
ARG TARGETOS
ARG TARGETARCH
# The empty folder becomes /models, whose owner a new volume takes over: the final stage has no mkdir.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/troupe ./cmd/troupe \
    && mkdir /out/models

FROM gcr.io/distroless/static-debian12:nonroot
ARG VERSION=""
LABEL org.opencontainers.image.title="Troupe" \
      org.opencontainers.image.description="An LLM serving runtime in which each request is an actor that measures itself" \
      org.opencontainers.image.source="https://github.com/troupe-llm/troupe" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /out/troupe /usr/bin/troupe
COPY --from=build /src/LICENSE /usr/share/doc/troupe/LICENSE
COPY --from=build --chown=65532:65532 /out/models /models
# Models that are fetched are kept here.
ENV HF_HOME=/models/huggingface \
    TROUPE_CACHE=/models/troupe
VOLUME ["/models"]
EXPOSE 8000
USER 65532:65532
# SIGTERM drains: requests in flight end, for up to --drain-timeout (30s), so stop the container with
# more patience than that: docker stop --time 40.
STOPSIGNAL SIGTERM
# Loading a model counts as starting, not as being unhealthy.
HEALTHCHECK --interval=10s --timeout=6s --start-period=10m --start-interval=1s --retries=3 \
    CMD ["/usr/bin/troupe", "health", "http://127.0.0.1:8000"]
ENTRYPOINT ["/usr/bin/troupe"]
# Arguments after the image's name replace these: docker run IMAGE serve MODEL --host=0.0.0.0.
CMD ["serve", "--host=0.0.0.0", "--enable-per-request-metrics"]
