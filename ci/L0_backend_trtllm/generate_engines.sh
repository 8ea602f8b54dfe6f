#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Engines of MODEL (a Hugging Face folder or a name of the hub) for so many ranks as are named: engines/inflight_N_gpu here.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd -P)
MODEL=${MODEL:-gpt2}
PATH=$ROOT/build/bin:$PATH

for ranks in "${@:-1}"; do
    nereid convert --model_dir "$MODEL" --output_dir "checkpoints/${ranks}_gpu" --tp_size "$ranks"
    trtllm-build --checkpoint_dir "checkpoints/${ranks}_gpu" --output_dir "engines/inflight_${ranks}_gpu" --max_batch_size 8
done
rm -rf checkpoints
