#!/usr/bin/env bash
# Runs the commands of the pages on a machine with a GPU and says which fail: smoke.sh HEADWAY [MINUTES]
#
# Needs bash, python3 with PyTorch, the NVIDIA driver with `nvidia-cuda-mps-control`, and the repository's folders `workloads` and
# `bench`. Nothing here is a measurement of time. What the commands print goes to $OUT (default: a new folder). Exit status 1 if one fails.
set -u
headway=$(realpath "$1")
root=$(realpath "$(dirname "$0")/..")
out=$(realpath "${OUT:-$(mktemp -d)}")
work=$(mktemp -d)
cp -r "$root/workloads" "$work/"
cd "$work" || exit 2
export HEADWAY_BROKER="$work/socket"
failed=0 number=0

# says PAGE COMMAND...: the command must succeed within two minutes
says() { answers "0" "$@"; }
# answers STATUSES PAGE COMMAND...: the command must end with one of these exit statuses
answers() {
    local statuses=$1 page=$2 status log; shift 2
    number=$((number + 1)) log=$out/smoke-$number.txt
    { echo "\$ $*"; timeout -k 5 "${LIMIT:-120}" "$@"; } >"$log" 2>&1 </dev/null
    status=$?
    case " $statuses " in
        *" $status "*) echo "ok      $page: $*" ;;
        *) failed=1; echo "FAILED  $page: $* (status $status)"; tail -n 12 "$log" | sed 's/^/        /' ;;
    esac
}
# prints WORDS: the last command must have printed them
prints() {
    grep -qe "$1" "$out/smoke-$number.txt" || { failed=1; echo "FAILED  the command above did not print \"$1\""; }
}

says README.md "$headway" doctor
answers "0 1" README.md "$headway" run workloads/encrypt.toml --duration "2 s" --out main
says docs/commands.md "$headway" replay main
says docs/commands.md "$headway" report main
says docs/first-workload.md "$headway" measure --quick --out node.toml
says docs/first-workload.md "$headway" plan workloads/encrypt.toml --machine node.toml
answers "0 1" docs/first-workload.md "$headway" run workloads/encrypt.toml --machine node.toml --duration "5 s" --out planned
says docs/commands.md "$headway" explain --bytes "1 GiB" --direction h2d --machine node.toml
answers "0 1" docs/commands.md "$headway" bench transfers --quick --machine node.toml --sizes "4 KiB,64 MiB" --out copies
answers "0 1" docs/commands.md "$headway" bench interconnect --batches 20 --repeats 2 --largest "16 MiB" --watch "1 s" --out links
answers "0 1" docs/commands.md "$headway" bench broker --quick --out arbitration

# Streams that begin or end on a GPU.
for steps in '{ copy = "host -> gpu" }' '{ copy = "gpu -> host" }' '{ copy = "host -> gpu" }, { compute = "spin" }'; do
    printf 'name = "part"\n[run]\nduration = "200 ms"\n[[stream]]\nid = "frames"\npacket = "4 KiB"\nperiod = "10 ms"\ndeadline = "4 ms"\nsteps = [%s]\n' "$steps" >part.toml
    answers "0 1" docs/first-workload.md "$headway" run part.toml --machine node.toml --out part
    prints "verified"
done

cat >copies.py <<'P'
import torch
a = torch.randn(64 << 20)
g = a.cuda()
b = g.cpu()
pinned = torch.empty(a.shape, pin_memory=True)
pinned.copy_(g, non_blocking=True)
small = [float(g[i]) for i in range(50)]
torch.cuda.synchronize()
assert torch.equal(a, b) and torch.equal(a, pinned) and small == a[:50].tolist()
print("the bytes are right")
P
for options in "" --fast --fast=always --yield --yield=4MiB --aside --aside=always "--fast --aside --yield=4MiB --verify --stats" \
    "--log copies.jsonl" --lint --hook=audit; do
    # shellcheck disable=SC2086
    says docs/exec.md "$headway" exec $options -- python3 copies.py
    prints "the bytes are right"
done
says docs/exec.md "$headway" report copies.jsonl

# broker OPTIONS...: starts a broker with an MPS daemon and waits until it listens
broker() {
    echo "\$ headway broker --mps $*" >broker.log
    "$headway" broker --mps "$@" 2>>broker.log &
    broker=$!
    for _ in $(seq 300); do grep -q "listening at" broker.log && return; kill -0 $broker 2>/dev/null || break; sleep 0.1; done
    failed=1; echo "FAILED  docs/mps.md: headway broker --mps $*"; sed 's/^/        /' broker.log
}
# ended SIGNAL FOLDER: ends the broker and demands that no daemon is left
ended() {
    local pid
    pid=$(cat "$2/nvidia-cuda-mps-control.pid" 2>/dev/null)
    kill "-$1" "$broker"; wait "$broker" 2>/dev/null
    for _ in $(seq 300); do
        [ -n "$pid" ] && grep -qs nvidia-cuda-mps "/proc/$pid/cmdline" || { echo "ok      docs/mps.md: the daemon ends with its broker (SIG$1)"; return; }
        sleep 0.1
    done
    failed=1; echo "FAILED  docs/mps.md: the daemon $pid outlives its broker (SIG$1)"
}
if command -v nvidia-cuda-mps-control >/dev/null; then
    ls -l "$(command -v nvidia-cuda-mps-control)" >"$out/mps.txt"
    broker
    says docs/mps.md "$headway" status
    prints "MPS       daemon"
    says docs/mps.md "$headway" doctor
    answers "0 1" docs/mps.md "$headway" run workloads/encrypt.toml --machine node.toml --duration "2 s" --out joined
    prints "joins the MPS daemon"
    says docs/mps.md "$headway" exec --share 90% -- python3 copies.py
    prints "the bytes are right"
    says docs/mps.md "$headway" exec --share 90% --memory 20GiB -- python3 copies.py
    ls -la "$HEADWAY_BROKER.mps" >>"$out/mps.txt"
    ended TERM "$HEADWAY_BROKER.mps"
    for socket in relative "$work/absolute"; do
        broker --socket "$socket"
        says docs/mps.md "$headway" status --socket "$socket"
        prints "MPS       daemon"
        says docs/mps.md "$headway" exec --socket "$socket" --share 50% -- python3 copies.py
        ended KILL "$socket.mps"
    done
    unset HEADWAY_BROKER
    broker
    says docs/mps.md "$headway" exec --share 90% -- python3 copies.py
    ended TERM "$(dirname "$(sed -n 's/.*listening at //p' broker.log)")/broker.mps"
else
    echo "skipped docs/mps.md: nvidia-cuda-mps-control is not in \$PATH"
fi
rm -rf "$work"
exit $failed
