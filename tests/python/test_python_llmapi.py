# SPDX-License-Identifier: Apache-2.0
"""The LLM API under the name tensorrt_llm, as the published quick start writes it."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tinymodel"))
import adapter  # noqa: E402

START = """
import asyncio, sys
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi import GuidedDecodingParams, KvCacheConfig
model = sys.argv[1]
def main():
"""
OPEN = """
    llm = LLM(model=model, max_beam_width=4, dtype="float16", guided_decoding_backend="xgrammar",
              kv_cache_config=KvCacheConfig(enable_block_reuse=True, max_tokens=4096))
"""


@pytest.fixture(scope="module")
def say(model, build_folder):
    path = subprocess.run([sys.executable, "-m", "nereid", "compat"], capture_output=True, text=True, check=True,
                          env=dict(os.environ, PYTHONPATH=str(build_folder / "python"))).stdout.strip()

    def run(body, status=0):
        """Lines on the standard output, and what stands on the other."""
        text = START + "\n".join("    " + line for line in body.strip("\n").split("\n")) + "\nif __name__ == '__main__': main()\n"
        done = subprocess.run([sys.executable, "-c", text, model], capture_output=True, text=True, timeout=120,
                              env=dict(os.environ, PYTHONPATH=path))
        assert done.returncode == status, done.stderr
        return done.stdout.splitlines(), done.stderr
    return run


def with_llm(body):
    return OPEN.replace("\n    ", "\n") + body


def test_the_quick_start(say):
    lines, _ = say("""
