#!/usr/bin/env bash
# Fuzzes the REST API of a standalone policy server: sends requests that its OpenAPI document allows, and requests that it does
# not allow. Fails on a status of 500 and above, on a status that the document does not have, and on a body of another schema.
#   api.sh POLICY_SERVER FOLDER [ARGUMENT…]
# FOLDER keeps the tool (schemathesis, from PyPI) for later runs; the arguments are for the tool, such as --max-examples 100.
# Needs Python 3.10 with venv.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here server=${1:?the policy server} folder=${2:?a folder}
shift 2

readonly tool=$folder/schemathesis-4.32.5
if ! [ -x "$tool/bin/schemathesis" ]; then
  python3 -m venv "$tool"
  "$tool/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
fi

work=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
cp -r "$here/../../examples/quickstart" "$work/manifests"
# The manifests name modules by relative paths.
(cd "$here/../../examples" && cp --parents policies/*/*.wasm "$work")
"$server" --manifests "$work/manifests" --state-dir "$work/state" --log-format json \
  --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 2>"$work/log" >/dev/null &
pid=$!
for _ in $(seq 300); do
  url=$(sed -n 's/.*"listen":"\([^"]*\)".*/\1/p' "$work/log" | head -1)
  [ -z "$url" ] || break
  kill -0 "$pid"
  sleep 0.1
done
# The check "positive data acceptance" is left out: the server also refuses valid requests, because of names, etags and programs.
checks=not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance
checks+=,response_schema_conformance,negative_data_rejection,unsupported_method,use_after_free
if ! "$tool/bin/schemathesis" run "$url/v1/openapi.json" --checks "$checks" --seed 1 --no-color "$@"; then
  echo "the last lines of the server's log:" >&2
  tail -20 "$work/log" >&2
  exit 1
fi
