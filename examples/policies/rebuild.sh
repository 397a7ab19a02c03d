#!/usr/bin/env bash
# Builds the example policies and puts the modules beside their sources, where the examples expect them.
#   rebuild.sh           builds and replaces the committed modules, and records the compiler in compiler.txt
#   rebuild.sh --check   builds and compares: byte by byte if the compiler is the recorded one; another compiler
#                        makes other bytes of the same source, so then it only says that they were not compared
# Needs the targets: rustup target add wasm32-unknown-unknown wasm32-wasip1. CARGO and RUSTC choose another
# toolchain. Policies in Rego are compiled by OPA, which Go builds from its source; OPA chooses another one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly policies=(safe-defaults trusted-registries)
# Those that are commands.
readonly commands=(approved-regions)
# Each with its entrypoint; the last one is of the policy server's tests.
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

# What runs the compiler does not show in the module; everything else that it says about itself may.
compiler=$("$rustc" -vV | grep -v '^host:')
for target in wasm32-unknown-unknown wasm32-wasip1; do
  if ! [ -d "$("$rustc" --print target-libdir --target "$target")" ]; then
    echo "rebuild.sh: this compiler lacks the target; install it by: rustup target add $target" >&2
    exit 1
  fi
done

# Panic messages hold the paths of sources. They must not tell where this machine keeps them.
"$cargo" fetch --quiet --locked
for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
  RUSTFLAGS="${RUSTFLAGS-} --remap-path-prefix=$sources=/registry"
done
RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$PWD=/policies"
# The linker leaves every call room for the largest index; without it a module is a tenth smaller.
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
    echo "$committed: builds, but not compared: it was built by $(head -1 compiler.txt), this is $(head -1 <<<"$compiler")"
  elif cmp "$built" "$committed"; then
    echo "$committed: as its source says"
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
    echo "$committed: as its source says"
  else
    differs=yes
  fi
done
if [ -n "$differs" ]; then
  echo "rebuild.sh: a committed module is not what its source builds to; run rebuild.sh and commit the result" >&2
  exit 1
fi
