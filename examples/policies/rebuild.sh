#!/usr/bin/env bash
# Builds the example policies, and writes the modules next to their sources, where the examples expect them.
#   rebuild.sh           builds and replaces the committed modules, and records the compiler in compiler.txt
#   rebuild.sh --check   builds, and compares the modules byte by byte if the compiler is the recorded one; another
#                        compiler produces other bytes, so the script then prints that it did not compare
# Needs the targets: rustup target add wasm32-unknown-unknown wasm32-wasip1. CARGO and RUSTC choose another
# toolchain. OPA compiles the policies in Rego; Go builds OPA from source, unless OPA names an executable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly policies=(safe-defaults trusted-registries)
# The policies that are WASI commands.
readonly commands=(approved-regions)
# The policies in Rego, with their entrypoints. The last one is for the tests of the policy server.
readonly rego=(
  service-types:servicetypes/main required-probes:requiredprobes/violation
  ../../policy-server/tests/cluster/reading:reading/main
)
readonly opa_version=v1.22.2
readonly cargo=${CARGO:-cargo} rustc=${RUSTC:-rustc}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}

case ${1-} in
  '') check= ;;
  --check) check=yes ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

# The host of the compiler does not change the module; each other line of its version may.
compiler=$("$rustc" -vV | grep -v '^host:')
for target in wasm32-unknown-unknown wasm32-wasip1; do
  if ! [ -d "$("$rustc" --print target-libdir --target "$target")" ]; then
    echo "rebuild.sh: the compiler lacks the target $target; install it with: rustup target add $target" >&2
    exit 1
  fi
done

# Panic messages contain the paths of sources, which must not depend on this machine.
"$cargo" fetch --quiet --locked
for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
  RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$sources=/registry"
done
RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$PWD=/policies"
# By default the linker writes each function index in its longest encoding; the short encoding makes a module 10 % smaller.
export RUSTFLAGS="$RUSTFLAGS -C link-arg=--compress-relocations"

"$cargo" build --quiet --locked --release --target wasm32-unknown-unknown "${policies[@]/#/--package=}"
"$cargo" build --quiet --locked --release --target wasm32-wasip1 "${commands[@]/#/--package=}"

differs=
for policy in "${policies[@]}" "${commands[@]}"; do
  built=$CARGO_TARGET_DIR/wasm32-unknown-unknown/release/${policy//-/_}.wasm
  [ -e "$built" ] || built=$CARGO_TARGET_DIR/wasm32-wasip1/release/$policy.wasm
  committed=$policy/$policy.wasm
  if [ -z "$check" ]; then
    cp "$built" "$committed"
    echo "$committed: $(wc -c <"$committed" | tr -d ' ') bytes"
  elif [ "$compiler" != "$(cat compiler.txt)" ]; then
    echo "$committed: builds, not compared: it was built by $(head -1 compiler.txt), this is $(head -1 <<<"$compiler")"
  elif cmp "$built" "$committed"; then
    echo "$committed: matches its source"
  else
    differs=yes
  fi
done
if [ -z "$check" ]; then echo "$compiler" >compiler.txt; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
opa() {
  if [ -n "${OPA-}" ]; then "$OPA" "$@"; else go run "github.com/open-policy-agent/opa@$opa_version" "$@"; fi
}
for entry in "${rego[@]}"; do
  policy=${entry%%:*} entrypoint=${entry#*:}
  opa test "$policy"
  opa build -t wasm -e "$entrypoint" -o "$work/bundle.tar.gz" "$policy/policy.rego"
  tar -xzPOf "$work/bundle.tar.gz" /policy.wasm >"$work/policy.wasm"
  committed=$policy/${policy##*/}.wasm
  if [ -z "$check" ]; then
    install -m 755 "$work/policy.wasm" "$committed"
    echo "$committed: $(wc -c <"$committed" | tr -d ' ') bytes"
  elif cmp "$work/policy.wasm" "$committed"; then
    echo "$committed: matches its source"
  else
    differs=yes
  fi
done
if [ -n "$differs" ]; then
  echo "rebuild.sh: a committed module differs from the build of its source; run rebuild.sh and commit the result" >&2
  exit 1
fi
