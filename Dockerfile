# The images of both programs: `docker build --target operator .` and `docker build --target policy-server .`
# The command line as a file: `docker build --target proviso --output . .`
# The debug information of all: `docker build --target debug --output . .`
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    make release && mkdir /cli /debug && cd target/dist && \
    cp operator policy-server / && cp *.debug /debug && cp -P proviso kubectl-proviso /cli

FROM scratch AS debug
COPY --from=build /debug /

FROM scratch AS proviso
COPY --from=build /cli /

FROM gcr.io/distroless/cc-debian12:nonroot AS operator
COPY --from=build /operator /operator
ENTRYPOINT ["/operator"]

FROM gcr.io/distroless/cc-debian12:nonroot AS policy-server
COPY --from=build /policy-server /policy-server
ENTRYPOINT ["/policy-server"]
