#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends requests at once until some are refused because the queue is full; the exit status is 1 if none was. Further options are
those of inflight_batcher_llm_client.py."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "inflight_batcher_llm/client")]
import inflight_batcher_llm_client as core  # noqa: E402
from utils import llm_client as llm  # noqa: E402

FULL = ("Maximum queue size of", "Exceeds maximum queue size")  # the engine's queue, and the server's


def parse():
    """-p is the protocol here; what this script does not know goes to the client."""
    parser = llm.Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("-u", "--url", help="server; localhost:8000 (http) or localhost:8001 (grpc)")
    parser.add_argument("-p", "--protocol", type=str.lower, choices=["http", "grpc"], default="http")
    parser.add_argument("--num-requests", type=int, required=True)
    own, rest = parser.parse_known_args()
    if own.num_requests < 1:
        parser.error("--num-requests must be at least 1")
    flags = core.parse(["--end-id", "-1", *rest])
    flags.url, flags.protocol, flags.num_requests = own.url, own.protocol, own.num_requests
    flags.streaming = own.protocol == "grpc"
    return flags


def errors_of(flags, client, tensors, outputs):
    """What was said to each request that was refused."""
    said = []

    def keep(finish):
        try:
            finish()
        except Exception as e:  # of the client library
            said.append(str(e))

    options = {"outputs": outputs, "request_id": flags.request_id}
    if flags.protocol == "http":
        for sent in [client.async_infer(flags.model_name, tensors, **options) for _ in range(flags.num_requests)]:
            keep(sent.get_result)
    else:
        stream = llm.Stream(client)
        for _ in range(flags.num_requests):
            stream.send(flags.model_name, tensors, **options)
        for _ in range(flags.num_requests):
            keep(lambda: list(stream))  # up to the last answer of one of them
        stream.close()
    return said


def main():
    flags = parse()
    _, ids, end_id, pad_id = core.read_prompt(flags)
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, flags.num_requests)
        model = llm.Model(client, flags.protocol, flags.model_name)
        tensors = model.tensors(core.request_inputs(flags, ids, end_id, pad_id))
        said = errors_of(flags, client, tensors, model.requested(flags.requested_outputs))
    except Exception as e:  # of the client library
        llm.fail(e)
    refused = [text for text in said if any(full in text for full in FULL)]
    print(f"{len(refused)} of {flags.num_requests} requests were refused because the queue was full")
    if len(said) > len(refused):
        print("others failed:", next(text for text in said if text not in refused))
    sys.exit(not refused)


if __name__ == "__main__":
    main()
