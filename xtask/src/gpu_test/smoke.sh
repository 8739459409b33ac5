#!/usr/bin/env bash
# Runs on a GPU the commands that the packed pages show. Each failure names the page and the command.
# Needs bash, coreutils, awk, grep, sed and the driver. GUEST is the program behind `--` (default: `headway doctor`, which copies by every method).
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
headway="$here/headway"
GUEST="${GUEST:-$headway doctor}"
limit=240             # seconds of one command
starts=120            # half seconds until a broker serves
ends="${ENDS:-120}"   # half seconds until a daemon has ended
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
cd "$place" || exit 1
cp -r "$here/pages/workloads" .
head -c 100000 /dev/urandom > some.file

page=""
count=0
failures=0
fail() { # command, reason
    echo "smoke: docs/$page: \`$1\`: $2"
    failures=$((failures + 1))
}

# The commands in the `sh` blocks of the page, without comments.
commands() {
    sed -n '/^```sh$/,/^```$/p' "$here/pages/$page" | sed -nE 's/ +# .*//; s/^(target\/release\/)?(headway .*)/\2/p'
}

try() { # command as the page writes it
    local shown="$1" said status words
    # The emulated GPUs of the page stand for real ones; the guest of the page for one that is packed.
    local line="${shown/ --backend emu/}"
    [[ "$line" == *" -- "* ]] && line="${line%% -- *} -- $GUEST"
    eval "words=(${line#headway })"
    count=$((count + 1))
    echo "-- $shown"
    said="$(timeout -k 10 "$limit" "$headway" "${words[@]}" 2>&1 </dev/null)"
    status=$?
    # A plan may say no, a run may miss deadlines, and a benchmark a target: that is an answer, not an error.
    [ "$status" = 1 ] && [[ "${words[0]}" =~ ^(plan|run|bench)$ ]] && ! grep -q "^error:" <<< "$said" && return
    [ "$status" = 0 ] || fail "$shown" "exit status $status; it printed: $(tail -c 2000 <<< "$said")"
}

each() { # commands, one a line
    local line any=""
    while read -r line; do
        any=yes
        try "$line"
    done <<< "$1"
    [ "${#1}" -gt 0 ] && [ -n "$any" ] || fail "(none)" "the page shows no command"
}

runs() { # process
    [ -n "$(tr -d '\0' 2>/dev/null < "/proc/$1/cmdline")" ]
}

# The page in a broker's life: start, what the page does beside it, end by a signal.
under_mps() { # signal, socket or nothing
    local broker start signal="$1" socket="${2:-}" daemon="" left process try arguments=()
    unset HEADWAY_BROKER
    if [ -n "$socket" ]; then
        arguments=(--socket "$socket")
        export HEADWAY_BROKER="$socket"
    fi
    start="$(commands | sed -n 's/ *&$//p')"
    [ -n "$start" ] || { fail "(none)" "the page starts no broker"; return; }
    local shown="$start${socket:+ --socket $socket} (ended by SIG$signal)"
    echo "-- $shown"
    count=$((count + 1))
    # The words of the page, as in `try`.
    eval "broker=(${start#headway })"
    "$headway" "${broker[@]}" "${arguments[@]}" > broker.txt 2>&1 &
    local pid=$!
    for ((try = 0; try < starts; try++)); do
        daemon="$("$headway" status "${arguments[@]}" 2>/dev/null | sed -nE 's/^MPS +daemon ([0-9]+), in .*/\1/p')"
        [ -z "$daemon" ] && runs "$pid" || break
        sleep 0.5
    done
    if [ -z "$daemon" ]; then
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        fail "$shown" "it runs no daemon; it printed: $(tail -c 2000 broker.txt)"
        return
    fi
    each "$(commands | grep -v '&$'; echo headway status "${arguments[@]}"; echo headway doctor)"
    left="$daemon $(cat "/proc/$daemon/task/$daemon/children" 2>/dev/null)"
    kill "-$signal" "$pid"
    wait "$pid" 2>/dev/null
    for process in $left; do
        for ((try = 0; try < ends; try++)); do
            runs "$process" || break
            sleep 0.5
        done
        ! runs "$process" || fail "$shown" "process $process of the daemon is left over"
    done
}

page=commands.md
each "$(commands)"
page=exec.md
each "$(commands)"
# A row of the table of options is a mode. A share needs a broker: the page of MPS has it.
modes="$(sed -nE 's/^\| `(--[^`]*)`.*/\1/p' "$here/pages/$page" | grep -v '^--share' | awk '!seen[$0]++')"
for mode in fast aside yield stats log; do
    grep -q "^--$mode" <<< "$modes" || fail "headway exec --$mode" "the table of options does not have it"
done
each "$(sed 's/^--machine FILE/--machine node.toml/; s/FILE/copies.jsonl/; s/\[=[A-Z]*\]//; s/ N$/ 4/; s/^/headway exec /; s/$/ -- program/' <<< "$modes")"
page=mps.md
for signal in TERM KILL; do
    under_mps "$signal"
    under_mps "$signal" broker.socket
    under_mps "$signal" "$place/absolute.socket"
done

if [ "$failures" -gt 0 ]; then
    echo "smoke: $failures of $count commands failed"
    exit 1
fi
echo "smoke: all $count commands of the pages work"
