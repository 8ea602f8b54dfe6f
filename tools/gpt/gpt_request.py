# SPDX-License-Identifier: Apache-2.0
"""The requests of the scripts in this folder: a batch of prompts of one length to tensorrt_llm."""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from utils import llm_client as llm  # noqa: E402

HIGHEST_ID = 50255
# What releases of the backend do not all have: left out where the model does not name it. All but the
# last; a server of the published form takes that one undeclared.
OPTIONAL = ["len_penalty", "repetition_penalty", "min_length", "presence_penalty", "frequency_penalty", "random_seed",
            "output_log_probs"]


def add_options(parser, batch=8, output_len=10):
    llm.add_connection(parser)
    add = parser.add_argument
    add("-b", "--batch_size", type=int, default=batch)
    add("-beam", "--beam_width", type=int, default=1)
    add("-topk", "--topk", type=int, default=1)
    add("-topp", "--topp", type=float, default=0.0)
    add("-o", "--output_len", type=int, default=output_len)


def prompts(batch, length, seed=0, highest=HIGHEST_ID):
    return np.random.default_rng(seed).integers(0, highest, (batch, length), dtype=np.int32)


def inputs(flags, ids):
    """ids [rows, n]; the sixteen inputs of the request."""
    batch, n = ids.shape

    def col(value, dtype=np.int32):
        return llm.column(value, dtype, batch)

    return {"input_ids": ids, "input_lengths": col(n), "request_output_len": col(flags.output_len), "pad_id": col(0),
            "end_id": col(2), "beam_width": col(flags.beam_width), "temperature": col(1.0, np.float32),
            "runtime_top_k": col(flags.topk), "runtime_top_p": col(flags.topp, np.float32),
            "len_penalty": col(1.0, np.float32), "repetition_penalty": col(1.0, np.float32), "min_length": col(1),
            "presence_penalty": col(0.0, np.float32), "frequency_penalty": col(0.0, np.float32),
            "random_seed": col(0, np.uint64), "output_log_probs": col(False, np.bool_)}


def is_decoupled(model):
    if model.protocol == "http":
        config = model.client.get_model_config(model.name)
    else:
        config = model.client.get_model_config(model.name, as_json=True)["config"]
    return config.get("model_transaction_policy", {}).get("decoupled", False)


def requests(model, flags, ids):
    """What is sent for a batch: tensors of one request, or of one for each row. A model that is not decoupled answers a
    request once and takes one row; rows that are sent at once run as a batch all the same."""
    alone = len(ids) > 1 and not is_decoupled(model)
    rows = [ids[i:i + 1] for i in range(len(ids))] if alone else [ids]
    return [model.tensors(inputs(flags, row), OPTIONAL) for row in rows]


def send(model, tensors):
    """Requests at once; their answers in this order."""
    return [model.client.infer(model.name, tensors[0])] if len(tensors) == 1 else send_async(model, tensors)


def send_async(model, tensors):
    """The same by calls that do not wait. Over gRPC answers come in a callback."""
    if model.protocol == "http":
        return [p.get_result() for p in [model.client.async_infer(model.name, t) for t in tensors]]
    answers = llm.queue.Queue()
    for i, t in enumerate(tensors):
        model.client.async_infer(model.name, t, lambda result, error, i=i: answers.put((i, result, error)))
    got = [None] * len(tensors)
    for _ in tensors:
        i, got[i], error = answers.get()
        if error:
            raise error
    return got
