#!/bin/bash
# The engine of a sweep as a small SLURM job of its own, which submits the runs' jobs and waits for them:
#   sbatch engine.sh real-slurm.toml runs/easy
# When its time is over SLURM puts it in the queue again; it finds the jobs that it had submitted.
#SBATCH --job-name=isolaw-engine
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --time=7-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
source ~/isolaw/.venv/bin/activate
exec isolaw sweep "$1" --out "$2"
