#!/usr/bin/env bash
# Serve a language model for translation, rewriting, re-rankers and verifiers (docs/llm.md).
#
# On a laptop, with llama.cpp:
#   scripts/serve_llm.sh --local FILE.gguf [--context 8192] [--parallel 1] [--threads N]
# The server listens to this machine only. When it is ready, the script prints the flag for our
# programs. Ctrl-C ends it. Environment variables:
#   PORT               its port (8000)
#   LLAMA_ENVIRONMENT  where llama.cpp is installed at first use (.venv-llama in the repository)
#
# On a machine with a GPU, with vLLM:
#   scripts/serve_llm.sh Qwen/Qwen3-8B
#   scripts/serve_llm.sh meta-llama/Llama-3.3-70B-Instruct --quantization fp8
#   scripts/serve_llm.sh google/gemma-4-31B-it --dry-run     # prints the command, runs nothing
#   scripts/serve_llm.sh moonshotai/Kimi-K2.6 --allow-remote-code --revision COMMIT
# Arguments after the model go to `vllm serve`; the last of two equal options wins. A model with code
# in its repository is served only with --allow-remote-code and the full commit that you have
# reviewed. Environment variables:
#   PORT, HOST         its port (8000) and address (127.0.0.1: only this machine)
#   GPUS               the number of GPUs (all visible ones)
#   VLLM_ENVIRONMENT   where vLLM is installed at first use (.venv-vllm in the repository, because
#                      vLLM pins other versions of torch and transformers)
#   VLLM_API_KEY       the key that clients must send; it is never on a command line
set -euo pipefail

VLLM='vllm>=0.33,<0.34'
LLAMA='xllamacpp==2026.10.11549'
folder="$(cd "$(dirname "$0")/.." && pwd)"
local=""
model=""
dry=""
allowed=""
revision=""
before=""
more=()
for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    --dry-run | --dry_run) dry=1 ;;
    --local) local=1 ;;
    --allow-remote-code | --allow_remote_code) allowed=1 ;;
    *) if [ -z "$model" ] && [ "${word#-}" = "$word" ]; then model="$word"; else more+=("$word"); fi ;;
  esac
  # vLLM's own flag is also consent.
  case "$word" in
    --trust-remote-code | --trust_remote_code) allowed=1 ;;
    --revision=*) revision="${word#*=}" ;;
  esac
  if [ "$before" = --revision ]; then revision="$word"; fi
  before="$word"
done
if [ -z "$model" ] && [ -n "$local" ]; then
  echo "error: --local needs a GGUF file: $0 --local FILE.gguf" >&2
  exit 2
fi
if [ -z "$model" ]; then
  echo "usage: $0 --local FILE.gguf, or $0 MODEL [options of vllm serve]; --help explains both" >&2
  exit 2
fi

# Install a package into its own environment; one line if it fails.
install() {
  local venv="$1" package="$2"
  echo "installing $package in $venv" >&2
  mkdir -p "$venv"
  if command -v uv >/dev/null; then
    uv venv --allow-existing "$venv" && uv pip install --python "$venv/bin/python" "$package"
  else
    "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/python" -m pip install --quiet "$package"
  fi >"$venv/install.log" 2>&1 || {
    echo "error: $package cannot be installed: $(tail -n 1 "$venv/install.log") ($venv/install.log)" >&2
    exit 2
  }
}

if [ -n "$local" ]; then
  venv="${LLAMA_ENVIRONMENT:-$folder/.venv-llama}"
  command=("$venv/bin/python" "$folder/scripts/llama_server.py" "$model" --port "${PORT:-8000}"
    --out "$venv" ${more[@]+"${more[@]}"})
  if [ -n "$dry" ]; then
    printf '%q ' "${command[@]}"
    echo
    exit 0
  fi
  case "${HOST:-localhost}" in
    127.* | localhost | ::1) ;;
    *) echo "error: HOST: '$HOST' is not this machine; --local serves only this machine" >&2; exit 2 ;;
  esac
  if [ ! -f "$model" ]; then
    echo "error: $model: no such file" >&2
    exit 2
  fi
  installed="$venv/.$LLAMA"
  if [ ! -e "$installed" ]; then
    install "$venv" "$LLAMA"
    touch "$installed"
  fi
  exec "${command[@]}"
