#!/bin/bash
# Start Ray on every machine of a run's SLURM job, run a command that uses it (veRL, OpenRLHF, SkyRL), and stop Ray:
#   run = ["bash", "ray-in-job.sh", "python3", "-m", "verl.trainer.main_ppo", …]
# isolaw starts this script once, on the first machine. Ray listens on the network (docs/cluster.md).
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0 RAY_ADDRESS=$ISOLAW_HEAD_ADDRESS:6379
srun --overlap --nodes="$ISOLAW_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c '
  if [ "$SLURM_NODEID" = 0 ]; then
    exec env -u RAY_ADDRESS ray start --head --port=6379 --include-dashboard=false --block
  fi
  until ray health-check --address="$RAY_ADDRESS" >/dev/null 2>&1; do sleep 1; done
  exec ray start --address="$RAY_ADDRESS" --block' &
trap 'kill %1; wait' EXIT
until [ "$(python3 -c 'import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))' 2>/dev/null)" = "$ISOLAW_NODES" ]; do
  sleep 2
done
"$@"
