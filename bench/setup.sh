#!/usr/bin/env bash
# Prints what a run runs on, one fact a line, tab between name and value: bash bench/setup.sh PATH/TO/headway COMMAND...
set -euo pipefail
headway=$1
shift
line() { printf '%s\t%s\n' "$1" "$2"; }
line date "$(date -u +%Y-%m-%d)"
line command "headway $*"
# Version and commit are the first line of the report; it ends with status 1 where something is missing.
line binary "$({ "$headway" doctor 2>/dev/null || true; } | head -n 1)"
line kernel "$(uname -sr | cut -d- -f1)"
line cpu "$(lscpu | sed -n 's/^Model name: *//p' | head -n 1), $(nproc) CPUs"
line numa "$(lscpu | sed -n 's/^NUMA node(s): *//p') nodes visible"
line hugepages "$(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo unknown)"
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id,clocks.sm,clocks.mem,clocks.max.sm,power.limit \
        --format=csv,noheader | while read -r gpu; do line gpu "$gpu"; done
    line links "$(nvidia-smi topo -m 2>/dev/null | sed -n 's/\x1b\[[0-9;]*m//g; s/[[:space:]]\+/ /g; /^GPU[0-9]/p' | paste -sd ';')"
fi
