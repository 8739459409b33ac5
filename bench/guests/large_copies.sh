#!/usr/bin/env bash
# Runs large_copies.py plain and as a guest, by turns: large_copies.sh HEADWAY [ROUNDS]. One line of JSON a run. ONLY is a regular expression:
# only the runs whose CPUs ("all" or a list) and arguments it fits.
set -u
headway=$1 rounds=${2:-2}
here=$(dirname "$0")
one() { # how ("plain" or options of exec), CPUs ("all" or a list), arguments of the program
    local how=$1 cpus=$2; shift 2
    [[ "$cpus $*" =~ ${ONLY:-.} ]] || return 0
    local command=(python3 "$here/large_copies.py" "$@")
    # shellcheck disable=SC2086
    if [ "$how" != plain ]; then command=("$headway" exec $how --stats -- "${command[@]}"); fi
    [ "$cpus" = all ] || command=(taskset -c "$cpus" "${command[@]}")
    local line
    line=$("${command[@]}" 2>"${OUT:-/tmp}/guest-error.txt" | tail -n 1)
    [ -n "$line" ] || line="{\"case\": \"$*\", \"error\": \"$(tail -n 1 "${OUT:-/tmp}/guest-error.txt" | tr -d '"\\')\"}"
    echo "{\"exec\": \"$how\", \"cpus\": \"$cpus\", \"result\": $line}"
}
both() { for how in plain --fast; do one "$how" "$@"; done; }
for _ in $(seq "$rounds"); do
    for case in to copy cpu; do both all $case; done
    for case in to copy cpu; do both 0-3 $case; done
    for mib in ${SIZES:-1 2 4 8 16 32 64 256}; do
        for case in to copy cpu; do both all $case --bytes $((mib << 20)) --times 40; done
    done
    both all asnumpy
    both all device_get --bytes $((2 << 30)) --times 3
    both all save --bytes $((8 << 30)) --times 2
    both all load --bytes $((4 << 30)) --times 3
done
