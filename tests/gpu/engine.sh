#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine on a GPU, end to end: small models against Hugging Face's results, then throughput and
# latency of big shapes with random weights. Needs nvcc, a GPU and Python with numpy.
#   tests/gpu/engine.sh check            goldens on the GPU
#   tests/gpu/engine.sh graphs [FOLDER]  recorded steps against enqueued ones
#   tests/gpu/engine.sh steps [FOLDER]   long prompts in large steps and in small ones
#   tests/gpu/engine.sh guided [FOLDER]  guided answers, with recorded steps and without
#   tests/gpu/engine.sh encoders [FOLDER] vectors of texts beside those of the CPU
#   tests/gpu/engine.sh texts            texts of encoder-decoder models, about pictures, from kept states: beside the CPU's
#   tests/gpu/engine.sh clients          server tests of pictures, sounds, encoders, adapters, drafts; needs pytest
#   tests/gpu/engine.sh ranks [FOLDER]   two ranks on two GPUs beside one, and a rank that is lost
#   tests/gpu/engine.sh latency [FOLDER] one request after the other
#   tests/gpu/engine.sh cold [FOLDER]    the first run after a load beside the second, without kept choices and with
#   tests/gpu/engine.sh published [FOLDER] many requests at a time, with the recipe of the published tables
#   tests/gpu/engine.sh large [FOLDER]   a 70B model on one GPU
#   tests/gpu/engine.sh needles          needles in long prompts, with caches of 16 and 8 bits
#   tests/gpu/engine.sh experts [FOLDER] mixtures of experts: many requests at a time, and one
#   tests/gpu/engine.sh bench [FOLDER]   all of these, then more of them
#   tests/gpu/engine.sh server [FOLDER]  many requests at a time through the server
#   tests/gpu/engine.sh serve [FOLDER]   the server's answers beside a CPU's, memory, faults
# Engines are built into FOLDER (default build/gpu). RUNS=3: many requests at a time so many times, the first run cold.
set -u
cd "$(dirname "$0")/../.."
nereid=build/bin/nereid
what=${1:-check} folder=${2:-build/gpu}

check() { # 16-bit activations: the tolerance is theirs, not that of float32
    python3 tests/model/check_goldens.py --tolerance 0.15 \
        --program "$nereid eval --device cuda --kv_cache_free_mem_fraction 0.02"
}

graphs() { # tokens with recorded steps are those without
    local e=$folder/gpt2-medium-graphs
    engine gpt2-medium-graphs gpt2-medium --dtype float16 --max_batch_size 64
    c_check graph_check && build/bin/graph_check "$e"
}

steps() { # needs no model but random weights
    python3 tests/gpu/steps_check.py "$nereid" "$folder"
}

c_check() { # NAME: tests/gpu/NAME.c into build/bin
    mkdir -p build/bin
    cc -std=c11 -D_GNU_SOURCE -O2 -Iinclude -Isrc "tests/gpu/$1.c" -o "build/bin/$1" -Lbuild/lib -lnereid -lm \
        -Wl,-rpath,'$ORIGIN/../lib'
}

encoders() {
    local name type types status=0
    c_check embed_check || return
    for name in bert xlm-roberta distilbert mpnet modernbert modernbert-biases nomic nomic-moe jina jina-v2 neobert electra-small \
        albert; do
        PYTHONPATH=tests/tinymodel python3 -c "import encoders; encoders.write_folder('$name', '$folder/$name', None)"
        $nereid build --checkpoint_dir "$folder/$name" --output_dir "$folder/$name-cpu" --dtype float32 || return
        types="float32=1e-5 float16=3e-3 bfloat16=2e-2"
        # more sensitive; of modernbert-biases transformers itself is 0.005 and 0.017 from its float32
        [[ $name != modernbert-biases && $name != jina-v2 ]] || types="float32=1e-5 float16=1e-2 bfloat16=3e-2"
        for type in $types; do
            $nereid build --checkpoint_dir "$folder/$name" --output_dir "$folder/$name-${type%=*}" --device cuda \
                --dtype "${type%=*}" || return
            echo "$name ${type%=*}"
            build/bin/embed_check "$folder/$name-${type%=*}" cuda "$folder/$name-cpu" cpu "${type#*=}" || status=1
        done
    done
    return $status
}

texts() {
    python3 tests/gpu/texts_check.py --nereid "$nereid"
}

clients() { # server tests; 16 bits turn a choice between two tokens that are near, which some of them do not allow for
    NEREID_TOLERANCE=0.25 NEREID_SERVE_OPTIONS="--set kv_cache_free_gpu_mem_fraction:0.05" python3 -m pytest -q -p no:cacheprovider \
        tests/e2e/test_{vision,encdec,whisper,encoders,classifiers,rerankers,lora,mrope,generate,beam_logits,modes}.py
    python3 -m pytest -q -p no:cacheprovider tests/tools/test_{mtp,medusa,eagle,redrafter}.py
}

