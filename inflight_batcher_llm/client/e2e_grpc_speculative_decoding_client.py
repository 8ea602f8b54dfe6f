#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding by a client: a draft model proposes tokens, the target model verifies them."""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from utils import llm_client as llm  # noqa: E402


def add_options(parser):
    """Those of a request, of the models and of the rounds; without the prompt."""
    add = parser.add_argument
    add("-v", "--verbose", action="store_true", help="print the tokens of each round")
    add("--url-target", required=True)
    add("--url-draft", default=None, help="default: the target's")
    add("--preprocessor-model-name", default="preprocessing")
    add("--postprocessor-model-name", default="postprocessing")
    add("--draft-tensorrt-llm-model-name", default="tensorrt_llm")
    add("--target-tensorrt-llm-model-name", default="tensorrt_llm")
    add("-b", "--beam-width", type=int, default=1)
    add("--temperature", type=float, default=1.0)
    for name in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        add(name, type=float, default=None)
    add("-o", "--output-len", type=int, default=100)
    add("--num-draft-tokens", type=int, default=5)
    add("--end-id", type=int, default=None)
    add("--pad-id", type=int, default=None)
    add("--stop-words", nargs="+", default=[])
    add("--bad-words", nargs="+", default=[])
    add("--return-draft-model-draft-logits", action="store_true")
    add("--return-target-model-accepted-token-logits", action="store_true")


def check_options(parser, flags):
    if flags.beam_width != 1:
        parser.error("--beam-width: drafts are verified for one beam only")
    if flags.num_draft_tokens < 1 or flags.output_len < 1:
        parser.error("--num-draft-tokens and --output-len must be at least 1")


def parse():
    parser = llm.Parser(description=__doc__)
    add_options(parser)
    parser.add_argument("-p", "--prompt", required=True)
    parser.add_argument("--request-id", default="1")
    flags = parser.parse_args()
    check_options(parser, flags)
    return flags


class Prompt:
    """What preprocessing makes of the text."""

    def __init__(self, client, flags):
        model = llm.Model(client, "grpc", flags.preprocessor_model_name)
        got = model.infer({"QUERY": llm.strings([flags.prompt]), "REQUEST_OUTPUT_LEN": llm.column(flags.output_len),
                           "BAD_WORDS_DICT": llm.strings(flags.bad_words or [""]),
                           "STOP_WORDS_DICT": llm.strings(flags.stop_words or [""]),
                           "END_ID": llm.column(flags.end_id), "PAD_ID": llm.column(flags.pad_id)},
                          where_known=("END_ID", "PAD_ID"), request_id=flags.request_id)
        self.ids = got.as_numpy("INPUT_ID").ravel().astype(np.int32)
        self.stop, self.bad = got.as_numpy("STOP_WORDS_IDS"), got.as_numpy("BAD_WORDS_IDS")
        self.end_id, self.pad_id = self.one(got, "OUT_END_ID"), self.one(got, "OUT_PAD_ID")

    @staticmethod
    def one(result, name):
        value = result.as_numpy(name)
        return int(value.flat[0]) if value is not None and value.size else None

    def stop_words(self):
        """Lists of ids: the first row has them one after the other, the second where each ends."""
        rows = self.stop.reshape(-1, *self.stop.shape[-2:])[0]
        begin = 0
        for end in (int(e) for e in rows[1] if e > 0):
            yield rows[0][begin:end].tolist()
            begin = end


def generate(model, flags, prompt, ids, n, draft=None, logits=False):
    """ids with up to n new ones, and the logits of these or None."""
    def number(value):
        return llm.column(value, np.float32)

    inputs = {**llm.core_inputs(ids, n, prompt.end_id, prompt.pad_id), "stop_words_list": prompt.stop,
              "bad_words_list": prompt.bad, "temperature": number(flags.temperature),
              "repetition_penalty": number(flags.repetition_penalty), "presence_penalty": number(flags.presence_penalty),
              "frequency_penalty": number(flags.frequency_penalty),
              "draft_input_ids": np.array([draft], np.int32) if draft else None,
              "exclude_input_in_output": llm.column(False, np.bool_),
              "return_generation_logits": llm.column(True, np.bool_) if logits else None}
    got = model.infer(inputs, where_known=("exclude_input_in_output",), request_id=flags.request_id)
    out, length = got.as_numpy("output_ids")[0][0], int(got.as_numpy("sequence_length").flat[0])
    return out[:length].astype(np.int32), got.as_numpy("generation_logits") if logits else None


def show(flags, what, ids):
    if flags.verbose:
        print(f"{what}:\n{list(map(int, ids))}")


def show_logits(flags, what, logits):
    if flags.verbose and logits is not None:
        print(f"{what}: shape: {logits.shape}, value: {logits}")


def run_rounds(flags, prompt, draft_model, target_model):
    """All ids, the prompt's as well: drafts and one more token each round, until the target makes none."""
    ids, limit = prompt.ids, len(prompt.ids) + flags.output_len
    stop_words = list(prompt.stop_words())
    while True:
        draft, n_draft = [], min(flags.num_draft_tokens, limit - len(ids) - 1)
        if n_draft > 0:
            show(flags, "Draft model input ids", ids)
            guess, logits = generate(draft_model, flags, prompt, ids, n_draft, logits=flags.return_draft_model_draft_logits)
            draft = guess[len(ids):].tolist()
            show(flags, "draft_tokens", draft)
            show_logits(flags, "draft model draft tokens' logits", logits)
        show(flags, "Target model input ids", ids)
        out, logits = generate(target_model, flags, prompt, ids, len(draft) + 1, draft,
                               flags.return_target_model_accepted_token_logits)
        show(flags, "Target model output_ids", out)
        show_logits(flags, "target model accepted tokens' logits", logits)
        # Fewer than one token more than what was accepted: the end of the text.
        accepted = sum(1 for _ in iter_equal(draft, out[len(ids):].tolist()))
        is_end = len(out) - len(ids) <= accepted and len(out) - len(ids) < len(draft) + 1
        ids = out
        if len(ids) >= limit or is_end or any(w and ids[-len(w):].tolist() == w for w in stop_words):
            return ids


def iter_equal(a, b):
    for x, y in zip(a, b):
        if x != y:
            return
        yield x


def speculate(flags, target, other):
    """The text of flags.prompt and its answer; target and other: clients of the target's and of the draft's server."""
    prompt = Prompt(other, flags)
    ids = run_rounds(flags, prompt, llm.Model(other, "grpc", flags.draft_tensorrt_llm_model_name),
                     llm.Model(target, "grpc", flags.target_tensorrt_llm_model_name))
    post = llm.Model(target, "grpc", flags.postprocessor_model_name)
    got = post.infer({"TOKENS_BATCH": ids.reshape(1, 1, -1), "SEQUENCE_LENGTH": llm.column(len(ids))},
                     request_id=flags.request_id)
    return got.as_numpy("OUTPUT").ravel()[0].decode("utf-8", "replace")


def main():
    flags = parse()
    try:
        target = llm.connect(flags.url_target, "grpc")
        text = speculate(flags, target, llm.connect(flags.url_draft, "grpc") if flags.url_draft else target)
    except Exception as e:  # of the client library
        llm.fail(e)
    print("Final text:\n", text)


if __name__ == "__main__":
    main()
