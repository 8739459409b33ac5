#!/usr/bin/env bash
# Runs unmodified programs plain and as guests, and compares bytes, output and the way they end: roads.sh HEADWAY
#
# roads.py (PyTorch, CuPy, Numba, JAX, Triton, ...), roads.cu in four builds, and the hostile programs of headway-preload's tests, on the
# machine's own driver. Different programs run at the same time: nothing here is a measurement of time. Each guest runs with
# everything on, and C programs also with every small copy by a kernel and large ones in pieces of 64 KiB. Prints a table and, in $OUT/roads.jsonl, one line of JSON for each comparison.
# Programs whose two plain runs already differ are `undefined`. PARALLEL programs run at a time, each for at most LIMIT seconds.
set -u
headway=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
out=${OUT:-$(mktemp -d)}
work=$(mktemp -d)
export headway here out work LIMIT=${LIMIT:-60}
export XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=3
ALL="--fast --aside --yield=4MiB --verify --stats"
export ALL

# run NAME HOW COMMAND...: leaves what the program printed and how it ended in $work/NAME.HOW.*
run() {
    local name=$1 how=$2 options; shift 2
    case $how in
        plain*) options= ;;
        all) options=$ALL ;;
        fast) options="--fast --yield=never" ;;
        always) options="--fast --aside=always --yield=64KiB" ;;
        pin) options="--fast=always --pin-once=1GiB --yield=never --stats" ;;
        audit) options="--hook=audit --fast --stats" ;;
    esac
    # shellcheck disable=SC2086
    if [ -n "$options" ]; then set -- "$headway" exec $options -- "$@"; fi
    { (cd "$work" && timeout -k 5 "$LIMIT" "$@") >"$work/$name.$how.out" 2>"$work/$name.$how.err" </dev/null; } 2>/dev/null
    echo "$?" >"$work/$name.$how.rc"
}
same() { cmp -s "$work/$1.$2.out" "$work/$1.$3.out" && cmp -s "$work/$1.$2.rc" "$work/$1.$3.rc"; }
# compare NAME HOWS COMMAND...: one line of JSON for each way
compare() {
    local name=$1 hows=$2 how verdict wrong seen; shift 2
    run "$name" plain "$@"
    for how in $hows; do
        run "$name" "$how" "$@"
        wrong=$(grep -c 'headway: WRONG' "$work/$name.$how.err")
        seen=$(awk '/ copies +[0-9]+ bytes/ { for (i = 1; i <= NF; i++) if ($i == "copies") sum += $(i - 1) } END { print sum + 0 }' "$work/$name.$how.err")
        fast=$(awk '/by several threads|kept page-locked:|made by a kernel|pieces of bulk/ { sum += $1 } END { print sum + 0 }' "$work/$name.$how.err")
        verdict=equal
        if [ "$(cat "$work/$name.plain.rc")" = 77 ]; then verdict=skipped
        elif [ "$wrong" != 0 ]; then verdict=WRONG
        elif ! same "$name" plain "$how"; then
            run "$name" plain2 "$@"
            if same "$name" plain plain2; then verdict=DIFFERENT; else verdict=undefined; fi
        fi
        if [ "$verdict" = DIFFERENT ]; then
            { echo "== $name $how"; diff "$work/$name.plain.out" "$work/$name.$how.out"; tail -n 5 "$work/$name.$how.err"; } >>"$out/roads-differences.txt"
        fi
        printf '{"program": "%s", "guest": "%s", "verdict": "%s", "ended": [%s, %s], "copies_seen": %s, "made_by_headway": %s, "wrong": %s}\n' \
            "$name" "$how" "$verdict" "$(cat "$work/$name.plain.rc")" "$(cat "$work/$name.$how.rc")" "$seen" "$fast" "$wrong"
    done
}
export -f run same compare

cd "$work" || exit 2
hostile=$here/../../crates/headway-preload/tests/hostile/hostile.c
gcc -std=gnu11 -O1 -o hostile "$hostile" -ldl -lpthread || exit 2
if command -v nvcc >/dev/null; then
    for build in "static -cudart static" "shared -cudart shared" "static-per-thread -cudart static --default-stream per-thread" \
        "shared-per-thread -cudart shared --default-stream per-thread"; do
        # shellcheck disable=SC2086
        { read -r name options <<<"$build"; nvcc -O2 -arch=native $options -o "roads-$name" "$here/roads.cu" >"nvcc-$name.txt" 2>&1; } &
    done
    wait
fi
{
    python3 "$here/roads.py" --list | while read -r case; do echo "compare $case all python3 $here/roads.py $case"; done
    for name in static shared static-per-thread shared-per-thread; do
        [ ! -x "roads-$name" ] || echo "compare nvcc-$name 'all always' ./roads-$name"
    done
    ./hostile --list | while read -r case; do
        hows="all always"
        case $case in
            registered-half | captured* | null) hows="all always fast" ;;
            again-*) hows="all pin" ;;
            overwritten | fork | vfork | beside) if "$headway" exec --help 2>/dev/null | grep -q -- --hook; then hows="$hows audit"; fi ;;
        esac
        echo "compare hostile-$case '$hows' ./hostile $case"
    done
} | xargs -d '\n' -P "${PARALLEL:-6}" -I{} bash -c '{}' >"$out/roads.jsonl"
sort -o "$out/roads.jsonl" "$out/roads.jsonl"

printf '%-34s %-7s %-10s %-12s %8s %8s\n' program guest verdict 'ended' copies headway
sed -E 's/[{}"\[]//g; s/\]//g; s/[a-z_]+: //g' "$out/roads.jsonl" |
    awk -F', ' '{ printf "%-34s %-7s %-10s %-12s %8s %8s\n", $1, $2, $3, $4 "/" $5, $6, $7 }'
echo
for verdict in equal skipped undefined DIFFERENT WRONG; do printf '%s: %s\n' "$verdict" "$(grep -c "\"$verdict\"" "$out/roads.jsonl")"; done
[ ! -e "$out/roads-differences.txt" ] || { echo; head -n 150 "$out/roads-differences.txt"; }
! grep -q -E '"(DIFFERENT|WRONG)"' "$out/roads.jsonl"
