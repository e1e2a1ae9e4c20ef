#!/bin/bash
# Check this machine's GPUs, then make a sweep on the Ray cluster that it belongs to, runs of 1 GPU, 8 GPUs or
# 2 × 8 GPUs:
#   bash gpu-ray.sh 1 real-ray.toml /shared/runs/easy      # or 8, or 2x8
# Not run on GPUs yet. NCCL between machines is first used by the sweep. For Ray in a SLURM allocation: ray-on-slurm.sh.
set -euo pipefail
case ${1-} in
  1) nodes=1 gpus=1 ;;
  8) nodes=1 gpus=8 ;;
  2x8) nodes=2 gpus=8 ;;
  *) echo "usage: bash gpu-ray.sh 1|8|2x8 SWEEP.toml DIRECTORY" >&2; exit 2 ;;
esac
sweep=$2 out=$3
source ~/isolaw/.venv/bin/activate

isolaw doctor --gpu --out "${out%/}-gpu-report.json"

isolaw sweep "$sweep" --out "$out" --executor ray --set executor.address=auto --set executor.nodes="$nodes" \
  --set executor.gpus="$gpus" --set real.processes="$((nodes * gpus))"
