#!/usr/bin/env bash
# Demonstrates a policy server: serves a copy of the quickstart, sends the example reviews to it, changes a policy while it
# serves, breaks the policy, and stops the server. Exits with 1 if a result differs from the expected one.
#
#   examples/demo.sh [path of policy-server]
#
# The default path is POLICY_SERVER, or else target/debug/policy-server. The server listens on the ports PORT (3000) and
# ADMIN_PORT (3001) of loopback. The script needs curl and the usual tools of a shell.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly server=${1:-${POLICY_SERVER:-$here/../target/debug/policy-server}}
readonly port=${PORT:-3000} admin_port=${ADMIN_PORT:-3001}
readonly url=http://127.0.0.1:$port admin_url=http://127.0.0.1:$admin_port
readonly wait_timeout=30 # the time limit of each wait in seconds

if [ -t 1 ]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' yellow=$'\e[33m' plain=$'\e[0m'
else
  bold='' dim='' red='' green='' yellow='' plain=''
fi
readonly bold dim red green yellow plain

title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
note() { printf '%s%s%s\n' "$dim" "$1" "$plain"; }

fail() {
  printf '%sdemo.sh: %s%s\n' "$red" "$1" "$plain" >&2
  if [ -s "$work/stderr" ]; then
    printf 'The last lines of the server'\''s log:\n' >&2
    tail -n 20 "$work/stderr" >&2
  fi
  exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/proviso-demo.XXXXXX")
readonly work
server_pid=
clean_up() {
  if [ -n "$server_pid" ]; then kill "$server_pid" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# wait_until WHAT COMMAND…: polls until the command succeeds. Fails if the server ends.
wait_until() {
  local what=$1 end=$((SECONDS + wait_timeout))
  shift
  until "$@"; do
    kill -0 "$server_pid" 2>/dev/null || fail "the server ended while waiting for $what"
    [ "$SECONDS" -lt "$end" ] || fail "no $what within $wait_timeout seconds"
    sleep 0.1
  done
}

# The readiness page has a line for every policy, also while the server is not ready.
readiness() { curl -s --max-time 5 "$admin_url/readyz?verbose" || true; }
is_ready() { curl -sf --max-time 5 -o /dev/null "$admin_url/readyz"; }
serves() { readiness | grep -qF -- "[+] $1 generation $2"; }
has_problem() { readiness | grep -F -- '[-]' | grep -qF -- "$1"; }
is_port_used() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# json_string FIELD: prints the first string field of this name in one line of JSON, without quotes.
json_string() {
  grep -oE "\"$1\":\"([^\"\\\\]|\\\\.)*\"" | head -n 1 | sed -E 's/^"[^"]*":"(.*)"$/\1/; s/\\"/"/g' || true
}

# decide REVIEW POLICY: sends a review as the API server would, or a raw request. Sets `verdict` (allowed, denied or mutated)
# and `message`.
decide() {
  local answer action=validate
  case $1 in raw-*) action=validate_raw ;; esac
  answer=$(curl -sS --max-time 10 -H 'Content-Type: application/json' --data-binary "@$here/reviews/$1.json" \
    "$url/$action/$2") || fail "no answer from $url/$action/$2"
  # The causes of a denial have their own messages, which are left out.
  message=$(sed -E 's/"causes":\[[^]]*\]//' <<<"$answer" | json_string message)
  case $answer in
    *'"allowed":true'*'"patch":"'* | *'"patch":"'*'"allowed":true'*) verdict=mutated ;;
    *'"allowed":true'*) verdict=allowed ;;
    *'"allowed":false'*) verdict=denied ;;
    *) fail "no verdict in the answer of $2 about $1: $answer" ;;
  esac
  if [ "$verdict" = mutated ]; then
    message="patches $(json_string patch <<<"$answer" | base64 -d | grep -oE '"path":"[^"]*"' |
      sed -E 's/"path":"(.*)"/\1/' | paste -sd ' ' -)"
  fi
}

# expect REVIEW POLICY VERDICT [TEXT]: prints a row of the table. Fails with another verdict, or without TEXT in the message.
expect() {
  local colour=$green
  decide "$1" "$2"
  case $verdict in denied) colour=$red ;; mutated) colour=$yellow ;; esac
  printf '%-29s %-30s %s%-8s%s %s\n' "$1" "$2" "$colour" "$verdict" "$plain" "$message"
  [ "$verdict" = "$3" ] || fail "the verdict of $2 about $1 should be \"$3\""
  case $message in *"${4-}"*) ;; *) fail "the message should say \"$4\"" ;; esac
}

# preview_of REVIEW EXPERIMENT: sets `preview` to the preview line about the review. Fails if there is none yet.
preview_of() {
  local uid
  uid=$(sed -nE 's/^    "uid": "(.*)",$/\1/p' "$here/reviews/$1.json" | head -n 1)
  preview=$(grep -F 'PolicyPreviewLog ' "$work/stdout" | grep -F -- "$2" | grep -F -- "$uid" | tail -n 1) &&
    [ -n "$preview" ]
}