ranks() {
    python3 tests/gpu/ranks_check.py --nereid "$nereid" --folder "$folder"
    for model in llama gpt2 qwen2 gemma3 mistral; do
        python3 tests/model/check_goldens.py --tolerance 0.15 \
            --program "$nereid eval --device cuda --tp-size 2 --kv_cache_free_mem_fraction 0.02" "$model"
    done
}

guided() {
    python3 tests/tinymodel/make_model.py --arch llama --out "$folder/tiny" >/dev/null
    $nereid build --checkpoint_dir "$folder/tiny" --output_dir "$folder/tiny-engine" --device cuda --dtype float16
    c_check guided_check && build/bin/guided_check "$folder/tiny-engine" "$folder/tiny"
}

serve() { # the fault is made by build/tests/fault.so (make gpu-test builds it), if it is there
    python3 tests/tinymodel/make_model.py --arch llama --out "$folder/tiny" >/dev/null
    $nereid build --checkpoint_dir "$folder/tiny" --output_dir "$folder/tiny-serve" --device cuda --dtype float16 \
        --max_batch_size 64
    local fault=build/tests/fault.so
    [ -e $fault ] || fault=
    python3 tests/gpu/server_check.py "$folder/tiny-serve" "$folder/tiny" --folder "$folder" ${fault:+--fault $fault}
}

engine() { # NAME CONFIG OPTION...
    local name=$1 config=$2; shift 2
    [ -e "$folder/$name/rank0.engine" ] || $nereid build --load_format dummy \
        --model_config "tests/gpu/$config.json" --output_dir "$folder/$name" --device cuda "$@"
}

big() { # fp8, fp8-head16 (the head in 16 bits), fp8-published (with prompts' attention in fp8, too) or bf16: the engine's folder
    if [ "$1" = fp8-head16 ]; then
        engine llama-8b-fp8-head16 llama-3.1-8b --quantize fp8 --fp8_kv_cache --max_batch_size 1024 --max_seq_len 22528 >&2
    elif [ "$1" = fp8-published ]; then
        engine llama-8b-fp8-published llama-3.1-8b --quantize fp8 --fp8_kv_cache --use_fp8_context_fmha enable --max_batch_size 1024 \
            --max_seq_len 22528 >&2
    elif [ "$1" = fp8 ]; then
        engine llama-8b-fp8 llama-3.1-8b --quantize fp8 --quantize_lm_head --fp8_kv_cache \
            --max_batch_size 1024 --max_seq_len 22528 >&2
    else
        engine llama-8b-bf16 llama-3.1-8b --dtype bfloat16 --max_batch_size 1024 --max_seq_len 22528 >&2
    fi
    echo "$folder/llama-8b-$1"
}

latency() { # batch 1, and the time to the first token of a long prompt
    local e
    engine gpt2-medium-fp16 gpt2-medium --dtype float16 --max_batch_size 8
    $nereid bench latency "$folder/gpt2-medium-fp16" --device cuda --input_mean 24 --output_mean 200 --num_requests 5
    engine llama-1b-bf16 llama-3.2-1b --dtype bfloat16 --max_batch_size 8 --max_seq_len 4096
    $nereid bench latency "$folder/llama-1b-bf16" --device cuda --input_mean 24 --output_mean 200 --num_requests 5
    for type in fp8-head16 fp8 bf16; do
        e=$(big $type)
        $nereid bench latency "$e" --device cuda --input_mean 24 --output_mean 200 --num_requests 3
        $nereid bench latency "$e" --device cuda --input_mean 2048 --output_mean 2 --num_requests 5
    done
    for type in q4_0 q4_k q8_0; do
        engine llama-8b-$type llama-3.1-8b --quantize $type --max_batch_size 256 --max_seq_len 4096
        $nereid bench latency "$folder/llama-8b-$type" --device cuda --input_mean 24 --output_mean 100 --num_requests 3
    done
}

throughput() { # TYPE IN OUT REQUESTS AT_A_TIME [OPTION...]
    local type=$1 in=$2 out=$3 requests=$4 at=$5; shift 5
    echo "== $type $in in $out out, $requests requests, $at at a time"
    $nereid bench throughput "$(big "$type")" --device cuda --input_mean "$in" --output_mean "$out" \
        --num_requests "$requests" --concurrency "$at" --max_batch_size "$at" --runs "${RUNS:-1}" "$@"
}

