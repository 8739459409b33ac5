#!/usr/bin/env bash
# Runs `headway run` with the arguments given and adds the set-up it ran on, so that `cargo xtask keep-run` can keep both.
#
#   bash bench/record.sh PATH/TO/headway RESULTS run workloads/encrypt.toml --backend cuda --duration "20 s"
set -euo pipefail
headway=$1
results=$2
shift 2
setup=$(mktemp)
bash "$(dirname "$0")/setup.sh" "$headway" "$@" >"$setup"
status=0
said=$(mktemp)
"$headway" "$@" --out "$results" >"$said" || status=$?
cat "$said"
if [ -d "$results" ]; then
    printf 'exit status\t%s\n' "$status" >>"$setup"
    printf 'bytes\t%s\n' "$(sed -n 's/^verified *//p' "$said")" >>"$setup"
    mv "$setup" "$results/setup.tsv"
    # A long log is compressed already.
    [ -f "$results/run.jsonl.gz" ] || gzip -9 -c "$results/run.jsonl" >"$results/run.jsonl.gz"
    # What a run reads and writes is large and can be made again; the log has all times.
    rm -rf "$results/streams" "$results/sample.bin" "$results/run.jsonl" "$results/trace.perfetto-trace"
fi
exit "$status"
