#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From models to repositories that serve, for every model, precision, batch size and pair of lengths below:
#
#   ensemble_models/<model>_<precision>_tp<T>_pp<P>_isl<I>_osl<O>_bs<B>
#
# Edit the lists, or give them in the environment. `nereid deploy` does the work: what is ready is kept, a run that
# was stopped goes on where it was, a piece that fails is named in the table and the others are made all the same.
# Options of this script are options of nereid deploy, for example --dry-run.
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
# Options of nereid convert.
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

json() { # json TEXT…: a list of texts
    local list="" text
    for text in "$@"; do
        text=${text//\\/\\\\}
        list+=", \"${text//\"/\\\"}\""
    done
    printf '[%s]' "${list:2}"
}
text() { local list; list=$(json "$1"); printf '%s' "${list:1:-1}"; }
call() { # call FUNCTION: one of those above
    declare -F "$1" >/dev/null || { echo "deploy_qwen.sh: there is no function $1" >&2; exit 2; }
    "$1"
}

models="" precisions=""
for model in $model_size_list; do
    call "set_param_model_$model"
    path=$hf_model_dir_base/${hf_name##*/}
    [ -e "$path" ] || path=$hf_name # fetched by its name; HF_TOKEN counts
    models+=", {\"name\": $(text "$model"), \"path\": $(text "$path"), \"tp_size\": $((num_gpus / pp_size)), \"pp_size\": $pp_size}"
done
for precision in $precision_list; do
    call "set_param_quant_$precision"
    precisions+=", {\"name\": $(text "$precision"), \"convert\": $(json "${quant_options[@]}")}"
done
mkdir -p "$workspace" || exit 1
cat >"$workspace/matrix.json" <<END || exit 1
{"models": [${models:2}],
 "precisions": [${precisions:2}],
 "batch_sizes": $(json $batch_size_list),
 "lengths": $(json $input_len_output_len_list),
 "set": $(json "decoupled_mode:$triton_streaming_mode")}
END
exec "$nereid" deploy "$workspace/matrix.json" --output_dir "$workspace" "$@"
