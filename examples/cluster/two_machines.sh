#!/bin/sh
# Train on several machines without a scheduler: run this script on each of them, with the same arguments.
#
#   MACHINES=2 HEAD=first-machine:29400 sh two_machines.sh run.yaml runs/together training.mesh.shard=8
#
# The machines meet at HEAD, a name or address of one of them and a free port; it must be started there too. The
# folder of the run must be the same for all (a shared file system), and so must the text that is trained on. With a
# mesh in the configuration, the product of its sizes must be MACHINES times PROCESSES. If a process dies, torchrun
# ends the others on every machine; RESUME=--resume goes on from the last checkpoint.
set -eu
config=$1
out=$2
shift 2
exec torchrun --nnodes "$MACHINES" --nproc-per-node "${PROCESSES:-8}" --rdzv-backend c10d --rdzv-endpoint "$HEAD" \
    --rdzv-id "$(basename "$out")" -m weft train "$config" --out "$out" --device "${DEVICE:-cuda}" ${RESUME:-} "$@"
