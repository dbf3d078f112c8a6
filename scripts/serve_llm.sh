#!/usr/bin/env bash
# Serve a language model with vLLM, for translation, styles and verifiers:
#   scripts/serve_llm.sh Qwen/Qwen3-8B
#   scripts/serve_llm.sh meta-llama/Llama-3.3-70B-Instruct --quantization fp8
#   scripts/serve_llm.sh google/gemma-4-31B-it --dry-run     # prints the command, runs nothing
# Words after the model go to `vllm serve`; the last of two equal options counts. From the
# environment: PORT (8000), HOST (127.0.0.1: this machine alone), GPUS (all that are seen),
# VLLM_ENVIRONMENT (.venv-vllm beside the repository's own: vLLM pins other versions of torch and
# transformers), and VLLM_API_KEY, the key that clients must send; it is on no command line.
set -euo pipefail

VLLM='vllm>=0.33,<0.34'
model=""
dry=""
more=()
for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    --dry-run | --dry_run) dry=1 ;;
    *) if [ -z "$model" ] && [ "${word#-}" = "$word" ]; then model="$word"; else more+=("$word"); fi ;;
  esac
done
if [ -z "$model" ]; then
  echo "usage: $0 MODEL [options of vllm serve] [--dry-run]" >&2
  exit 2
fi

# Attention heads are shared out evenly: over a power of two.
gpus="${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)}"
case "$gpus" in
  '' | *[!0-9]*) echo "GPUS: '$gpus' is not a number" >&2; exit 2 ;;
esac
parallel=1
while [ $((parallel * 2)) -le "$gpus" ]; do parallel=$((parallel * 2)); done

# Neutral sampling in place of the model's own (Qwen's has a top_k of 20), so that requests say all;
# JSON without white space, of which a model may otherwise write without end.
options=(
  --served-model-name "$model"
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}"
  --tensor-parallel-size "$parallel"
  --gpu-memory-utilization 0.90
  --max-model-len 32768
  --generation-config vllm
  --structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'
)
case "$model" in
  # Texts only: no memory for images.
  *[Gg]emma*) options+=(--language-model-only) ;;
  # 141 GB in bf16: where they are not there, half of it in fp8.
  *[Ll]lama*70[Bb]*) if [ "$parallel" -lt 4 ]; then options+=(--quantization fp8); fi ;;
esac

folder="$(cd "$(dirname "$0")/.." && pwd)"
venv="${VLLM_ENVIRONMENT:-$folder/.venv-vllm}"
if [ -n "$dry" ]; then
  printf '%q ' "$venv/bin/vllm" serve "$model" "${options[@]}" ${more[@]+"${more[@]}"}
  echo
  exit 0
fi
if [ ! -x "$venv/bin/vllm" ]; then
  echo "installing $VLLM in $venv" >&2
  if command -v uv >/dev/null; then
    uv venv --allow-existing "$venv"
    uv pip install --python "$venv/bin/python" "$VLLM"
  else
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "$VLLM"
  fi
fi
exec "$venv/bin/vllm" serve "$model" "${options[@]}" ${more[@]+"${more[@]}"}