# expect_preview REVIEW EXPERIMENT DIVERGENCE: waits for the preview line about the review, and prints it.
expect_preview() {
  wait_until "preview of $1 by $2" preview_of "$1" "$2"
  printf '%s\n' "$preview"
  case $preview in *"\"$3\""*) ;; *) fail "the preview of $1 by $2 should say $3" ;; esac
}

# edit FILE SED-EXPRESSION: replaces a manifest of the copy in one step, so that the server never reads a half-written file.
edit() {
  sed -E "$2" "$work/quickstart/$1" >"$work/edited"
  if cmp -s "$work/edited" "$work/quickstart/$1"; then fail "nothing in $1 matches $2"; fi
  diff "$work/quickstart/$1" "$work/edited" | grep '^[<>]' || true
  mv "$work/edited" "$work/quickstart/$1"
}

[ -x "$server" ] || fail "there is no policy-server at $server; build it (cargo build), or give its path as argument"
for each in "$port" "$admin_port"; do
  if is_port_used "$each"; then fail "port $each of 127.0.0.1 is in use; choose other ports with PORT and ADMIN_PORT"; fi
done

title 'Serving a copy of examples/quickstart'
cp -R "$here/quickstart" "$work/quickstart"
for module in "$here"/policies/*/*.wasm; do
  mkdir -p "$work/policies/$(basename "$(dirname "$module")")"
  cp "$module" "$work/policies/$(basename "$(dirname "$module")")/"
done
"$server" --manifests "$work/quickstart" --state-dir "$work/state" \
  --listen "127.0.0.1:$port" --admin-listen "127.0.0.1:$admin_port" >"$work/stdout" 2>"$work/stderr" &
server_pid=$!
wait_until 'readiness' is_ready
readiness

title 'Verdicts of the policies about the requests of examples/reviews'
printf '%s%-29s %-30s %-8s %s%s\n' "$dim" REVIEW POLICY VERDICT MESSAGE "$plain"
expect pod-create                   cluster.required-labels        allowed
expect pod-create                   cluster.trusted-registries     allowed
expect pod-create                   cluster.safe-defaults          mutated securityContext
expect pod-create                   cluster.production-images      allowed
expect pod-create                   cluster.team-pods              mutated labels/team
expect pod-create-large             cluster.team-pods              denied  'at most 4Gi'
expect pod-create-untrusted-image   cluster.required-labels        allowed
expect pod-create-untrusted-image   cluster.trusted-registries     denied  acme-tools/toolbox
expect pod-create-untrusted-image   cluster.production-images      denied  registry.example.com
expect deployment-create            cluster.required-labels        allowed
expect deployment-create            cluster.trusted-registries     allowed
expect deployment-create            cluster.safe-defaults          mutated
expect deployment-create            cluster.replica-limit          allowed
expect deployment-create            cluster.required-probes        allowed
expect deployment-create-unlabelled cluster.required-labels        denied  owner
expect deployment-create-unlabelled cluster.required-probes        denied  readinessProbe
expect deployment-update            cluster.required-labels        allowed
expect deployment-update            cluster.trusted-registries     allowed
expect deployment-update            cluster.safe-defaults          allowed
expect deployment-update            cluster.replica-limit          allowed
expect deployment-update            ns.payments.protected-objects  allowed
expect deployment-scale             cluster.replica-limit          denied  'more replicas'
expect deployment-delete            ns.payments.protected-objects  denied  protected
expect namespace-create             cluster.required-labels        allowed
expect namespace-delete             cluster.protected-namespaces   denied  'production namespace'
expect service-create               cluster.service-types          denied  LoadBalancer
expect raw-database                 cluster.approved-regions       denied  'not in us-1'

title 'Verdicts of the experiment required-labels-cost-center'
note 'The experiment denied no request: it was evaluated after the answers above.'
expect_preview pod-create                   required-labels-cost-center Same
expect_preview deployment-create            required-labels-cost-center NewlyDenied
expect_preview deployment-create-unlabelled required-labels-cost-center MessageDiffers

title 'Editing required-labels.yaml: one more label'
edit required-labels.yaml 's/labels: \[owner\]/labels: [owner, team]/'
wait_until 'generation 2 of required-labels' serves cluster.required-labels 2
readiness | grep -F -- cluster.required-labels
expect pod-create                   cluster.required-labels        denied  team

title 'Breaking required-labels.yaml with a typing error'
edit required-labels.yaml 's/dialect: Gatekeeper/dialect: Gatekeper/'
wait_until 'report of the broken manifest' has_problem required-labels
readiness | grep -F -- required-labels
note 'The last valid generation still answers:'
expect pod-create                   cluster.required-labels        denied  team
expect namespace-create             cluster.required-labels        denied  team

title 'Stopping the server with SIGTERM'
kill -TERM "$server_pid"
has_ended() { ! kill -0 "$server_pid" 2>/dev/null; }
end=$((SECONDS + wait_timeout))
until has_ended; do
  [ "$SECONDS" -lt "$end" ] || fail "the server still runs $wait_timeout seconds after SIGTERM"
  sleep 0.1
done
code=0
wait "$server_pid" || code=$?
server_pid=
echo "exit code $code"
[ "$code" -eq 0 ] || fail 'after SIGTERM the server should exit with 0'

printf '\n%sEverything was as expected.%s\n' "$green" "$plain"
