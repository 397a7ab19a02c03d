# Both programs' images: `docker build --target operator .` and `docker build --target policy-server .`
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --release -p operator -p policy-server && \
    cp target/release/operator target/release/policy-server /

FROM gcr.io/distroless/cc-debian12:nonroot AS operator
COPY --from=build /operator /operator
ENTRYPOINT ["/operator"]

FROM gcr.io/distroless/cc-debian12:nonroot AS policy-server
COPY --from=build /policy-server /policy-server
ENTRYPOINT ["/policy-server"]
