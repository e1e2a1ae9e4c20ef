#!/bin/sh
# The main job, from a sweep to an answer: sh examples/demo.sh DIR
# Simulated runs (a few seconds), the law they follow, and the allocation for a budget beyond them.
set -eu
out=${1:-demo}

run() { printf '\n$ %s\n' "$*"; "$@"; }

run isolaw sweep examples/bandit-easy.toml --out "$out"
run isolaw fit "$out" --out "$out/law.json" --figures "$out/figures"
run isolaw predict "$out/law.json" --compute 6e6 --max-batch-rollouts 65536
run isolaw report "$out" --out "$out/report.html" --max-batch-rollouts 65536
printf '\nLook at %s, a page with all of it, or at %s.\n' "$out/report.html" "$out/figures/law.png"
