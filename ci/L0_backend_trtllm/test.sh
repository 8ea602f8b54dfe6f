#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The five models as a whole: engines are built, filled in and served with batches of requests that wait for each other (V1), in
# flight, and streamed; the clients of tools/ ask. RANKS: on how many ranks, "1 2". Everything is written below the working folder.
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd -P)
ROOT=$(cd "$HERE/../.." && pwd -P)
TOOLS=$ROOT/tools/inflight_batcher_llm
MODEL=${MODEL:-gpt2}
TOKENIZER=${TOKENIZER:-$MODEL}
RANKS=${RANKS:-1}
HTTP=${HTTP_PORT:-8000} GRPC=${GRPC_PORT:-8001} METRICS=${METRICS_PORT:-8002}
TIMEOUT=${SERVER_TIMEOUT:-120}
PYTHON=${PYTHON:-python3}
REPOSITORY=$PWD/triton_model_repo
PATH=$ROOT/build/bin:$PATH
failed=0 server=

fail() { # WHAT LOG
    echo -e "\n***\n*** $1\n***"
    tail -n 50 "$2"
    failed=1
}

fill() { # RANKS BATCHING DECOUPLED
    local engine=$PWD/engines/inflight_${1}_gpu more
    rm -rf "$REPOSITORY"
    cp -r "$ROOT/all_models/inflight_batcher_llm" "$REPOSITORY"
    for m in preprocessing postprocessing tensorrt_llm tensorrt_llm_bls ensemble; do
        more=triton_max_batch_size:8,logits_datatype:TYPE_FP32
        case $m in
        pre* | post*) more+=",tokenizer_dir:$TOKENIZER,tokenizer_type:auto" ;;
        tensorrt_llm)
            more+=",triton_backend:tensorrtllm,engine_dir:$engine,batching_strategy:$2,decoupled_mode:$3,kv_cache_free_gpu_mem_fraction:0.1"
            more+=",batch_scheduler_policy:guaranteed_no_evict,max_queue_delay_microseconds:0,max_queue_size:0,encoder_input_features_data_type:TYPE_FP16"
            ;;
        *_bls) more+=",decoupled_mode:$3,bls_instance_count:1" ;;
        esac
        "$PYTHON" "$ROOT/tools/fill_template.py" -i "$REPOSITORY/$m/config.pbtxt" "$more" >/dev/null || return
    done
}

start() { # LOG
    tritonserver --model-repository="$REPOSITORY" --http-port="$HTTP" --grpc-port="$GRPC" --metrics-port="$METRICS" >"$1" 2>&1 &
    server=$!
    for ((i = 0; i < 10 * TIMEOUT; i++)); do
        kill -0 $server 2>/dev/null || break
        [ "$(curl -s -m 2 -o /dev/null -w '%{http_code}' "localhost:$HTTP/v2/health/ready")" = 200 ] && return
        sleep 0.1
    done
    fail "the server did not start" "$1"
    stop "$1"
    return 1
}

stop() { # LOG
    kill -INT $server 2>/dev/null
    wait $server || fail "the server did not end well" "$1"
}

ask() { # LOG PROGRAM OPTIONS…
    local log=$1
    shift
    "$PYTHON" "$TOOLS/$1" "${@:2}" || fail "$1" "$log"
}

bash "$HERE/generate_engines.sh" $RANKS || exit 1
for ranks in $RANKS; do
    for mode in "V1 False" "inflight_fused_batching False" "inflight_fused_batching True"; do
        read -r batching decoupled <<<"$mode"
        log=${ranks}gpu_${batching}_decoupled_${decoupled}_server.log
        fill "$ranks" "$batching" "$decoupled" && start "$log" || { failed=1 && continue; }
        if [ "$decoupled" = True ]; then
            ask "$log" end_to_end_streaming_client.py --prompt="My name is" -u "localhost:$GRPC"
        else
            ask "$log" identity_test.py -i grpc -u "localhost:$GRPC" --max_input_len=100 --dataset="$HERE/simple_data.json" --tokenizer_dir="$TOKENIZER"
            ask "$log" end_to_end_test.py -i http -u "localhost:$HTTP" --max_input_len=100 --dataset="$HERE/simple_data.json"
        fi
        stop "$log"
    done
done
[ $failed = 0 ] && echo -e "\n***\n*** Test Passed\n***" || echo -e "\n***\n*** Test FAILED\n***"
exit $failed
