#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of random ids as a file for load generators (perf_analyzer --input-data): input_data.json."""
import json

import gpt_request
from gpt_request import llm


def main():
    parser = llm.Parser(description=__doc__)
    gpt_request.add_options(parser, output_len=10)
    parser.add_argument("-s", "--start_len", type=int, default=8)
    parser.add_argument("--num_samples", type=int, default=10000)
    flags = parser.parse_args()
    rows = []
    for i in range(flags.num_samples):
        arrays = gpt_request.inputs(flags, gpt_request.prompts(flags.batch_size, flags.start_len, seed=i))
        rows.append({name: {"content": a.ravel().tolist(), "shape": list(a.shape[1:])} for name, a in arrays.items()})
    with open("input_data.json", "w", encoding="utf-8") as f:
        json.dump({"data": rows}, f, indent=4)


if __name__ == "__main__":
    main()
