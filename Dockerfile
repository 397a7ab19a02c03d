# The images of both programs: `docker build --target operator .` and `docker build --target policy-server .`
# The command line as a file: `docker build --target proviso --output . .`
# The debug information of all: `docker build --target debug --output . .`
#
# A release pins both base images: --build-arg BUILD_IMAGE=rust:1.95-bookworm@sha256:… and RUNTIME_IMAGE=…@sha256:…
# `docker buildx imagetools inspect IMAGE` shows the digest of a tag.
ARG BUILD_IMAGE=rust:1.95-bookworm
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    make release && mkdir /cli /debug && cd target/dist && \
    cp operator policy-server / && cp *.debug /debug && cp -P proviso kubectl-proviso /cli

FROM scratch AS debug
COPY --from=build /debug /

FROM scratch AS proviso
COPY --from=build /cli /

FROM ${RUNTIME_IMAGE} AS operator
COPY --from=build /operator /operator
ENTRYPOINT ["/operator"]

FROM ${RUNTIME_IMAGE} AS policy-server
COPY --from=build /policy-server /policy-server
ENTRYPOINT ["/policy-server"]
