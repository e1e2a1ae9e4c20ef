#!/bin/bash
# Check GPU nodes, then make a sweep whose runs are SLURM jobs of 1 GPU, 8 GPUs or 2 × 8 GPUs. On a login node:
#   bash gpu-slurm.sh 1 real-slurm.toml /shared/runs/easy      # or 8, or 2x8
# Not run on GPUs yet. The check covers each node by itself; NCCL between nodes is first used by the sweep.
set -euo pipefail
case ${1-} in
  1) nodes=1 gpus=1 ;;
  8) nodes=1 gpus=8 ;;
  2x8) nodes=2 gpus=8 ;;
  *) echo "usage: bash gpu-slurm.sh 1|8|2x8 SWEEP.toml DIRECTORY" >&2; exit 2 ;;
esac
sweep=$2 out=$3
source ~/isolaw/.venv/bin/activate

# One report for each node; a check that fails ends this script.
export REPORT=${out%/}-gpu-report
srun --nodes="$nodes" --ntasks-per-node=1 --gpus-per-node="$gpus" --cpus-per-task=16 --time=0:20:00 --kill-on-bad-exit=1 \
  bash -c 'isolaw doctor --gpu --out "$REPORT-$SLURM_NODEID.json"'

isolaw sweep "$sweep" --out "$out" --executor slurm --set executor.nodes="$nodes" --set executor.gpus="$gpus" \
  --set real.processes="$((nodes * gpus))"
