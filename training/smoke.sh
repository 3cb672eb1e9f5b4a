#!/usr/bin/env bash
# A first look on a GPU: speed of both kinds of attention, the loss falling, the wait for data.
# About three minutes, half of it compiling:  training/smoke.sh BANK OUT [MORE OPTIONS OF ALL RUNS]
set -u
bank=$1
out=$2
shift 2
more=("$@")
python=${PYTHON:-python3}
export TOKENIZERS_PARALLELISM=false
mkdir -p "$out"

try() { # name, minutes, options
    name=$1
    minutes=$2
    shift 2
    "$python" -m training.train --out "$out/$name" --speech "$bank" --minutes "$minutes" \
        --total-minutes 18 --log-every 3 --try-every 600 --save-every 600 "$@" \
        ${more[@]+"${more[@]}"} \
        >"$out/$name.txt" 2>&1 || { echo "$name failed:"; tail -n 25 "$out/$name.txt"; }
}

"$python" - <<'PYTHON'
import torch
name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print("torch", torch.__version__, "on", name)
PYTHON
try flex 1.2 --attention flex
# The second run finds the tokenizer and what the first one compiled.
mkdir -p "$out/flex-long" "$out/sdpa"
for name in flex-long sdpa; do cp "$out"/flex/*.json "$out/$name/"; done
try flex-long 0.5 --attention flex --begin 0.75
try sdpa 0.8 --attention sdpa --rows 4
"$python" -m training.report "$out/flex" "$out/flex-long" "$out/sdpa"
