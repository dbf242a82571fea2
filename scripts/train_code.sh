#!/usr/bin/env bash
# Trains the three code models: ReFusion, autoregressive and masked diffusion, all of one size and on the same problems.
#
#   scripts/train_code.sh A 4000 SEED           # ReFusion and AR, from nothing
#   FROM=A scripts/train_code.sh B 2000 SEED    # ReFusion goes on; masked diffusion starts from AR's weights
#
# usage: [FROM=DIR] scripts/train_code.sh DIR [STEPS] [SEED] [OBJECTIVE ...]
# Makes DIR/code-OBJECTIVE. A run that was stopped continues; one that was done continues to a larger STEPS.
#
# After both, ReFusion, and masked diffusion with its AR start, have had 6,000 steps. Masked diffusion that starts from
# nothing learns in 6,000 steps all but to copy the names of the functions; AR has learned that.
# With FROM more of the problems have a loop: the name of its total is free, which is what takes a model that writes many
# tokens at a time longest to learn.
#
# AR learns from plain code, the others from code whose lines are filled up to slots of 8 tokens, so that AR does not
# spend its time on fill. Slots of 1, 2 and 4 tokens beside those of 8 teach what refining needs: the rest of a slot of
# which some tokens are written. With slots of 8 alone that never occurs, and nearly no answer is right.
set -euo pipefail
out=$1 steps=${2:-4000} seed=${3:-0} from=${FROM:-}
objectives=("${@:4}")
[ ${#objectives[@]} -gt 0 ] || { [ -z "$from" ] && objectives=(refusion ar) || objectives=(refusion mdm); }
mkdir -p "$out"

problems() { # FILE SPLIT COUNT SEED [options]
  [ -f "$out/$1" ] && return
  python -m refusion.tasks.code --out "$out/$1.part" --split "$2" --count "$3" --seed "$4" "${@:5}"
  mv "$out/$1.part" "$out/$1"
}

[ -f "$out/tokenizer.json" ] || python -m refusion.tasks.code --tokenizer "$out/tokenizer.json"
cat > "$out/model.json" <<'JSON'
{"model_type": "qwen3", "vocab_size": 1104, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024,
 "tie_word_embeddings": true, "mask_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
JSON
loops=0.2
[ -z "$from" ] || loops=0.6
problems test.jsonl test 500 1

for objective in "${objectives[@]}"; do
  case $objective in
    refusion) layout=slots multiple=32 start=refusion ;;
    mdm) layout=slots multiple=128 start=ar ;;  # every forward of its decoder shows the whole canvas of 128
    ar) layout=plain multiple=1 start=ar ;;
    *) echo "no such objective: $objective" >&2; exit 2 ;;
  esac
  data=train-$layout-$seed-$loops.jsonl
  problems "$data" train 150000 "$seed" --loops "$loops" --layout "$layout"
  run=$out/code-$objective
  [ "$(cat "$run/done" 2>/dev/null)" = "$steps" ] && continue
  weights=(--config "$out/model.json" --tokenizer "$out/tokenizer.json")
  [ -z "$from" ] || weights=(--init "$from/code-$start")
  [ -f "$run/training-state.pt" ] && weights=(--resume)
  python -m refusion train --out "$run" --data "$out/$data" --objective "$objective" --max-steps "$steps" \
    --seed "$seed" --optimizer muon --matrix-learning-rate 0.02 --learning-rate 3e-3 --min-learning-rate 0.02 \
    --decay 0.4 --warmup 50 --weight-decay 0.02 --batch-size 32 --slot-sizes 1 2 4 8 8 8 \
    --answer-multiple "$multiple" --log-every 50 --save-every 200 --threads 1 "${weights[@]}"
  echo "$steps" > "$run/done"
done
