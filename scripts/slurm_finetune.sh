#!/usr/bin/env bash
# Fine-tune on a Slurm cluster, on one node or several:
#   sbatch --nodes 2 --gpus-per-node 4 scripts/slurm_finetune.sh --config configs/finetune/gritlm_7b.yaml --out runs/gritlm
# All arguments go to train/finetune.py. If you submit it again with the same --out, it resumes. At
# SIGTERM the trainer finishes its step and saves: when the job is preempted, and two minutes
# before its time limit (--signal; to the steps, not to this shell).
#SBATCH --job-name=claim2source
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.log
#SBATCH --requeue
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"

if [ -z "${SLURM_NNODES:-}" ]; then
  echo "not in a Slurm job: sbatch $0 --config FILE --out DIR" >&2
  exit 2
fi
out=""
previous=""
for word in "$@"; do
  case "$word" in
    --out=*) out="${word#--out=}" ;;
  esac
  if [ "$previous" = "--out" ]; then out="$word"; fi
  previous="$word"
done
if [ -z "$out" ]; then
  echo "--out DIR is required: a requeued job finds its run there" >&2
  exit 2
fi
# The trainer's marker file.
resume=()
if [ -f "$out/.claim2source-run" ]; then resume=(--resume); fi

gpus="${SLURM_GPUS_ON_NODE:-1}"
export MAIN_HOST
MAIN_HOST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MAIN_PORT="${MAIN_PORT:-29500}"
export WORLD="$((SLURM_NNODES * gpus))"
launch=(accelerate launch --num_machines "$SLURM_NNODES" --num_processes "$WORLD"
  --main_process_ip "$MAIN_HOST" --main_process_port "$MAIN_PORT"
  --mixed_precision no --dynamo_backend no)
if [ "$WORLD" -gt 1 ]; then launch+=(--multi_gpu); fi

# Since Slurm 22.05 srun does not take this from the job.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-16}"
# Each node inserts its own number between the launcher's options and the program.
srun --kill-on-bad-exit=1 bash -c '
  count="$1"; shift
  exec "${@:1:count}" --machine_rank "$SLURM_NODEID" "${@:count+1}"
' finetune "${#launch[@]}" "${launch[@]}" train/finetune.py "$@" "${resume[@]}"
