#!/usr/bin/env bash
# One part of the release run, on the GPU machine: run.sh PART OUT [PIECE...]
#
# PART is `one` (copies and deadlines), `two` (programs, Python), `three` (papers) or `two-gpus`. Each leaves OUT/PART.tar.gz, which
# `cargo xtask release-run keep` reads, and OUT/PART-failed.txt with each piece that did not end as it should. A part that runs again with the same OUT
# makes only the pieces that are missing or failed; PIECEs are made again in any case, and nothing else. A part ends after LIMIT seconds (default 560);
# BACKEND=emu tries the commands without a GPU. Needs bash, coreutils and the driver, and Python with PyTorch, for part two also CuPy and JAX.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
part="$1"
mkdir -p "$2" && out="$(cd "$2" && pwd)" || exit 2
shift 2
wanted=" $* "
limit="${LIMIT:-560}"
backend="${BACKEND:-cuda}"
headway="$here/headway" lab="$here/headway-lab" bench="$here/bench" job="$here/workloads/encrypt.toml"
# Not every way of carrying files keeps this bit.
chmod +x "$headway" "$lab" 2>/dev/null

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
export COLUMNS=140 OUT="$work/errors" XDG_CACHE_HOME="$work/cache" PYTHONPATH="$work/site" PYTHONDONTWRITEBYTECODE=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=3
mkdir -p errors site cache
for wheel in "$here"/*.whl; do
    [ ! -e "$wheel" ] || python3 -m zipfile -e "$wheel" site
done

setup() {
    bash "$bench/setup.sh" "$headway" "release-run $part"
    printf 'host\t%s\n' "$host"
    printf 'python\t%s\n' "$(python3 -c "$VERSIONS")"
}
VERSIONS='
import importlib.metadata, sys
found = {it.metadata["Name"]: it.version for it in importlib.metadata.distributions()}
names = [name for name in found if name in ("torch", "jax", "numpy", "safetensors") or name.startswith("cupy")]
print(", ".join([sys.version.split()[0], *sorted(f"{name} {found[name]}" for name in names)]))'
# Not the names of its GPUs, but a sign by which two parts of one host are known.
host="$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null | sort | md5sum | head -c 12)"
if [ -e "$out/$part.tar.gz" ]; then
    tar -xzf "$out/$part.tar.gz" || exit 2
    if ! grep -q "$host" setup.tsv; then
        echo "== $part: $out has figures of another host, use another folder" >&2
        exit 2
    fi
fi
touch pieces.tsv
setup >setup.tsv 2>errors/setup.txt

# Writes down what there is; a part may be ended at any time.
save() {
    # What can be made again, or was given up.
    find . \( -name '*.svg' -o -name page.html -o -name '*.perfetto-trace' -o -name sample.bin \) -delete
    rm -rf .*.partial* ./*/streams
    # A run names no folder of the machine that it was made on.
    grep -rlIF -e "$work" -e "$here" --exclude-dir=site --exclude-dir='cache*' . | while read -r file; do
        sed -i -e "s#$work/\?##g; s#$here/\?##g" "$file"
    done
    awk -F'\t' '$2 != "ok" { print $1 ": " $2 " after " $3 " s: " $4 }' pieces.tsv >"$out/$part-failed.txt"
    tar -czf "$out/.$part" --exclude=./site --exclude='./cache*' --exclude=./errors . && mv "$out/.$part" "$out/$part.tar.gz"
}

# piece NAME SECONDS STATUS COMMAND...: what it prints goes to NAME.out and NAME.err. STATUS is the greatest exit status that is an answer.
piece() {
    local name="$1" seconds="$2" answer="$3" began="$SECONDS" left=$((limit - SECONDS)) said=ok status
    shift 3
    if [ "$wanted" = "  " ]; then
        ! grep -q "^$name"$'\t'"ok"$'\t' pieces.tsv || return 0
    else
        [[ "$wanted" == *" $name "* ]] || return 0
    fi
    sed -i "/^$name\t/d" pieces.tsv
    if ((left < 15)); then
        said="left out, the part's time is over"
    else
        echo "== $part, $name ($SECONDS s)"
        timeout -s INT -k 20 "$((seconds < left ? seconds : left))" "$@" >"$name.out" 2>"$name.err" </dev/null
        status=$?
        ((status <= answer)) || said="exit status $status"
        [ "$status" != 124 ] || said="ended after $((SECONDS - began)) s"
        # A program that goes on without a case that failed.
        [ "$said" != ok ] || ! grep -qs -e '"error": ' -e '"left_out": ' "$name.out" "$name.jsonl" || said="some cases failed"
        tail -c 10000 "$name.err" >"$name.tail" && mv "$name.tail" "$name.err"
        [ -s "$name.err" ] || rm "$name.err"
    fi
    [ "$said" = ok ] || echo "== $name: $said; $(cat "$name.err" "$name.out" 2>/dev/null | tail -c 300)"
    printf '%s\t%s\t%s\t%s\n' "$name" "$said" "$((SECONDS - began))" "$*" >>pieces.tsv
    save
}

