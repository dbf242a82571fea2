#!/usr/bin/env bash
# Trains the bundled pocket dictionary: common words and what they mean, from WordNet.
# usage: scripts/train_dictionary.sh DIR WORDNET [STEPS]     (a run that was stopped continues)
#
# WORDNET holds data.noun, data.verb and cntlist.rev of WordNet 3.0: /usr/share/wordnet after
# `apt install wordnet-base`.
set -euo pipefail
out=$1 wordnet=$2 steps=${3:-10000}
mkdir -p "$out/tokenizer"
[ -f "$out/train.jsonl" ] || python -m refusion.tasks.dictionary --wordnet "$wordnet" --out "$out/train.jsonl" \
  --tokenizer "$out/tokenizer/tokenizer.json"
printf '%s' '{{ messages[0].content.strip() }}: ' > "$out/tokenizer/chat_template.jinja"
cat > "$out/model.json" <<'JSON'
{"model_type": "qwen3", "vocab_size": 3072, "hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024,
 "tie_word_embeddings": true, "mask_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
JSON
start=(--config "$out/model.json" --tokenizer "$out/tokenizer")
[ -f "$out/dictionary/training-state.pt" ] && start=(--resume)
python -m refusion train --out "$out/dictionary" --data "$out/train.jsonl" --objective refusion --max-steps "$steps" \
  --optimizer muon --matrix-learning-rate 0.02 --learning-rate 3e-3 --min-learning-rate 0.02 --decay 0.4 --warmup 50 \
  --weight-decay 0.01 --batch-size 64 --slot-sizes 1 2 4 4 8 8 --answer-multiple 16 \
  --log-every 50 --save-every 200 --threads 1 "${start[@]}"
