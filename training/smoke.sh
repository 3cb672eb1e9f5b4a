#!/usr/bin/env bash
# A first look on a GPU: speed of both kinds of attention, the loss falling, the wait for data.
# About two minutes, most of it compiling:  training/smoke.sh BANK OUT [MINUTES OF EACH RUN]
set -u
bank=$1
out=$2
minutes=${3:-0.8}
python=${PYTHON:-python}
export TOKENIZERS_PARALLELISM=false
mkdir -p "$out"

try() { # name, options
    name=$1
    shift
    "$python" -m training.train --out "$out/$name" --speech "$bank" --minutes "$minutes" \
        --total-minutes 18 --log-every 4 --try-every 600 --save-every 600 "$@" \
        >"$out/$name.txt" 2>&1 || { echo "$name failed:"; tail -n 25 "$out/$name.txt"; }
}

"$python" - <<'PYTHON'
import torch
name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print("torch", torch.__version__, "on", name)
PYTHON
try flex --attention flex
# The second run finds the tokenizer and what the first one compiled.
mkdir -p "$out/flex-long" "$out/sdpa"
for name in flex-long sdpa; do cp "$out"/flex/*.json "$out/$name/"; done
try flex-long --attention flex --begin 0.75
try sdpa --attention sdpa --rows 4
"$python" -m training.report "$out/flex" "$out/flex-long" "$out/sdpa"
