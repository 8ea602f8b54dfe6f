#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A text to the model tensorrt_llm, tokenized here; its completion, and how long it took."""
import numpy as np

import gpt_request
from gpt_request import llm


def parse():
    parser = llm.Parser(description=__doc__)
    gpt_request.add_options(parser, batch=1)
    add = parser.add_argument
    add("-t", "--text", default="Born in north-east France, Soyer trained as a")
    add("-c", "--concurrency", type=int, default=1, help="connections of http")
    add("--tokenizer_dir", required=True)
    add("--tokenizer_type", default="auto")
    return parser.parse_args()


def main(is_async=False):
    flags = parse()
    tokenizer = llm.open_tokenizer(flags.tokenizer_dir, flags.tokenizer_type)
    ids = tokenizer.encode(flags.text)
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, max(flags.concurrency, flags.batch_size))
        model = llm.Model(client, flags.protocol, "tensorrt_llm")
        batch = np.array([ids] * flags.batch_size, np.int32)
        tensors = gpt_request.requests(model, flags, batch)
        begin = llm.now()
        result = (gpt_request.send_async if is_async else gpt_request.send)(model, tensors)[0]
        latency = round((llm.now() - begin) * 1e3, 3)
        output = result.as_numpy("output_ids")
        lengths = result.as_numpy("sequence_length")
    except Exception as e:  # of the client library
        llm.fail(e)
    n = int(lengths[0][0]) if lengths is not None else output.shape[2]
    print(f"[INFO] Latency: {latency} ms")
    print(f"Input: {flags.text}")
    print(f"Output: {tokenizer.decode(output[0][0][len(ids):n])}")


if __name__ == "__main__":
    main()