measure() { # number of GPUs, seconds, how long to watch for late threads
    # Other pieces need the file.
    [ -e machine.toml ] || [ "$wanted" = "  " ] || wanted+="measure "
    piece measure "$2" 0 "$headway" -q measure --backend "$backend" --quick --gpus "$1" --watch "$3" --force --out machine.toml
}

transfers() { # number of GPUs, seconds, more options
    local gpus="$1" seconds="$2"
    shift 2
    piece transfers "$seconds" 1 "$headway" -q bench transfers --backend "$backend" --gpus "$gpus" --machine machine.toml --out transfers "$@"
}

encrypt() { # number of GPUs, how long
    rm -rf encrypt
    piece encrypt 90 1 bash "$bench/record.sh" "$headway" encrypt run "$job" --backend "$backend" --machine machine.toml --gpus "$1" --duration "$2" --force
}

# An experiment of a paper.
experiment() { # name, seconds, more options
    local name="$1" seconds="$2"
    shift 2
    piece "$name" "$seconds" 1 env HEADWAY_CACHE=off "$lab" "$name" -q --backend "$backend" --out "$name" "$@"
}

case "$part" in
one)
    piece doctor 60 1 "$headway" -q doctor --watch "5 s"
    measure 1 150 "5 s"
    # Each size is measured twice: by each method, and by what `auto` chooses.
    transfers 1 220 --sizes "64 B,1 KiB,4 KiB,64 KiB,1 MiB,4 MiB,16 MiB,256 MiB,1 GiB"
    piece flows 120 1 "$headway" -q bench flows --backend "$backend" --machine machine.toml --duration "15 s" --format json --out flows
    encrypt 1 "20 s"
    piece cpu-classes 150 0 python3 "$bench/main_job.py" "$headway" classes --backend "$backend" --machine machine.toml --seconds 2
    piece neighbours 200 0 python3 "$bench/main_job.py" "$headway" neighbours --backend "$backend" --machine machine.toml --seconds 4
    piece shares 90 0 python3 "$bench/main_job.py" "$headway" shares --backend "$backend" --machine machine.toml
    ;;
two)
    for demo in swap_models offload_weights token_beside_offload checkpoint_stall; do
        rm -f "$demo.jsonl"
        piece "$demo" 110 0 python3 "$bench/demos/$demo.py" --quick --headway "$headway" --json "$demo.jsonl"
    done
    piece token-loops 150 0 env ONLY='^(idle plain|token (plain|--aside|--yield)|mebibyte .*|other process .*|ordinary (plain|--fast|--fast --aside))$' \
        bash "$bench/guests/token_loops.sh" "$headway" 1 1.5
    piece large-copies 200 0 env ONLY='^(all|0-3) (to|copy|cpu|asnumpy)$' bash "$bench/guests/large_copies.sh" "$headway" 1
    # The first program on a node, and then one that has what the first learnt.
    for how in plain first learnt; do
        command=(python3 "$bench/guests/first_second.py" --sizes 1,4,16,64,1024 --cases to,copy --seconds 0.3)
        [ "$how" = plain ] || command=(env XDG_CACHE_HOME="$work/cache-ordinary" "$headway" exec --fast -- "${command[@]}")
        piece "ordinary-$how" 60 0 "${command[@]}"
    done
    piece streams 130 0 python3 "$bench/guests/stream_copies.py" "$here/libheadway.so" --times 5
    piece arrays 120 0 python3 "$bench/python/array_copies.py" --rounds 5 --small 1000
    piece loads 90 0 python3 "$bench/python/load_weights.py" --quick --beside --only headway,safetensors --json loads.jsonl
    ;;
three)
    experiment who-waits 150
    experiment cho-queues 90
    experiment cho-bfs 100
    experiment cho-pathfinder 60
    experiment patil-table1 60
    experiment patil-table2 60
    experiment patil-batch 120
    experiment fujii 120
    ;;
two-gpus)
    # In 5 s hosts show a quarter of the lateness that a minute has.
    measure 2 200 "30 s"
    transfers 2 120 --sizes "256 MiB,1 GiB"
    encrypt 2 "10 s"
    piece parts 60 1 bash "$bench/record.sh" "$headway" parts run "$here/workloads/two-gpus.toml" --backend "$backend" --machine machine.toml --gpus 2 --duration "5 s" --force
    piece interconnect 120 1 "$lab" interconnect --backend "$backend" --machine machine.toml --gpus 2 --batches 100 --watch "2 s" --out interconnect
    # With cores of the CPU, planning alone takes a minute and more.
    experiment verner-aes 180 --gpus 2 --machine machine.toml --duration "10 s" --cores 0 --policies serial,combined,partitioned
    experiment gpusync-gpu 180 --gpus 2 --duration "400 ms" --repetitions 2
    ;;
*)
    echo "run.sh: there is no part \`$part\`; use one, two, three or two-gpus" >&2
    exit 2
    ;;
esac
save
echo "== $part took $SECONDS s; $out/$part.tar.gz; $(wc -l <"$out/$part-failed.txt") pieces failed"
cat "$out/$part-failed.txt"
