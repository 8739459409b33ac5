#!/usr/bin/env bash
# Runs token_loop.py plain and as a guest, by turns: token_loops.sh HEADWAY [ROUNDS] [SECONDS]. One line of JSON a run. ONLY is a regular expression:
# only the runs whose name and options it fits.
set -u
headway=$1 rounds=${2:-2} seconds=${3:-3}
here=$(dirname "$0")
one() { # name, options of exec ("plain" = without Headway), arguments of the loop
    local name=$1 options=$2; shift 2
    [[ "$name $options" =~ ${ONLY:-.} ]] || return 0
    local command=(python3 "$here/token_loop.py" --seconds "$seconds" "$@")
    # shellcheck disable=SC2086
    if [ "$options" != plain ]; then command=("$headway" exec $options -- "${command[@]}"); fi
    local line
    line=$("${command[@]}" 2>"${OUT:-/tmp}/guest-error.txt" | tail -n 1)
    [ -n "$line" ] || line="{\"error\": \"$(tail -n 1 "${OUT:-/tmp}/guest-error.txt" | tr -d '"\\')\"}"
    echo "{\"case\": \"$name\", \"exec\": \"$options\", \"result\": $line}"
}
for _ in $(seq "$rounds"); do
    one idle plain --idle
    one idle --aside --idle
    one token plain
    one token --aside
    one token "--aside=always"
    one token --yield
    one token --yield=2MiB
    one token "--aside --yield=8MiB"
    one mebibyte plain --small 1048576
    one mebibyte --aside --small 1048576
    one ordinary plain --ordinary
    one ordinary --fast --ordinary
    one ordinary "--fast --yield=never" --ordinary
    one ordinary "--fast --aside" --ordinary
    one "other process" plain --other-process
    one "other process" --aside --other-process
    one "no guest" plain --stranger
    one "no guest" --aside --stranger
    one "no guest" "--aside=always" --stranger
done
