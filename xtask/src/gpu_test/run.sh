#!/usr/bin/env bash
# Runs every packed test program, the smoke test if it is packed, then `headway doctor`. Arguments go to the test programs, a filter for example.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
results="${OUT:-$here/results}"
mkdir -p "$results"
# Not every way of carrying files keeps this bit.
chmod +x "$here/headway" "$here"/tests/* 2>/dev/null

count=0
failed=()
run() { # name, command...
    local name="$1"
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$results/$name.txt"
    local status="${PIPESTATUS[0]}"
    count=$((count + 1))
    if [ "$status" -ne 0 ]; then
        echo "== $name: exit status $status"
        failed+=("$name")
    fi
}

for program in "$here"/tests/*; do
    # One at a time: they share the GPUs.
    [ -e "$program" ] || continue # a pack with the smoke test only
    run "$(basename "$program")" "$program" --nocapture --test-threads=1 "$@"
done
[ ! -e "$here/smoke.sh" ] || run smoke bash "$here/smoke.sh"
run doctor "$here/headway" doctor

skipped="$(cat "$results"/*.txt | grep -cE '(^|\.\.\. )skipped[ :]')"
if [ "$skipped" -gt 0 ]; then
    echo "$skipped tests were skipped; their reasons are above"
fi

if [ "${#failed[@]}" -gt 0 ]; then
    echo "${#failed[@]} of $count programs failed: ${failed[*]}"
    exit 1
fi
echo "all $count programs passed"
