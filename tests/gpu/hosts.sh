#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks on two GPUs of this machine that take each other for another host's: NCCL between them, over sockets. Log
# probabilities beside those of one rank (float16 activations: within 0.15), and tokens a second of both.
#
#   tests/gpu/hosts.sh ENGINE_OF_1 ENGINE_OF_2 TOKENS.jsonl
set -eu
bin=$(cd "$(dirname "$0")/../.." && pwd)/build/bin
one=$1 two=$2 tokens=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# What mpirun would say on two hosts with one rank each, and what keeps NCCL from finding out that it is one machine.
rank() {
    local i=$1
    shift
    env OMPI_COMM_WORLD_RANK="$i" OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 \
        PMIX_NAMESPACE="gpu-hosts-$$-$i" NEREID_RANKS_ADDRESS=127.0.0.1:29501 CUDA_VISIBLE_DEVICES="$i" \
        NCCL_HOSTID="host$i" NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "$@"
}
both() {
    rank 1 "$@" >"$dir/rank1" 2>&1 &
    local other=$! status=0
    rank 0 "$@" || status=$?
    wait "$other" || { status=$?; cat "$dir/rank1" >&2; }
    return "$status"
}

"$bin/nereid" eval "$one" --device cuda --tokens "$tokens" --out "$dir/alone" >/dev/null
both "$bin/nereid" eval "$two" --device cuda --tokens "$tokens" --out "$dir/hosts" >/dev/null
python3 - "$dir" <<'PYTHON'
import json
import sys

def numbers(name):
    return [p for line in open(f"{sys.argv[1]}/{name}") for p in json.loads(line)["logprobs"] if p is not None]

alone, hosts = numbers("alone"), numbers("hosts")
off = max(abs(a - b) for a, b in zip(alone, hosts, strict=True))
print(f"{len(alone)} log probabilities, at most {off:.4f} off")
sys.exit(off > 0.15 or not alone)
PYTHON
for command in "bench latency --input_len 128 --output_len 64 --num-requests 4" \
    "bench throughput --concurrency 16 --num-requests 32 --input_len 128 --output_len 64"; do
    read -ra words <<<"$command"
    echo "== ${words[1]}, over two hosts"
    both "$bin/nereid" "${words[0]}" "${words[1]}" "$two" --device cuda "${words[@]:2}" | grep -E "throughput|ms" || true
done
