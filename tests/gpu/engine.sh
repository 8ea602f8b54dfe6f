#!/usr/bin/env bash
# The engine on a GPU, end to end: small models against Hugging Face's results, then throughput and
# latency of big shapes with random weights. Needs nvcc, a GPU and Python with numpy.
#   tests/gpu/engine.sh check           goldens on the GPU
#   tests/gpu/engine.sh graphs [FOLDER] recorded steps against enqueued ones
#   tests/gpu/engine.sh guided [FOLDER]  guided answers, with recorded steps and without
#   tests/gpu/engine.sh bench [FOLDER]  engines are built into FOLDER (default build/gpu)
set -u
cd "$(dirname "$0")/../.."
nereid=build/bin/nereid
what=${1:-check} folder=${2:-build/gpu}

check() { # 16-bit activations: the tolerance is theirs, not that of float32
    for model in gpt2 llama llama3 qwen2 qwen3 mistral gemma2 gemma3 llama-gguf-q4_k; do
        python3 tests/model/check_goldens.py --tolerance 0.15 \
            --program "$nereid eval --device cuda --kv_cache_free_mem_fraction 0.02" "$model"
    done
}

graphs() { # tokens with recorded steps are those without
    local e=$folder/gpt2-medium-graphs
    engine gpt2-medium-graphs gpt2-medium --dtype float16 --max_batch_size 64
    mkdir -p build/bin
    cc -std=c11 -D_GNU_SOURCE -O2 -Iinclude -Isrc tests/gpu/graph_check.c -o build/bin/graph_check \
        -Lbuild/lib -lnereid -Wl,-rpath,'$ORIGIN/../lib' && build/bin/graph_check "$e"
}

guided() {
    python3 tests/tinymodel/make_model.py --arch llama --out "$folder/tiny" >/dev/null
    $nereid build --checkpoint_dir "$folder/tiny" --output_dir "$folder/tiny-engine" --device cuda --dtype float16
    cc -std=c11 -D_GNU_SOURCE -O2 -Iinclude -Isrc tests/gpu/guided_check.c -o build/bin/guided_check \
        -Lbuild/lib -lnereid -Wl,-rpath,'$ORIGIN/../lib' &&
        build/bin/guided_check "$folder/tiny-engine" "$folder/tiny"
}

engine() { # NAME CONFIG OPTION...
    local name=$1 config=$2; shift 2
    [ -e "$folder/$name/rank0.engine" ] || $nereid build --load_format dummy \
        --model_config "tests/gpu/$config.json" --output_dir "$folder/$name" --device cuda "$@"
}

bench() {
    engine gpt2-medium-fp16 gpt2-medium --dtype float16 --max_batch_size 8
    $nereid bench latency "$folder/gpt2-medium-fp16" --device cuda --input_mean 24 --output_mean 200 --num_requests 5
    for type in fp8 bf16; do
        if [ $type = fp8 ]; then
            engine llama-8b-fp8 llama-3.1-8b --quantize fp8 --max_batch_size 1024 --max_seq_len 4096 --fp8_kv_cache
        else
            engine llama-8b-bf16 llama-3.1-8b --dtype bfloat16 --max_batch_size 1024 --max_seq_len 4096
        fi
        local e=$folder/llama-8b-$type
        $nereid bench latency "$e" --device cuda --input_mean 24 --output_mean 200 --num_requests 3
        $nereid bench throughput "$e" --device cuda --input_mean 128 --output_mean 128 --num_requests 2000 --concurrency 1024
        $nereid bench throughput "$e" --device cuda --input_mean 1000 --output_mean 1000 --num_requests 600 --concurrency 600
    done
}
"$what"
