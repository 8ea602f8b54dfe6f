#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From models to repositories that serve, for every model, precision, batch size and pair of lengths below:
#
#   ensemble_models/<model>_<precision>_tp<T>_pp<P>_isl<I>_osl<O>_bs<B>
#
# Edit the lists, or give them in the environment. What is there already is kept: a run that was stopped goes on
# with the next missing piece. A piece that fails is named in the summary; the others are made all the same.
set -uo pipefail
batch_size_list=${batch_size_list:-"8"}
input_len_output_len_list=${input_len_output_len_list:-"2048,1024"} # blank-separated pairs ISL,OSL
triton_streaming_mode=${triton_streaming_mode:-True}                # True: answers token by token
model_size_list=${model_size_list:-"qwen2_7b qwen2_72b qwen2_72b_tp4pp2 qwen2_72b_tp8pp1"}
precision_list=${precision_list:-"fp8 fp16 int8_wo"}
workspace=${workspace:-$PWD}
hf_model_dir_base=${hf_model_dir_base:-$workspace/hf_models}

set_param_model_qwen2_7b() {
    model_family=qwen hf_name=Qwen/Qwen2-7B-Instruct num_gpus=1 pp_size=1
}
set_param_model_qwen2_72b() {
    model_family=qwen hf_name=Qwen/Qwen2-72B-Instruct num_gpus=8 pp_size=1
}
set_param_model_qwen2_72b_tp4pp2() {
    model_family=qwen hf_name=Qwen/Qwen2-72B-Instruct num_gpus=8 pp_size=2
}
set_param_model_qwen2_72b_tp8pp1() {
    model_family=qwen hf_name=Qwen/Qwen2-72B-Instruct num_gpus=8 pp_size=1
}
set_param_quant_fp16() {
    quant_options=(--qformat full_prec --dtype float16)
}
set_param_quant_fp8() {
    quant_options=(--qformat fp8 --dtype float16)
}
set_param_quant_int8_wo() {
    quant_options=(--qformat int8_wo --dtype float16)
}

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
for nereid in "$here/../build/bin/nereid" "$here/../../../bin/nereid" "$(command -v nereid || true)"; do
    [ -x "$nereid" ] && break
done
[ -x "$nereid" ] || { echo "deploy_qwen.sh: there is no program 'nereid'; build it with make" >&2; exit 1; }
mkdir -p "$workspace"/{checkpoints,engines,ensemble_models,logs} || exit 1

# make_once DIR LOG COMMAND…: the command writes into DIR.part, which becomes DIR when it is complete.
make_once() {
    local dir=$1 log=$2
    shift 2
    [ -e "$dir" ] && return 0
    rm -rf "$dir.part"
    "$@" "$dir.part" >>"$log" 2>&1 && mv "$dir.part" "$dir"
}

download() {
    command -v huggingface-cli >/dev/null || { echo "no $hf_name in $hf_model_dir_base, and no huggingface-cli to fetch it"; return 1; }
    huggingface-cli download "$hf_name" ${HF_TOKEN:+--token "$HF_TOKEN"} --local-dir "$1"
}
quantize() {
    "$nereid" convert --model_dir "$hf_dir" "${quant_options[@]}" --tp_size "$tp_size" --pp_size "$pp_size" --output_dir "$1"
}
build() {
    "$nereid" build --checkpoint_dir "$checkpoint" --max_batch_size "$batch" --max_input_len "$isl" \
        --max_seq_len $((isl + osl)) --output_dir "$1"
}
write_repository() {
    "$nereid" repo --engine_dir "$engine" --tokenizer_dir "$hf_dir" --served-model-name "$model" --output_dir "$1" \
        --set "triton_max_batch_size:$batch,decoupled_mode:$triton_streaming_mode"
}

make_cell() {
    make_once "$hf_dir" "$log" download && make_once "$checkpoint" "$log" quantize &&
        make_once "$engine" "$log" build && make_once "$workspace/ensemble_models/$cell" "$log" write_repository
}

n_failed=0
summary=$(printf '%-52s %9s %8s  %s' repository size seconds status)
for model in $model_size_list; do
    for precision in $precision_list; do
        for list in "set_param_model_$model" "set_param_quant_$precision"; do
            declare -F "$list" >/dev/null || { echo "deploy_qwen.sh: there is no function $list" >&2; exit 2; }
            "$list"
        done
        tp_size=$((num_gpus / pp_size))
        hf_dir=$hf_model_dir_base/${hf_name##*/}
        checkpoint=$workspace/checkpoints/${model}_${precision}_tp${tp_size}_pp${pp_size}
        for batch in $batch_size_list; do
            for lengths in $input_len_output_len_list; do
                isl=${lengths%,*} osl=${lengths#*,}
                cell=${model}_${precision}_tp${tp_size}_pp${pp_size}_isl${isl}_osl${osl}_bs${batch}
                engine=$workspace/engines/$cell log=$workspace/logs/$cell.log
                start=$SECONDS status=kept
                if [ ! -e "$workspace/ensemble_models/$cell" ]; then
                    echo "== $cell"
                    mkdir -p "$hf_model_dir_base"
                    : >"$log"
                    status=made
                    make_cell || { status="failed: $(tail -1 "$log")"; n_failed=$((n_failed + 1)); }
                fi
                size=$(du -sh "$engine" 2>/dev/null | cut -f1)
                summary+=$(printf '\n%-52s %9s %8s  %s' "$cell" "${size:--}" $((SECONDS - start)) "$status")
            done
        done
    done
done
printf '%s\n' "$summary" | tee "$workspace/summary.txt"
[ "$n_failed" = 0 ]