cold() {
    local e
    engine smollm2-135m-bf16 smollm2-135m --dtype bfloat16 --max_batch_size 1024 --max_seq_len 2048
    for e in "$folder/smollm2-135m-bf16" "$(big fp8)" "$(big bf16)"; do
        rm -f "$e/timing.cache"
        for start in first second; do
            echo "== $e, $start start"
            $nereid bench throughput "$e" --device cuda --input_mean 128 --output_mean 128 --num_requests 3000 \
                --concurrency 1024 --max_batch_size 1024 --warmup 0 --runs 2
        done
    done
}

published() { # the recipe of the published tables: `trtllm-bench build -q FP8` computes attention of prompts in fp8
    local all="--mixed-context-tokens -1 --kv_cache_free_gpu_mem_fraction 0.95" full="--steady --max-utilization"
    throughput fp8-published 128 128 3000 1024 $all
    throughput fp8-published 128 2048 1450 1024 $all $full
    throughput fp8-published 128 4096 920 800 $all $full
    throughput fp8-published 500 2000 1280 1024 $all $full
    throughput fp8-published 1000 1000 640 640 $all
    throughput fp8-published 1000 2000 640 640 $all --max-utilization
    throughput fp8-published 2048 128 1200 512 $all
    throughput fp8-published 2048 2048 640 456 $all --steady
    throughput fp8-published 5000 500 320 320 $all
    throughput fp8-published 20000 2000 76 76 $all
}

large() { # a model of 73 GB in fp8 on one GPU
    engine llama-70b-fp8 llama-3.1-70b --quantize fp8 --fp8_kv_cache --max_batch_size 1024 --max_seq_len 4096
    $nereid bench throughput "$folder/llama-70b-fp8" --device cuda --input_mean 128 --output_mean 128 --num_requests 1500 \
        --concurrency 768 --max_batch_size 768
    $nereid bench latency "$folder/llama-70b-fp8" --device cuda --input_mean 24 --output_mean 100 --num_requests 2
}

needles() { # what a cache of 8 bits finds in long prompts beside one of 16; a model that knows them (scripts/fetch_model)
    local type model
    model=$(scripts/fetch_model qwen2.5-coder) || return
    for type in auto fp8 int8; do
        $nereid eval "$model" --device cuda --kv_cache_dtype $type --needle 2000,8000,16000,30000 --samples 10
    done
}

experts() {
    local e
    engine mixtral-8x7b-fp8 mixtral-8x7b --quantize fp8 --fp8_kv_cache --max_batch_size 1024 --max_seq_len 4096
    e=$folder/mixtral-8x7b-fp8
    $nereid bench throughput "$e" --device cuda --input_mean 128 --output_mean 128 --num_requests 2000 \
        --concurrency 1024 --max_batch_size 1024
    $nereid bench latency "$e" --device cuda --input_mean 24 --output_mean 200 --num_requests 3
    engine qwen3-30b-a3b-fp8 qwen3-30b-a3b --quantize fp8 --fp8_kv_cache --max_batch_size 1024 --max_seq_len 4096
    e=$folder/qwen3-30b-a3b-fp8
    $nereid bench throughput "$e" --device cuda --input_mean 1000 --output_mean 1000 --num_requests 640 \
        --concurrency 512 --max_batch_size 512 --steady
    $nereid bench latency "$e" --device cuda --input_mean 24 --output_mean 200 --num_requests 3
}

bench() {
    latency
    published
    large
    experts
    throughput fp8 128 128 3000 1024
    throughput fp8 128 2048 1024 768
    throughput fp8 500 2000 512 512
    throughput fp8 1000 1000 1024 512
    throughput fp8 2048 128 1200 512
    throughput fp8 2048 2048 512 512
    throughput fp8 5000 500 320 320
    throughput fp8 20000 2000 76 76
    throughput bf16 128 128 3000 1024
    throughput bf16 500 2000 256 256
    throughput bf16 1000 1000 384 384
    throughput bf16 2048 128 800 384
}

server() { # the same through HTTP; needs the server's libraries and a tokenizer (scripts/fetch_model)
    local e repo=$folder/repository pid status
    e=$(big fp8)
    rm -rf "$repo"
    $nereid repo --engine_dir "$e" --output_dir "$repo" --set device:cuda \
        --tokenizer_dir "${TOKENIZER:-$HOME/.cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf}" || return 1
    build/bin/tritonserver --model-repository="$repo" --http-port 18000 --grpc-port 18001 --metrics-port 18002 \
        >"$folder/server.log" 2>&1 &
    pid=$!
    until curl -sf localhost:18000/v2/health/ready >/dev/null; do
        kill -0 $pid || { tail -3 "$folder/server.log"; return 1; }
        sleep 0.2
    done
    python3 tests/gpu/server_load.py localhost:18000 --requests 3000 --concurrency 1024
    status=$?
    kill $pid
    wait $pid
    return $status
}
"$what"
