# The images of both programs: `docker build --target operator .` and `docker build --target policy-server .`
# The command line as a file: `docker build --target proviso --output . .`
# The debug information of all: `docker build --target debug --output . .`
#
# The base images are pinned by digest. `docker buildx imagetools inspect IMAGE:TAG` shows the digest of a newer image.
ARG BUILD_IMAGE=rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1
ARG RUNTIME_IMAGE=gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f

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
