#!/usr/bin/env bash
# The next part of the study `labels_or_jepa` on one GPU, within so many minutes. It begins where the records end.
#
#   benchmarks/gpu_study.sh [MINUTES [options of stepjepa study ...]]
#
# After MINUTES (12) the runs that have not finished are ended and left out of the records. Variables:
#   BLOCK    block of the recipe: full (default) or small
#   JOBS     runs at a time (6); a model of 135M parameters leaves most of a GPU idle
#   MPS      1 starts NVIDIA's multi-process service, so that kernels of several runs overlap
#   DATA     folder with the training and test file of NL-RX-SYNTH (*synth_train.jsonl, *synth_test.jsonl)
#   GGUF     the model as a GGUF file, where it cannot be downloaded; TOKENIZER a folder with its tokenizer (tools/smollm2.py)
#   RECORDS  file of records that is continued (docs/evidence/labels_or_jepa/BLOCK.jsonl)
#   PYTHON   interpreter (.venv/bin/python, else python3)
set -euo pipefail
begin=$SECONDS
minutes=${1:-12}
shift $(($# > 0 ? 1 : 0))
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
block=${BLOCK:-full}
records=${RECORDS:-docs/evidence/labels_or_jepa/$block.jsonl}
model=.venv/models/SmolLM2-135M-Instruct
split=runs/labels_or_jepa_data
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

[ -f $model/config.json ] || "$python" tools/smollm2.py $model ${GGUF:+--gguf_file "$GGUF"} ${TOKENIZER:+--tokenizer "$TOKENIZER"}

# The last 500 rows of the training file are held out of all runs; the learning rates are chosen on them.
if [ ! -f $split/test.jsonl ]; then
  data=${DATA:?names the folder with the files of NL-RX-SYNTH}
  mkdir -p $split
  train=$(ls "$data"/*synth_train.jsonl)
  head -n 7500 "$train" > $split/train.jsonl
  head -n 600 "$train" > $split/train_small.jsonl
  tail -n 500 "$train" > $split/select.jsonl
  cp "$data"/*synth_test.jsonl $split/test.jsonl.partial
  mv $split/test.jsonl.partial $split/test.jsonl
fi

if [ "${MPS:-0}" = 1 ]; then
  nvidia-cuda-mps-control -d
  trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi

# What preparing took counts too.
left=$("$python" -c "print(max(0.1, $minutes - ($SECONDS - $begin) / 60))")
echo "block $block, ${JOBS:-6} runs at a time, $left minutes"
"$python" -m stepjepa study labels_or_jepa --blocks "$block" --jobs "${JOBS:-6}" --records "$records" --stop_after "$left" "$@"
