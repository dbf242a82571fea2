#!/bin/bash
# Trains the code models: one short autoregressive start, then equal budgets for ReFusion, AR and masked diffusion.
# usage: scripts/train_code.sh DIR [STEPS]     (DIR gets data, checkpoints and logs; a run that was stopped continues)
#
# Short problems come first: with them (and a smaller learning rate) copying names and numbers from the instruction was
# learned in minutes, on long ones not at all in the same time. AR learns from plain code, the others from code whose
# lines are filled up to slots of 8 tokens, so that AR does not spend its time on fill. Slots of 1 to 4 beside those of 8
# are a guess that is not tested yet: refining decodes half-written slots, which training with slots of 8 never shows.
set -euo pipefail
out=$1 steps=${2:-6000}
mkdir -p "$out"

problems() { # FILE SPLIT COUNT SEED [options]
  [ -f "$out/$1" ] || python -m refusion.tasks.code --out "$out/$1.part" --split "$2" --count "$3" --seed "$4" "${@:5}"
  [ -f "$out/$1" ] || mv "$out/$1.part" "$out/$1"
}

train() { # NAME DATA OBJECTIVE STEPS LEARNING_RATE [options of a fresh run]
  [ -f "$out/$1/done" ] && return
  local start=("${@:6}")
  [ -f "$out/$1/training-state.pt" ] && start=(--resume)
  python -m refusion train --out "$out/$1" --data "$out/$2" --objective "$3" --max-steps "$4" --learning-rate "$5" \
    --min-learning-rate 0.2 --warmup 50 --weight-decay 0.05 --batch-size 32 --slot-sizes 1 2 4 8 8 8 --threads 1 "${start[@]}"
  touch "$out/$1/done"
}

python -m refusion.tasks.code --tokenizer "$out/tokenizer.json"
cat > "$out/model.json" <<'JSON'
{"model_type": "qwen3", "vocab_size": 1088, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024,
 "tie_word_embeddings": true, "mask_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
JSON

short=(--most-functions 1 --most-steps 2)
problems short.jsonl train 60000 7 "${short[@]}"
problems short_plain.jsonl train 60000 7 "${short[@]}" --layout plain
problems train.jsonl train 150000 0
problems train_plain.jsonl train 150000 0 --layout plain
problems test.jsonl test 500 1

train start short.jsonl ar 900 1.5e-3 --config "$out/model.json" --tokenizer "$out/tokenizer.json" --answer-multiple 8
for objective in refusion ar mdm; do
  layout=
  [ $objective = ar ] && layout=_plain
  train $objective-short short$layout.jsonl $objective 3000 2e-3 --init "$out/start" --answer-multiple 8
  train $objective train$layout.jsonl $objective "$steps" 2e-3 --init "$out/$objective-short" --answer-multiple 32
done
