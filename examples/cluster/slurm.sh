#!/bin/sh
#SBATCH --job-name=weft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --signal=TERM@120
#SBATCH --requeue
# Train on the machines that Slurm gives, one torchrun on each, which starts a process for every GPU:
#
#   sbatch slurm.sh run.yaml runs/together training.mesh.shard=8 training.mesh.replicate=2
#
# Two minutes before the end of the job's time Slurm sends SIGTERM, on which a checkpoint is saved after the current
# step. A job that is queued again goes on from the last checkpoint.
set -eu
config=$1
out=$2
shift 2
resume=
if [ -e "$out/run.json" ]; then resume=--resume; fi
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-8}" --rdzv-backend c10d \
    --rdzv-endpoint "$head:${PORT:-29400}" --rdzv-id "$SLURM_JOB_ID" \
    -m weft train "$config" --out "$out" --device "${DEVICE:-cuda}" $resume "$@"
