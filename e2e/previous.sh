#!/usr/bin/env bash
# Builds the previous version of Proviso, if the cache does not have it, and prints its folder:
#
#   source/   the files of that version
#   bin/      the operator and the policy server of that version
#
# The commit is in `previous-version`: that of the last release, or until there is one, of an earlier state. The cache is
# PROVISO_E2E_CACHE, else $XDG_CACHE_HOME/proviso-e2e, else ~/.cache/proviso-e2e.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "$*" >&2; }

commit=$(<previous-version)
cache=${PROVISO_E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/proviso-e2e}
folder=$cache/previous-$(printf '%s\n' "$commit" "$(rustc -vV)" "$(sha256sum previous.sh)" | sha256sum | head -c 12)
mkdir -p "$cache"

# Another run may be building the same version.
exec 9>"$cache/previous.lock"
flock 9
if [ ! -d "$folder" ]; then
	if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
		say "the tests of updates need the previous version, and this copy of the repository does not have its commit $commit:" \
			"get the whole history with \`git fetch --unshallow\`"
		exit 1
	fi
	say "building the previous version, ${commit:0:12}"
	building=$(mktemp -d "$folder.XXXXXX")
	trap 'rm -rf "$building"' EXIT
	mkdir "$building/source" "$building/bin"
	git -C "$(git rev-parse --show-toplevel)" archive "$commit" | tar -x -C "$building/source"
	target=$(cargo metadata --locked --no-deps --format-version 1 | sed -E 's/.*"target_directory":"([^"]*)".*/\1/')
	# The two versions share the compiled dependencies in the build folder, but not the programs. A build of all programs unifies
	# the features of the dependencies as the builds of the tests do.
	(
		cd "$building/source"
		unset RUSTC_WORKSPACE_WRAPPER
		CARGO_BUILD_BUILD_DIR=$target CARGO_TARGET_DIR=$building/target cargo build --locked --workspace --bins >&2
	)
	cp "$building"/target/debug/{operator,policy-server} "$building/bin/"
	rm -rf "$building/target"
	# Other previous versions are not needed any more.
	find "$cache" -maxdepth 1 -name 'previous-*' ! -path "$building" -exec rm -rf {} +
	chmod 755 "$building"
	mv "$building" "$folder"
	trap - EXIT
fi
echo "$folder"
