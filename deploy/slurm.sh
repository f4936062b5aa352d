#!/bin/bash
# A run over Slurm nodes: sbatch deploy/slurm.sh rows.path=/shared/my.jsonl model=hf model.path=...
#
# Start it from the checkout, on a file system that all nodes share, with its .venv made by
# `make setup`. Every word after the script's name is a key of the configuration. Submitted
# again after a failure or the time limit, the run goes on where it was.
#SBATCH --job-name=evenshard
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
RAY=.venv/bin/ray
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))
gpus=${SLURM_GPUS_ON_NODE:-0}

# Whoever reaches the ports of a cluster without a token can run code on it.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1)
export RAY_USAGE_STATS_ENABLED=0

start() { # node, further options
    srun --nodes=1 --ntasks=1 -w "$1" --export=ALL \
        "$RAY" start --block --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="$gpus" "${@:2}" &
}

start "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
for node in "${nodes[@]:1}"; do
    start "$node" --address="$address:$port"
done

for _ in $(seq 60); do # until all nodes are there
    count=$("$RAY" status --address="$address:$port" 2>/dev/null | grep -c '^ *1 node_' || true)
    [ "$count" -eq "${#nodes[@]}" ] && break
    sleep 5
done

workers=$((gpus > 0 ? gpus * ${#nodes[@]} : SLURM_CPUS_PER_TASK * ${#nodes[@]}))
preset=$([ "$gpus" -gt 0 ] && echo cluster || echo cpu)
srun --overlap --nodes=1 --ntasks=1 -w "$head" --export=ALL \
    .venv/bin/python -m pipeline curate \
    "compute=$preset" "compute.workers=$workers" "compute.address=$address:$port" "$@"
