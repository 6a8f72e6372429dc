#!/usr/bin/env bash
# Runs every fuzz target of the main module for a short time, one after another:
# `go test -fuzz` takes one target of one package at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly fuzztime="${1:-10s}"
readonly go="${GO:-go}"

found=0
while IFS=: read -r file name; do
  found=$((found + 1))
  echo "fuzz: $name in $(dirname "$file") for $fuzztime"
  "$go" test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" "./$(dirname "$file")"
done < <(grep -rEo --include='*_test.go' --exclude-dir=hack '^func Fuzz[A-Za-z0-9_]+' . |
  sed -E 's#^\./##; s#:func #:#' | sort)

if ((found == 0)); then
  echo 'fuzz: no target found' >&2
  exit 1
fi
echo "fuzz: $found targets, nothing found"
