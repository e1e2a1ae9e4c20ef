#!/bin/sh
# The main job with a real language model, without a GPU: sh examples/demo-real.sh DIR [--set SECTION.KEY=VALUE …]
# A tiny model half learns additions by supervision; GRPO (vLLM samples, DeepSpeed optimises) takes it from there
# with several n; then the law that these runs follow, and the allocation of a budget, COMPUTE=50000. The same command again continues where it stopped.
set -eu
out=${1:-demo-real}
[ $# -eq 0 ] || shift

run() { printf '\n$ %s\n' "$*"; "$@"; }

if [ ! -d "$out/base" ]; then
  run python examples/tiny_model.py "$out/unfinished"
  mv "$out/unfinished" "$out/base"
fi
run isolaw sweep examples/real-tiny.toml --out "$out/sweep" \
  --set "real.model=$out/base/model" --set "problems.set=$out/base/easy" "$@"
run isolaw status "$out/sweep"
run isolaw fit "$out/sweep" --out "$out/sweep/law.json"
run isolaw predict "$out/sweep/law.json" --compute "${COMPUTE:-5e4}"
run isolaw report "$out/sweep" -o "$out/report.html"