fi

# Attention heads are divided evenly, over a power of two.
gpus="${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)}"
case "$gpus" in
  '' | *[!0-9]*) echo "GPUS: '$gpus' is not a number" >&2; exit 2 ;;
esac
parallel=1
while [ $((parallel * 2)) -le "$gpus" ]; do parallel=$((parallel * 2)); done

# Neutral sampling instead of the model's own (Qwen's has a top_k of 20), so that only requests set
# it; JSON without white space, which a model may otherwise write endlessly.
options=(
  --served-model-name "$model"
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}"
  --tensor-parallel-size "$parallel"
  --gpu-memory-utilization 0.90
  --max-model-len 32768
  --generation-config vllm
  --structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'
)
# By family, as in vLLM's recipes: a parser removes the reasoning from the reply, and allows reasoning
# before JSON. gpt-oss has its own without a flag. No tools are sent, so no tool-call parser is set.
# The first matching pattern wins.
parser=""
code=""
name="$(printf %s "$model" | tr '[:upper:]' '[:lower:]')"
case "$name" in
  *kimi-k3*) parser=kimi_k3 code=1 ;;
  *kimi-k2*instruct*) code=1 ;; # does not think
  *kimi-k2*) parser=kimi_k2 code=1 ;;
  *kimi*) code=1 ;;
  *minimax-m3*) parser=minimax_m3 ;;
  *minimax-m2*) parser=minimax_m2 code=1 ;;
  *deepseek-v4*) parser=deepseek_v4; options+=(--tokenizer-mode deepseek_v4) ;;
  *deepseek-v3.2*) parser=deepseek_v3; options+=(--tokenizer-mode deepseek_v32) ;;
  *deepseek-v3.1*) parser=deepseek_v3 ;;
  *deepseek-r1* | *qwq*) parser=deepseek_r1 ;;
  *qwen3*instruct* | *qwen3*coder* | *qwen3-embedding* | *qwen3-reranker* | *qwen3guard*) ;;
  *qwen3*) parser=qwen3 ;;
  *glm-4.[5-9]* | *glm-5*) parser=glm45 ;;
  *gemma-4*) parser=gemma4 ;;
esac
if [ -n "$parser" ]; then options+=(--reasoning-parser "$parser"); fi
case "$name" in
  # Texts only: no memory for images.
  *gemma* | *kimi-k2.[5-9]* | *kimi-k3* | *qwen3.[5-9]*) options+=(--language-model-only) ;;
  # 141 GB in bf16; with less memory, half of it in fp8.
  *llama*70b*) if [ "$parallel" -lt 4 ]; then options+=(--quantization fp8); fi ;;
esac
# Code, weights and tokenizer come from one commit.
missing=""
if [ -n "$code" ] && [ -z "$allowed" ]; then
  missing="--allow-remote-code"
fi
if [ -n "$code$allowed" ] && [ ! -d "$model" ]; then
  case "$revision" in
    *[!0-9a-f]* | '') missing="${missing:+$missing and }--revision COMMIT" ;;
    *) [ "${#revision}" -eq 40 ] || missing="${missing:+$missing and }--revision COMMIT" ;;
  esac
fi
if [ -n "$code$allowed" ]; then
  options+=(--trust-remote-code)
  if [ -n "$revision" ]; then
    options+=(--code-revision "$revision" --tokenizer-revision "$revision")
  fi
fi

venv="${VLLM_ENVIRONMENT:-$folder/.venv-vllm}"
if [ -n "$dry" ]; then
  printf '%q ' "$venv/bin/vllm" serve "$model" "${options[@]}" ${more[@]+"${more[@]}"}
  echo
fi
if [ -n "$missing" ]; then
  echo "$model runs its own code: read it, and pass $missing (40 digits)" >&2
  [ -n "$dry" ] || exit 2
fi
if [ -n "$dry" ]; then exit 0; fi
if [ ! -x "$venv/bin/vllm" ]; then install "$venv" "$VLLM"; fi
exec "$venv/bin/vllm" serve "$model" "${options[@]}" ${more[@]+"${more[@]}"}
