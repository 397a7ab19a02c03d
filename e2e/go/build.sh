#!/usr/bin/env bash
# Prints the folder with the programs of each tier in the arguments, and builds the programs that are not in the cache:
#
#   build.sh control-plane   etcd, kube-apiserver, kube-controller-manager, kubectl
#   build.sh registry        registry
#   build.sh node            kubelet, kube-proxy, kube-scheduler, helm, coredns, pod
#
# The cache is PROVISO_E2E_CACHE, else $XDG_CACHE_HOME/proviso-e2e, else ~/.cache/proviso-e2e. The name of a folder has a
# digest of all inputs: this file, the main packages, and go.mod and go.sum, which pin the dependencies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PROGRESS_SECONDS=15

say() { echo "$*" >&2; }
fail() { say "$*"; exit 1; }

# version MODULE: prints the version that go.mod requires.
version() {
	awk -v module="$1" '$1 == module && $2 ~ /^v/ { print $2; exit }' go.mod
}

# describe TIER: sets the component, the packages and the links of a tier. Each main package is built to a program of the same
# name. A link is `name:program`.
describe() {
	case $1 in
	control-plane)
		component=k8s.io/kubernetes
		packages=(kubernetes-control-plane)
		links=({etcd,kube-apiserver,kube-controller-manager,kubectl}:kubernetes-control-plane)
		;;
	registry)
		component=github.com/distribution/distribution/v3
		packages=(registry)
		links=()
		;;
	node)
		component=k8s.io/kubernetes
		packages=(kubernetes-node coredns pod)
		links=({kubelet,kube-proxy,kube-scheduler,helm}:kubernetes-node)
		;;
	*) fail "there is no tier $1: name control-plane, registry or node" ;;
	esac
}

digest() {
	{ uname -m; sha256sum build.sh go.mod go.sum "${packages[@]/%//main.go}"; } | sha256sum | head -c 12
}

# Fails if Go is missing or too old.
check_go() {
	local needed found remedy
	needed=$(awk '$1 == "go" { print $2; exit }' go.mod)
	remedy="Kubernetes is built from source for the tests: install Go ${needed%.*} or later (https://go.dev/doc/install), or set \
KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, or PROVISO_E2E_KUBECONFIG to use a cluster of yours"
	command -v go >/dev/null || fail "there is no \`go\` in PATH. $remedy"
	# Not in this folder: an older Go would read go.mod, and may download the version that go.mod requires.
	found=$(cd / && go env GOVERSION)
	at_least "$needed" "$found" && return
	# Go 1.21 and later downloads the version that go.mod requires, unless GOTOOLCHAIN is `local`.
	at_least 1.21 "$found" && [ "$(cd / && go env GOTOOLCHAIN)" != local ] && return
	fail "\`go\` is $found. $remedy"
}

# at_least VERSION GO: succeeds if GO, the output of `go env GOVERSION`, is VERSION or later.
at_least() {
	printf '%s\n' "$1" "${2##*go}" | sort -VC
}

