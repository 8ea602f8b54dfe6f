# SPDX-License-Identifier: Apache-2.0
"""tensorrt_llm_bls with a draft model: the answer is the one of tensorrt_llm alone, whatever the draft model proposes."""
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import repositories
from llm_server import Server
from test_repositories import Repository

TEXT, N = "the quick brown fox", 24
ASK = {"text_input": TEXT, "max_tokens": N, "bad_words": "", "stop_words": ""}


class WithDraft(Repository):
    """A release's repository, with a model tensorrt_llm_draft beside the others."""

    def __init__(self, tag, folder, engine, draft, **values):
        self.tag, self.client = tag, None
        repo = repositories.write(tag, folder / "repo", *engine, tensorrt_llm_draft_model_name="tensorrt_llm_draft", **values)
        shutil.copytree(repo / "tensorrt_llm", repo / "tensorrt_llm_draft")
        config = repo / "tensorrt_llm_draft/config.pbtxt"
        config.write_text(config.read_text().replace('name: "tensorrt_llm"', 'name: "tensorrt_llm_draft"')
                          .replace(str(engine[0]), str(draft[0])))
        super(Repository, self).__init__(repo, folder)

    def steps(self):
        """Requests that (tensorrt_llm, tensorrt_llm_draft) have answered, once none is added: one is counted a moment after its answer."""
        def counts():
            return [self.request(f"/v2/models/{m}/stats")[1]["model_stats"][0]["inference_stats"]["success"]["count"]
                    for m in ("tensorrt_llm", "tensorrt_llm_draft")]
        old, new = None, counts()
        while new != old:
            time.sleep(0.1)
            old, new = new, counts()
        return new


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The same model in two bits a weight: some of its tokens are others."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, repositories.ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--format", "gguf",
                    "--quant", "q2_k", "--out", folder / "model.gguf"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([repositories.BIN / "nereid", "build", folder / "model.gguf", "--output_dir", folder / "engine",
                    "--gather_all_token_logits"], check=True, capture_output=True)
    return folder / "engine", None


@pytest.fixture(scope="module", params=["v0.9.0 other", "v0.19.0 same", "v0.19.0 other"])
def s(request, engine, other, tmp_path_factory):
    tag, draft = request.param.split()
    s = WithDraft(tag, tmp_path_factory.mktemp("draft"), engine, engine if draft == "same" else other,
                  decoupled_mode="false", max_beam_width="4", exclude_input_in_output="true")
    s.agrees = draft == "same"
    try:
        yield s.open()
    finally:
        s.close()


def ask(s, **more):
    status, answer = s.generate({**ASK, **more}, "tensorrt_llm_bls")
    return answer if status == 200 else answer["error"]


@pytest.mark.parametrize("n_draft", [1, 4])
def test_the_answer_is_the_one_without_drafts(s, n_draft):
    for text in (TEXT, "one two three", "hello"):
        plain = ask(s, text_input=text)["text_output"]
        before = s.steps()
        assert ask(s, text_input=text, num_draft_tokens=n_draft)["text_output"] == plain
        fewest = -(-N // (n_draft + 1))
        target, draft = (b - a for a, b in zip(before, s.steps()))
        assert draft in (target, target - 1) and target >= fewest, (target, draft)  # the last token needs no draft
        assert target <= fewest + 1 if s.agrees else target > N // 2, target  # what does not hold ends a round


def test_the_prompt_stands_in_front_where_it_is_asked_for(s):
    if s.tag == "v0.19.0":
        more = {"exclude_input_in_output": False}
        text = ask(s, num_draft_tokens=4, **more)["text_output"]
        assert text == ask(s, **more)["text_output"] and text.startswith(TEXT)


def test_logits_of_the_draft_model(s):
    text = ask(s, num_draft_tokens=4, use_draft_logits=True)["text_output"]
    assert text and (not s.agrees or text == ask(s)["text_output"])


def test_what_is_counted_is_of_the_whole_answer(s):
    plain = ask(s, return_log_probs=True)
    more = {"return_perf_metrics": True} if s.tag == "v0.19.0" else {}
    answer = ask(s, num_draft_tokens=4, return_log_probs=True, **more)
    assert answer["output_log_probs"] == pytest.approx(plain["output_log_probs"], abs=1e-3)
    assert answer["cum_log_probs"] == pytest.approx(plain["cum_log_probs"], abs=1e-2)
    if more:
        proposed, accepted = answer["total_draft_tokens"], answer["total_accepted_draft_tokens"]
        assert proposed > N // 2 and (accepted == proposed if s.agrees else accepted < proposed)
        times = [answer[n] for n in ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")]
        assert times == sorted(times) and times[2] < times[3]
        assert answer["acceptance_rate"] == pytest.approx(accepted / proposed)


def test_stop_words_end_the_answer_also_across_rounds(s):
    plain = ask(s)["text_output"]
    words = [w for w in (plain[i:i + 2] for i in range(len(plain) - 1)) if w.isascii() and w.isprintable()]
    cut = 0
    for word in words:
        answers = [ask(s, stop_words=word, num_draft_tokens=n)["text_output"] for n in (0, 1, 3)]
        assert answers == [answers[0]] * 3, word
        cut += answers[0] != plain
    assert cut > 0


def test_an_answer_at_the_engines_limit_is_the_one_without_drafts(s):
    """Each round's prompt is the answer so far: the last ones would be longer than a prompt may be."""
    fits, too_long = 1, 4096
    while too_long - fits > 1:
        n = (fits + too_long) // 2
        fits, too_long = (n, too_long) if isinstance(ask(s, text_input="one " * n, max_tokens=1), dict) else (fits, n)
    assert 1 < fits < 4000
    cut = 0
    for less in (0, 1, 4):
        text = "one " * (fits - less)
        plain = ask(s, text_input=text, return_log_probs=True)
        answer = ask(s, text_input=text, return_log_probs=True, num_draft_tokens=4)
        assert answer["text_output"] == plain["text_output"], less
        assert np.size(answer["output_log_probs"]) == np.size(plain["output_log_probs"])
        cut += np.size(plain["output_log_probs"]) < N
    assert cut > 0


def test_a_draft_model_that_is_not_there_is_named(engine, tmp_path):
    repo = repositories.write("v0.19.0", tmp_path / "repo", *engine, tensorrt_llm_draft_model_name="nobody", decoupled_mode="false")
    s = Server(repo, tmp_path)
    try:
        s.wait_ready()
        status, answer = s.generate({**ASK, "num_draft_tokens": 2}, "tensorrt_llm_bls")
        assert status == 404 and "'nobody' is not found" in answer["error"], answer
        assert s.generate(ASK, "tensorrt_llm_bls")[0] == 200
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("more, words", [
    ({"beam_width": 2}, "num_draft_tokens needs beam_width 1, got 2"),
    ({"return_generation_logits": True}, "return_generation_logits is not supported with num_draft_tokens"),
    ({"num_draft_tokens": 9}, "a draft of the model 'tensorrt_llm_draft': "),
    ({"num_draft_tokens": 9}, "draft_input_ids has 9 tokens, the engine was built with max_draft_len 8"),
    ({"max_tokens": 0}, "max_tokens must be a single value > 0"),
    ({"max_tokens": 2 << 20}, "with num_draft_tokens at most"),
])
def test_what_drafts_cannot_do_is_refused_by_name(s, more, words):
    status, answer = s.generate({**ASK, "num_draft_tokens": 2, **more}, "tensorrt_llm_bls")
    assert status == 400 and words in answer["error"], answer
    assert ask(s)["text_output"]
