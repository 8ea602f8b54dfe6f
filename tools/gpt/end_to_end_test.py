#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The three models one after the other, and the ensemble: both ways must give the same text."""
import sys

import numpy as np

import gpt_request
from gpt_request import llm

PROMPTS = ["Born in north-east France, Soyer trained as a", "What is machine learning?"]


def parse():
    parser = llm.Parser(description=__doc__)
    gpt_request.add_options(parser)
    parser.add_argument("-c", "--concurrency", type=int, default=1, help="connections of http")
    parser.add_argument("--tokenizer_dir", default=None, help="not needed: the server tokenizes")
    return parser.parse_args()


def sampling(flags, names):
    values = {"beam": flags.beam_width, "top_k": flags.topk}
    return {**{names[k]: llm.column(v) for k, v in values.items()}, names["top_p"]: llm.column(flags.topp, np.float32)}


def three_models(client, flags, prompt):
    texts = np.array([[prompt.encode()]], dtype=object)
    none = np.array([[b""]], dtype=object)
    pre = llm.Model(client, flags.protocol, "preprocessing")
    got = pre.infer({"QUERY": texts, "REQUEST_OUTPUT_LEN": llm.column(flags.output_len), "BAD_WORDS_DICT": none,
                     "STOP_WORDS_DICT": none}, where_known=("BAD_WORDS_DICT", "STOP_WORDS_DICT"))
    ids = got.as_numpy("INPUT_ID")
    core = llm.Model(client, flags.protocol, "tensorrt_llm")
    got = core.infer({**llm.core_inputs(ids, flags.output_len),
                      **sampling(flags, {"beam": "beam_width", "top_k": "runtime_top_k", "top_p": "runtime_top_p"})})
    post = llm.Model(client, flags.protocol, "postprocessing")
    got = post.infer({"TOKENS_BATCH": got.as_numpy("output_ids"), "SEQUENCE_LENGTH": got.as_numpy("sequence_length")},
                     where_known=("SEQUENCE_LENGTH",))
    return [t.decode("utf-8", "replace") for t in got.as_numpy("OUTPUT").ravel()]


def ensemble(client, flags, prompt):
    model = llm.Model(client, flags.protocol, "ensemble")
    none = np.array([[b""]], dtype=object)
    if "INPUT_0" in model.types:  # all_models/gpt
        names, top, output = ("INPUT_0", "INPUT_1", "INPUT_2", "INPUT_3"), ("runtime_top_k", "runtime_top_p"), "OUTPUT_0"
    else:
        names, top, output = ("text_input", "max_tokens", "bad_words", "stop_words"), ("top_k", "top_p"), "text_output"
    begin = llm.now()
    got = model.infer({**dict(zip(names, (np.array([[prompt.encode()]], dtype=object), llm.column(flags.output_len), none, none))),
                       **sampling(flags, {"beam": "beam_width", "top_k": top[0], "top_p": top[1]})})
    return [t.decode("utf-8", "replace") for t in got.as_numpy(output).ravel()], (llm.now() - begin) * 1e3


def main():
    flags = parse()
    differ = False
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, flags.concurrency)
        for prompt in PROMPTS[:max(1, flags.batch_size)]:
            single = three_models(client, flags, prompt)
            print("============After postprocessing============")
            for text in single:
                print(text)
            print("===========================================\n\n\n")
            whole, latency = ensemble(client, flags, prompt)
            print("============After ensemble============")
            print(f"[INFO] Latency: {latency:.3f} ms")
            print(f"Input: {prompt}")
            for text in whole:
                print(f"Output: {text}")
            differ |= single != whole
    except Exception as e:  # of the client library
        llm.fail(e)
    if differ:
        sys.exit("the ensemble's text is not that of its three models")


if __name__ == "__main__":
    main()
