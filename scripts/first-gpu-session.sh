#!/bin/bash
# The first half hour on a GPU machine, in the order in which it tells most: `make gpu-session` sets up and starts it.
#   bash scripts/first-gpu-session.sh docs/gpu          # cpu as a second argument tries the script itself
# Every step leaves its output in the folder, and none stops the next. Exit status 1 if any step failed.
set -uo pipefail
out=${1:-docs/gpu} device=${2:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
: >"$out/steps.txt"
failed=0

step() { # NAME COMMAND…: its output in NAME.txt, how it ended in steps.txt
  local name=$1 began=$SECONDS status=0
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" 2>&1 | tee "$out/$name.txt" || status=1
  printf '%-20s %s, %d s\n' "$name" "$([ $status = 0 ] && echo done || echo FAILED)" $((SECONDS - began)) | tee -a "$out/steps.txt"
  [ $status = 0 ] || failed=1
}

versions() {
  git rev-parse HEAD
  nvidia-smi || echo "no nvidia-smi"
  python -m pip freeze
}

# A few minutes of GRPO on the tiny model; further arguments are the sweep's.
sweep() { # NAME …
  local name=$1
  shift
  isolaw sweep examples/real-tiny.toml --out "$work/$name" --set "real.model=$work/base/model" \
    --set "problems.set=$work/base/easy" --set "grid.rollouts_per_problem=[4, 16]" --set sweep.compute=4096 \
    --set executor.jobs=1 "$@"
}

killed() { # what kill -9 leaves is continued, by the same command
  setsid bash -c "$(declare -f sweep); work=$work; sweep killed --set sweep.compute=12288" &
  local engine=$!
  until [ "$(cat "$work"/killed/runs/*/points.jsonl 2>/dev/null | wc -l)" -ge 4 ]; do
    kill -0 "$engine" 2>/dev/null || { echo "the sweep ended before it could be killed"; return 1; }
    sleep 0.2
  done
  kill -KILL -- "-$engine"
  wait "$engine"
  sweep killed --set sweep.compute=12288 && isolaw status "$work/killed"
}

step versions versions
step doctor isolaw doctor --gpu --device "$device" --out "$out/isolaw-gpu-report.json"
step test-gpu python -m pytest -n 0 -m gpu -v -rP    # out of memory is one of these tests; -rP prints what they measured
step tiny-model python examples/tiny_model.py "$work/base"
step sweep-transformers sweep transformers --set real.sampler=transformers
step sweep-vllm sweep vllm --set real.sampler=vllm
step kill-and-resume killed

printf '\n'
cat "$out/steps.txt"
exit $failed