# change MODULE FILE [SED...]: makes the build use a copy of MODULE. In the copy, FILE is changed by these arguments of sed, or
# missing without arguments. The other files of the copy are links to the original.
change() {
	local module=$1 file=$2 folder part
	shift 2
	local original copy=$sources/$module
	original=$(go list -m -f '{{.Dir}}' "$module")
	[ -d "$copy" ] || { mkdir -p "$copy" && ln -s "$original"/* "$copy"; }
	go mod edit -replace "$module=$copy" "$sources/go.mod"
	# The parent folders of the file must be real folders in the copy, not links.
	folder=$copy
	local from=$original
	while IFS= read -r part; do
		folder+=/$part from+=/$part
		[ -L "$folder" ] && rm "$folder" && mkdir "$folder" && ln -s "$from"/* "$folder"
	done < <(dirname "$file" | tr / '\n')
	rm "$copy/$file"
	[ $# = 0 ] || sed "$@" "$original/$file" >"$copy/$file"
}

# Leaves out code that the programs do not need, which takes 20 % of the build time of the control plane.
change_all() {
	go mod download k8s.io/kubernetes k8s.io/apiserver github.com/distribution/distribution/v3
	cp go.mod go.sum "$sources"
	# This comparison imports all of kubelet and the scheduler.
	change k8s.io/kubernetes pkg/controller/podgc/gc_controller.go \
		-e '/"k8s.io\/kubernetes\/pkg\/kubelet\/eviction"/d' \
		-e 's/eviction\.PodIsEvicted(\(o\[.\]\.Status\))/(\1.Phase == v1.PodFailed \&\& \1.Reason == "Evicted")/g'
	# These files import the fake client of all APIs, which is for tests.
	change k8s.io/kubernetes pkg/scheduler/backend/queue/testing.go
	change k8s.io/apiserver pkg/admission/plugin/policy/generic/policy_test_context.go
	# The exporters of traces.
	change github.com/distribution/distribution/v3 tracing/tracing.go \
		-e 's/"go.opentelemetry.io\/contrib\/exporters\/autoexport"/"io"/' \
		-e 's/autoexport\.NewSpanExporter(ctx)/stdouttrace.New(stdouttrace.WithWriter(io.Discard))/'
}

# Prints the linker flags that set the versions. Without them the API server has the version `v0.0.0-master`, which charts with
# a `kubeVersion` refuse.
linker_flags() {
	local kubernetes package minor
	kubernetes=$(version k8s.io/kubernetes)
	minor=${kubernetes#v*.} minor=${minor%%.*}
	printf -- '-s -w'
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		printf -- ' -X %s' "$package.gitVersion=$kubernetes" "$package.gitMajor=1" "$package.gitMinor=$minor" \
			"$package.gitTreeState=clean"
	done
	printf -- ' -X %s' "helm.sh/helm/v4/internal/version.version=$(version helm.sh/helm/v4)" \
		"github.com/distribution/distribution/v3/version.version=$(version github.com/distribution/distribution/v3)"
}

# progress TOTAL: reads the output of the build, which has a line for each compiled package, and the errors. Prints the progress
# at intervals, and keeps the last lines.
progress() {
	local printed=$SECONDS count=0 line
	while IFS= read -r line; do
		count=$((count + 1))
		echo "$line"
		if [ $((SECONDS - printed)) -ge $PROGRESS_SECONDS ]; then
			printed=$SECONDS
			say "building $tier: $count of at most $1 packages, $SECONDS s"
		fi
	done | tail -n 20 >"$unfinished.log"
}

# compile FOLDER: builds the programs of the tier into FOLDER.
compile() {
	local sources=$1.sources total
	# With -trimpath, the Go caches do not depend on the folder.
	export CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=readonly -buildvcs=false -trimpath"
	rm -rf "$sources" && mkdir "$sources"
	change_all
	total=$(go list -modfile="$sources/go.mod" -deps "${packages[@]/#/./}" | wc -l)
	# Compilers are short-lived, so they collect garbage only above 1 GiB.
	GOGC=off GOMEMLIMIT=1GiB go build -modfile="$sources/go.mod" -v -gcflags=all=-dwarf=false \
		-ldflags "$(linker_flags)" -o "$1/" "${packages[@]/#/./}" 2>&1 | progress "$total" || fail "building $tier failed:"$'\n'"$(<"$1.log")"
	rm -r "$sources" "$1.log"
}

# build FOLDER: builds the tier into a temporary folder and renames it, so that an interrupted build is not used. If several
# processes need the same tier, one builds it, and the others wait.
build() {
	local folder=$1 unfinished=$1.unfinished link
	mkdir -p "${folder%/*}"
	exec 9>"$folder.lock"
	flock -n 9 || { say "waiting for another process that builds $tier" && flock 9; }
	[ ! -d "$folder" ] || return 0
	check_go
	rm -rf "$unfinished" && mkdir "$unfinished"
	SECONDS=0
	say "building $tier (${component##*/} $(version "$component")) from source, once"
	local TIMEFORMAT="built $tier in %0R s; CPU time: %0U s, and %0S s in the kernel"
	time compile "$unfinished"
	for link in "${links[@]}"; do
		ln -s "${link#*:}" "$unfinished/${link%:*}"
	done
	mv -T "$unfinished" "$folder"
}

cache=${PROVISO_E2E_CACHE:-}
[ -n "$cache" ] || cache=${XDG_CACHE_HOME:+$XDG_CACHE_HOME/proviso-e2e}
[ -n "$cache" ] || cache=${HOME:+$HOME/.cache/proviso-e2e}
[ -n "$cache" ] || fail "set PROVISO_E2E_CACHE to a folder for the programs of Kubernetes: HOME is not set"
# A relative path is relative to the caller's folder.
[ "${cache#/}" != "$cache" ] || cache=$OLDPWD/$cache
for tier; do
	describe "$tier"
	folder=$cache/$tier-$(version "$component")-$(digest)
	[ -d "$folder" ] || build "$folder"
	echo "$folder"
done
