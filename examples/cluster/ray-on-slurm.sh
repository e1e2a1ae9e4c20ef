#!/bin/bash
# A Ray cluster in a SLURM allocation, and a sweep on it:
#   sbatch ray-on-slurm.sh real-ray.toml runs/easy
#SBATCH --job-name=isolaw-ray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=1-00:00:00
set -euo pipefail
source ~/isolaw/.venv/bin/activate
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}'):6379
export RAY_USAGE_STATS_ENABLED=0

# Ray's processes on every machine: the first one leads.
srun --overlap --kill-on-bad-exit=1 bash -c '
  if [ "$SLURM_NODEID" = 0 ]; then
    exec ray start --head --port=6379 --include-dashboard=false --num-cpus="$SLURM_CPUS_PER_TASK" --block
  fi
  sleep 15
  exec ray start --address='"$address"' --num-cpus="$SLURM_CPUS_PER_TASK" --block' &
until ray status --address="$address" >/dev/null 2>&1; do sleep 2; done

isolaw sweep "$1" --out "$2" --executor ray --set executor.address="$address"
