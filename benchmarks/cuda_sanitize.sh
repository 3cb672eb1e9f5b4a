#!/usr/bin/env bash
# compute-sanitizer on a GPU, one tool and one kernel at a time, so that each report has an owner.
#
#     benchmarks/cuda_sanitize.sh [-o FOLDER] [-t "racecheck synccheck"] [-k "matvec"] [-s TESTS]
#
# -o  where logs go, one a run (default: sanitize)      -t  tools (default: all four)
# -k  kernels (default: all)                            -s  dtype of the tests (default: bfloat16)
# SANITIZER names the program (default: compute-sanitizer), PYTHON the interpreter, LIMIT the seconds
# of a run (default 240). Other kernels run in the same process, unwatched. What to expect:
# docs/cuda.md.
set -uo pipefail
cd "$(dirname "$0")/.."

out=sanitize tools="memcheck initcheck racecheck synccheck" dtype=bfloat16
kernels="prefill_attention_hopper decode_attention decode_attention_cluster matvec prefill_attention
  segment_attention append turn argmax quantized_matvec quantized_matmul join_parts dequantize
  channel_factors pack_rows place_angles widen gather_rows move_rows"
while getopts "o:t:k:s:" option; do
  case $option in
    o) out=$OPTARG ;;
    t) tools=$OPTARG ;;
    k) kernels=$OPTARG ;;
    s) dtype=$OPTARG ;;
    *) exit 2 ;;
  esac
done
sanitizer=${SANITIZER:-compute-sanitizer} python=${PYTHON:-python} limit=${LIMIT:-240}
mkdir -p "$out"
"$sanitizer" --version | tail -n 1
help=$("$sanitizer" --help)

tests_of() {  # small shapes that launch the kernel; files, then what -k takes
  case $1 in
    *prefill_attention* | decode_attention*)
      echo tests/parity/test_paged_cache.py "attention_matches_oracle and cuda-$dtype and not queries2304" ;;
    matvec | segment_attention | argmax)
      echo tests/parity/test_operations.py "cuda-$dtype" ;;
    quantized_matvec) echo tests/cuda/test_quantized.py "few_rows and 4-64 and 131 and $dtype" ;;
    quantized_matmul | join_parts)
      echo tests/cuda/test_quantized.py "many_rows and 4-64 and (131 or 533) and $dtype" ;;
    channel_factors | pack_rows | widen)
      echo tests/cuda/test_eight_bit.py "(to_the_bit or made_wide) and (4-128 or 3-18) and $dtype" ;;
    place_angles) echo tests/cuda/test_eight_bit.py placed_by_slot ;;
    gather_rows | move_rows)
      echo tests/cuda/test_cache_writes.py "simultaneous and (swap or packing) and $dtype" ;;
    dequantize) echo tests/cuda/test_quantized.py "values_are and $dtype" ;;
    *) echo tests/parity/test_paged_cache.py "cuda-$dtype and not queries2304" ;;
  esac
}

# Barriers are made by PTX of our own, which the compiler does not count for the tool: matvec has most,
# 64.
# Not --destroy-on-device-error kernel: what a killed kernel leaves in its scratch misleads the next.
common=(--num-cuda-barriers 128 --print-limit 2000 --target-processes application-only)
has() { grep -q -- "$1" <<<"$help"; }
export PYTHONFAULTHANDLER=1 OMNITIDE_REQUIRE_BACKENDS=cuda OMNITIDE_NVRTC_OPTIONS=-lineinfo

printf '%-28s %-10s %6s %8s  %s\n' kernel tool pytest seconds "last word"
for kernel in $kernels; do
  read -r file selection <<<"$(tests_of "$kernel")"
  # First without a tool: what fails here is no finding of the sanitizer, and the kernels get compiled.
  for tool in none $tools; do
    log=$out/$kernel.$tool.log begun=$SECONDS
    run=("$python" -m pytest -q -x -p no:cacheprovider "$file" -k "$selection")
    if [ "$tool" != none ]; then
      # Mangled names hold the length: no kernel is taken for one whose name goes on.
      options=("${common[@]}" --tool "$tool" --kernel-name "kns=${#kernel}${kernel}")
      if [ "$tool" = synccheck ] && has --missing-barrier-init-is-fatal; then
        options+=(--missing-barrier-init-is-fatal no)
      fi
      run=("$sanitizer" "${options[@]}" "${run[@]}")
    fi
    timeout "$limit" "${run[@]}" >"$log" 2>&1
    code=$?
    word=$(grep -E 'SUMMARY|overflow of tracked' "$log" | sort -u | tr '\n' ' ')
    [ "$tool" = none ] && word=$(tail -n 1 "$log")
    [ "$code" = 124 ] && word="ran past $limit s. $word"
    printf '%-28s %-10s %6s %8s  %s\n' "$kernel" "$tool" "$code" $((SECONDS - begun)) "$word"
  done
done
echo
echo "Kinds of report, by run:"
grep -hoE 'Race reported between [A-Za-z]+ access|Barrier error detected\. .*|Warpgroup MMA sequence error.*|Invalid __[a-z]+__ .*|Potential invalid .*|Missing fence.*|Program hit [^ ]+|Target application returned an error' \
  --with-filename "$out"/*.log 2>/dev/null | sort | uniq -c | sort -rn | head -n 60
