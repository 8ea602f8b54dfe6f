#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every prompt of a data set twice: by the control model alone, and with drafts that a target model verifies. Their texts must
be equal. Drafts are brought by this client, or with --execute-bls-speculative-decoding by the BLS model."""
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "inflight_batcher_llm/client")]
import e2e_grpc_speculative_decoding_client as speculative  # noqa: E402
from utils import llm_client as llm  # noqa: E402

TOKENS_PER_WORD = 1.3  # what the guides' other scripts take


def parse():
    parser = llm.Parser(description=__doc__)
    speculative.add_options(parser)
    add = parser.add_argument
    add("--url-control", default=None, help="server of the control model; default: the target's")
    add("--max-input-len", type=int, required=True, help="longer prompts are left out (words x 1.3)")
    add("--dataset", required=True, help="JSON list of {input, instruction, output}")
    add("--bls-speculative-tensorrt-llm-model-name", default="tensorrt_llm_bls")
    add("--execute-bls-speculative-decoding", action="store_true", help="drafts are the business of the target's BLS model")
    add("--use-draft-logits", action="store_true", help="of the BLS model: verify by the drafts' logits")
    add("--return-context-logits", action="store_true", help="no effect: texts are compared")
    add("--return-generation-logits", action="store_true", help="of the BLS model")
    add("--return-perf-metrics", action="store_true", help="of the BLS model")
    add("--disable-output-comparison", action="store_true", help="an answer that is not empty will do")
    flags = parser.parse_args()
    speculative.check_options(parser, flags)
    return flags


def ask(model, flags, **more):
    """The whole text of a model that takes text."""
    inputs = {"text_input": llm.strings([flags.prompt]), "max_tokens": llm.column(flags.output_len),
              "stop_words": llm.strings(flags.stop_words or [""]), "bad_words": llm.strings(flags.bad_words or [""]),
              "end_id": llm.column(flags.end_id), "pad_id": llm.column(flags.pad_id), "stream": llm.column(False, np.bool_),
              "temperature": llm.column(flags.temperature, np.float32),
              "repetition_penalty": llm.column(flags.repetition_penalty, np.float32),
              "presence_penalty": llm.column(flags.presence_penalty, np.float32),
              "frequency_penalty": llm.column(flags.frequency_penalty, np.float32), **more}
    text = [r.as_numpy("text_output").ravel()[0] for r in model.stream(inputs, flags.request_id)]
    return b"".join(text).decode("utf-8", "replace")


def with_drafts(flags, target, other):
    if not flags.execute_bls_speculative_decoding:
        return speculative.speculate(flags, target, other)
    model = llm.Model(target, "grpc", flags.bls_speculative_tensorrt_llm_model_name)

    def given(flag):
        return llm.column(True, np.bool_) if flag else None

    return ask(model, flags, num_draft_tokens=llm.column(flags.num_draft_tokens), use_draft_logits=given(flags.use_draft_logits),
               return_generation_logits=given(flags.return_generation_logits), return_perf_metrics=given(flags.return_perf_metrics))


def compare(flags, work, control, target, other):
    """How many prompts failed."""
    failed = 0
    for i, (flags.prompt, flags.output_len) in enumerate(work, 1):
        flags.request_id = str(i)
        wanted, got = ask(control, flags), with_drafts(flags, target, other)
        if flags.verbose:
            print(f"Prompt: {flags.prompt}\noutput_control: {wanted}\noutput_speculative: {got}", flush=True)
        if flags.disable_output_comparison:
            print("Not checking output")
            failed += got == ""
        elif wanted == got:
            print(f"{i}: Outputs match")
        else:
            failed += 1
            print(f"{i}: Outputs don't match\nPrompt:\n{flags.prompt}\nOutput control:\n{wanted}\nOutput speculative:\n{got}")
    return failed


def main():
    flags = parse()
    work = [(prompt, max(1, int(len(answer.split(" ")) * TOKENS_PER_WORD))) for prompt, answer in llm.read_prompts(flags.dataset)
            if int(len(prompt.split(" ")) * TOKENS_PER_WORD) <= flags.max_input_len]
    if not work:
        sys.exit("no prompt is short enough for --max-input-len")
    try:
        clients = {}
        for url in (flags.url_target, flags.url_draft, flags.url_control):
            if url and url not in clients:
                clients[url] = llm.connect(url, "grpc")
        target = clients[flags.url_target]
        control = llm.Model(clients.get(flags.url_control, target), "grpc", "ensemble")
        failed = compare(flags, work, control, target, clients.get(flags.url_draft, target))
    except Exception as e:  # of the client library
        llm.fail(e)
    print(f"failed/total: {failed}/{len(work)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
