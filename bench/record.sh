#!/usr/bin/env bash
# Runs `headway run` with the arguments given and adds the set-up it ran on, so that `cargo xtask keep-run` can keep both.
#
#   bash bench/record.sh PATH/TO/headway RESULTS run workloads/encrypt.toml --backend cuda --duration "20 s"
set -euo pipefail
headway=$1
results=$2
shift 2
line() { printf '%s\t%s\n' "$1" "$2"; }
setup=$(mktemp)
{
    line date "$(date -u +%Y-%m-%d)"
    line command "headway $*"
    line binary "$("$headway" --version)"
    line kernel "$(uname -sr | cut -d- -f1)"
    line cpu "$(lscpu | sed -n 's/^Model name: *//p' | head -n 1), $(nproc) CPUs"
    line numa "$(lscpu | sed -n 's/^NUMA node(s): *//p') nodes visible"
    line hugepages "$(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo unknown)"
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id,clocks.sm,clocks.mem,clocks.max.sm,power.limit \
            --format=csv,noheader | while read -r gpu; do line gpu "$gpu"; done
        line links "$(nvidia-smi topo -m 2>/dev/null | sed -n 's/\x1b\[[0-9;]*m//g; s/[[:space:]]\+/ /g; /^GPU[0-9]/p' | paste -sd ';')"
    fi
} >"$setup"
status=0
said=$(mktemp)
"$headway" "$@" --out "$results" >"$said" || status=$?
cat "$said"
if [ -d "$results" ]; then
    line 'exit status' "$status" >>"$setup"
    line bytes "$(sed -n 's/^verified *//p' "$said")" >>"$setup"
    mv "$setup" "$results/setup.tsv"
    gzip -9 -c "$results/run.jsonl" >"$results/run.jsonl.gz"
    # What a run reads and writes is large and can be made again; the log has all times.
    rm -rf "$results/streams" "$results/sample.bin" "$results/run.jsonl" "$results/trace.perfetto-trace"
fi
exit "$status"
