# Needs BuildKit, the default since Docker 23 (before: DOCKER_BUILDKIT=1).

ARG GO_IMAGE=golang:1.26.8-alpine@sha256:ce864e7223ac17b1775e6fd0b4c0db580c2eb50e7953a427916379e4b92a1628
# BINARY selects the stage that provides the program: "build" compiles it, "prebuilt"
# copies it from the build context, where it is amd64/petstore or arm64/petstore:
#
#   docker build --build-arg BINARY=prebuilt --file Dockerfile DIRECTORY
#
# .ci/image does that with the program of a release, and .ci/docker on machines that cannot pull images.
ARG BINARY=build

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
# nomsgpack leaves out Gin's MessagePack support, which Petstore does not use.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -tags nomsgpack -trimpath -ldflags "-s -w -X main.release=$VERSION" -o /out/petstore ./cmd/petstore

FROM scratch AS prebuilt
ARG TARGETARCH
COPY ${TARGETARCH}/petstore /out/petstore

FROM ${BINARY} AS binary

FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="petstore" \
      org.opencontainers.image.description="An HTTP API for pets, categories, orders and inventory on PostgreSQL" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
# The program includes certificate authorities, which it uses where /etc/ssl/certs is missing.
COPY --from=binary /out/petstore /petstore
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/petstore"]
CMD ["serve"]
