#!/bin/sh
# Pages to look at: sh examples/pages.sh DIR
# Reports of a simulated sweep, of curves of Qwen2.5-7B (Tan et al.) and of a small real sweep.
set -eu
out=${1:-pages}

run() { printf '\n$ %s\n' "$*"; "$@"; }

run isolaw sweep examples/bandit-easy.toml --out "$out/demo"
run isolaw report "$out/demo" -o "$out/demo.html" --compute 6e6 --max-batch-rollouts 65536
run isolaw report examples/data/tan_rollout_n_base.csv --column n=rollout_n \
  --column "C=prompts_seen*rollout_n" --set B_p=512 --metric holdout_acc_raw -o "$out/qwen.html"
run isolaw report examples/data/real-arithmetic.parquet --where problem_set=hard -o "$out/real.html"
printf '\nOpen %s, %s and %s in a browser.\n' "$out/demo.html" "$out/qwen.html" "$out/real.html"