prompts = ["Hello, my name is", "The president of the United States is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
llm = LLM(model=model)
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
""")
    assert [line.split(", Generated text: ")[0] for line in lines] == [
        "Prompt: 'Hello, my name is'", "Prompt: 'The president of the United States is'"]
    assert any(len(line.split(", Generated text: ")[1]) > 4 for line in lines)  # tokens are drawn: one of them may end at once


def test_answers_one_way_and_the_other(say):
    lines, said = say(with_llm("""
ids = lambda o: [a.token_ids for a in o.outputs]
plain = llm.generate("Hello")
async def both():
    answer = await llm.generate_async("Hello")
    return ids(answer), sum([1 async for o in llm.generate_async("Hello", streaming=True)])
answer, n_pieces = asyncio.run(both())
print(len(plain.outputs[0].token_ids) <= 32, answer == ids(plain) == ids(llm.generate_async("Hello").result()))
print(n_pieces, [ids(o) for o in llm.generate_async("Hello", streaming=True)][-1] == ids(plain))
llm.shutdown()
"""))
    assert lines[0] == "True True" and lines[1].endswith(" True") and int(lines[1].split()[0]) > 1
    assert "tensorrt_llm.LLM: dtype has no effect" in said


def test_drafts_change_no_answer(say):
    lines, _ = say("""
from tensorrt_llm import BuildConfig
from tensorrt_llm.llmapi import LookaheadDecodingConfig, MTPDecodingConfig, NGramDecodingConfig
from tensorrt_llm.llmapi.drafts import text_of
def answers(**how):
    with LLM(model=model, **how) as llm:
        return [o.outputs[0].token_ids for o in llm.generate(["one two one two one two", "a b c"], SamplingParams(max_tokens=24, ignore_eos=True))]
plain = answers(build_config=BuildConfig(max_batch_size=2, max_beam_width=1))
for config in (NGramDecodingConfig(max_draft_len=3, max_matching_ngram_size=2), {"decoding_type": "NGram", "max_draft_len": 3},
               LookaheadDecodingConfig(max_window_size=3, max_ngram_size=3, max_verification_set_size=5)):
    print(answers(speculative_config=config) == plain, text_of(config))
print(text_of(MTPDecodingConfig(num_nextn_predict_layers=2)))
""")
    assert [line[:4] for line in lines[:3]] == ["True"] * 3
    assert [json.loads(line.removeprefix("True ")) for line in lines] == [
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}, {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "lookahead", "lookahead_window_size": 3, "lookahead_ngram_size": 3, "lookahead_verification_set_size": 5},
        {"method": "mtp", "num_speculative_tokens": 2}]


def test_adapters_by_request(say, tmp_path):
    path = adapter.write("llama", tmp_path / "a", "float16", seed="one")
    lines, _ = say(f"""
from tensorrt_llm.executor import LoRARequest
import nereid
llm = LLM(model=model, enable_lora=True)
params = SamplingParams(max_tokens=8, ignore_eos=True)
ids = lambda outs: [o.outputs[0].token_ids for o in outs]
one = LoRARequest("one", 7, {str(path)!r})
plain, with_one = ids(llm.generate(["a b", "c"], params)), ids(llm.generate(["a b", "c"], params, lora_request=one))
mixed = ids(llm.generate(["a b", "c"], params, lora_request=[None, one]))
later = llm.generate_async("a b", params, lora_request=one).result().outputs[0].token_ids
print(plain != with_one, mixed == [plain[0], with_one[1]], later == with_one[0])
for wrong in (lambda: LoRARequest("two", 2, "/nowhere"), lambda: llm.generate("a", params, lora_request=LoRARequest("two", 7, model)),
              lambda: llm.generate(["a"], [params], lora_request=[one, one]), lambda: LoRARequest("two", 0, model)):
    try: wrong()
    except ValueError as e: print(e)
""")
    assert lines[0] == "True True True" and lines[1] == "lora_path (/nowhere) does not exist." and lines[2] == f"lora_int_id 7 is that of '{path}'"
    assert lines[3:] == ["1 sampling_params and 2 of lora_request", "lora_int_id is 0, expected a number above 0"]


@pytest.mark.parametrize("body, error", [
    ("MTPDecodingConfig(num_nextn_predict_layers=2)", "no MTP|mtp"), ("EagleDecodingConfig(max_draft_len=3)", "EagleDecodingConfig needs speculative_model"),
    ("EagleDecodingConfig(max_draft_len=3, speculative_model='/nowhere')", "/nowhere"), ("{'decoding_type': 'Foo'}", "decoding_type is one of"),
    ("{'decoding_type': 'NGram', 'max_window_size': 3}", "'max_window_size' is not known"), ("3", "expected a decoding config, got int"),
    ("NGramDecodingConfig(max_draft_len=0)", "num_speculative_tokens")])
def test_wrong_drafts_are_errors(say, body, error):
    _, said = say(f"""
from tensorrt_llm.llmapi import EagleDecodingConfig, MTPDecodingConfig, NGramDecodingConfig
LLM(model=model, speculative_config={body})
""", status=1)
    assert re.search(error, said.splitlines()[-1]), said


def test_what_is_asked_for_is_passed_on(say):
    lines, _ = say(with_llm("""
def n(**how): return [len(o.outputs) for o in llm.generate(["a", "b"], SamplingParams(**how))]
print(n(n=2, top_k=50), n(n=1, best_of=3, top_k=50), n(n=2, best_of=4, use_beam_search=True))
print(llm.generate("a", SamplingParams(guided_decoding=GuidedDecodingParams(regex="[0-9]{5}"))).outputs[0].text.isdigit())
first = llm.generate("a", SamplingParams(max_tokens=1)).outputs[0].token_ids[0]
ended = llm.generate("a", SamplingParams(end_id=first)).outputs[0]
print(len(ended.token_ids), ended.finish_reason)
tried = llm.generate("a", SamplingParams(n=1, best_of=4, top_k=50, seed=3)).outputs[0].cumulative_logprob
print(tried == max(o.cumulative_logprob for o in llm.generate("a", SamplingParams(n=4, top_k=50, seed=3, logprobs=0)).outputs))
"""))
    assert lines[:2] == ["[2, 2] [1, 1] [2, 2]", "True"] and lines[2].endswith(" stop") and int(lines[2].split()[0]) <= 1
    assert lines[3] == "True"


@pytest.mark.parametrize("body, error", [
    ("LLM(model=model, no_such=3)", "'no_such' is no known field"), ("LLM(model='/nowhere/x')", "/nowhere/x"),
    ("LLM(model=model).generate('a', SamplingParams(top_p=3.0))", "top_p must be in (0, 1], got 3"),
    ("LLM(model=model).generate_async('a', SamplingParams(top_p=3.0)).result()", "top_p must be in (0, 1], got 3"),
    ("LLM(model=model).generate('a', SamplingParams(n=3, best_of=2))", "best_of is 2, expected at least n (3)"),
    ("LLM(model=model).generate('a', SamplingParams(guided_decoding=GuidedDecodingParams(regex='a', json='{}')))", "expected one of")])
def test_what_cannot_be_is_an_error(say, body, error):
    assert error in say(body, status=1)[1]
