# SPDX-License-Identifier: Apache-2.0
"""nereid.LLM: what it answers, how it waits and how it ends."""
import gc
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS = ["the quick brown fox", "hello", "one two three four five six", "x"]
GREEDY = dict(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def nereid():
    import nereid
    return nereid


@pytest.fixture(scope="module")
def llm(nereid, model):
    with nereid.LLM(model, n_threads=1, max_batch_size=8) as one:
        yield one


def in_process(build_folder, script, *args, **more):
    """Runs a script in an interpreter of its own."""
    env = dict(os.environ, PYTHONPATH=str(build_folder / "python"))
    return subprocess.run([sys.executable, "-c", textwrap.dedent(script), *map(str, args)], capture_output=True,
                          text=True, env=env, timeout=120, **more)


# ---- answers ----


def test_texts_are_those_of_the_program(nereid, llm, model, build_folder):
    said = subprocess.run([build_folder / "bin/nereid", "run", model, "-p", PROMPTS[0], "-n", "12", "--temperature",
                           "0", "--quiet"], capture_output=True, check=True).stdout
    out = llm.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=12, temperature=0))
    assert out.text.encode() + b"\n" == said


def test_prompts_together_answer_as_each_alone(nereid, llm):
    params = nereid.SamplingParams(max_tokens=20, **GREEDY)
    together = llm.generate(PROMPTS, params)
    alone = [llm.generate(p, params) for p in PROMPTS]
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]
    assert [o.prompt for o in together] == PROMPTS
    assert all(len(o.outputs[0].token_ids) == 20 and o.outputs[0].finish_reason == "length" for o in together)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Of so many tokens that a head of two steps leaves most out."""
    folder = tmp_path_factory.mktemp("wide") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--vocab", "8192", "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.parametrize("how", [dict(temperature=0), dict(temperature=0.9, top_k=5, seed=3), dict(temperature=0, logprobs=2),
                                 dict(temperature=0, repetition_penalty=1.3, frequency_penalty=0.4),
                                 dict(temperature=0, logit_bias={7: 1.5, 4000: -3})], ids=str)
def test_a_head_in_two_steps_makes_the_same_choices(nereid, wide, how):
    params = nereid.SamplingParams(max_tokens=60, ignore_eos=True, **how)
    with nereid.LLM(wide, n_threads=1, max_batch_size=4) as one:
        want = one.generate(PROMPTS, params)
    with nereid.LLM(wide, n_threads=1, max_batch_size=4, two_step_head=True) as two:
        got = two.generate(PROMPTS, params)
    assert [o.outputs[0] for o in got] == [o.outputs[0] for o in want]


def test_ten_thousand_greedy_tokens_are_the_same_with_a_head_in_two_steps(nereid, wide):
    params = nereid.SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)
    prompts = [[1, 5 + i, 300 + 7 * i] for i in range(52)]
    said = []
    for two in (False, True):
        with nereid.LLM(wide, n_threads=2, max_batch_size=8, two_step_head=two) as llm:
            said.append([o.outputs[0].token_ids for o in llm.generate(prompts, params)])
    assert said[0] == said[1] and sum(map(len, said[0])) == 10400
    assert len({t for ids in said[0] for t in ids}) > 500  # not one token for ever


def test_a_head_in_two_steps_is_refused_where_there_is_none(nereid, model, wide, tmp_path):
    with pytest.raises(nereid.UnsupportedError, match="two_step_head: not with this engine: compute_dtype is float32"):
        nereid.LLM(wide, two_step_head=True, compute_dtype="float32")
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--format", "gguf", "--quant", "q8_0", "--out",
                    tmp_path / "q.gguf"], check=True)
    with pytest.raises(nereid.UnsupportedError, match="two_step_head needs an LM head of 16-bit or float32 .*, got q8_0"):
        nereid.LLM(tmp_path / "q.gguf", two_step_head=True)


def test_token_ids_are_prompts_too(nereid, llm):
    params = nereid.SamplingParams(max_tokens=5, **GREEDY)
    ids = llm.tokenizer.encode(PROMPTS[0])
    one, (two,) = llm.generate(ids, params), llm.generate([ids], params)
    assert one.outputs == two.outputs == llm.generate(PROMPTS[0], params).outputs
    assert one.prompt is None and one.prompt_token_ids == ids


def test_pieces_are_the_text(nereid, llm):
    params = nereid.SamplingParams(max_tokens=16, **GREEDY)
    whole = llm.generate(PROMPTS, params)
    texts, ids, ends = ["" for _ in PROMPTS], [[] for _ in PROMPTS], [None for _ in PROMPTS]
    order = []
    for piece in llm.stream(PROMPTS, params):
        texts[piece.prompt] += piece.text
        ids[piece.prompt] += piece.token_ids
        ends[piece.prompt] = piece.finish_reason
        order.append(piece.prompt)
    assert texts == [o.text for o in whole] and ids == [o.outputs[0].token_ids for o in whole]
    assert ends == ["length"] * len(PROMPTS)
    tries = (order if i == 0 else [piece.prompt for piece in llm.stream(PROMPTS, params)] for i in range(10))
    assert any(order != sorted(order) for order in tries)  # they ran together, unless the machine was slow to ask


def test_a_stop_text_ends_the_answer_and_is_not_in_it(nereid, llm):
    text = llm.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=40, **GREEDY)).text
    stop = text[10:13]
    out = llm.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=40, stop=["never there", stop], **GREEDY))
    assert out.text == text[:text.index(stop)] and out.outputs[0].finish_reason == "stop"
    pieces = [p.text for p in llm.stream(PROMPTS[0], nereid.SamplingParams(max_tokens=40, stop=stop, **GREEDY))]
    assert "".join(pieces) == out.text


def test_probabilities_of_a_prompts_tokens(nereid, llm):
    """Those of generated tokens are the same once they are part of the prompt."""
    said = llm.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=6, logprobs=2, **GREEDY))
    ids = said.prompt_token_ids + said.outputs[0].token_ids
    out = llm.generate(ids, nereid.SamplingParams(max_tokens=1, prompt_logprobs=2, **GREEDY))
    n = len(ids)
    assert len(out.prompt_logprobs) == len(out.prompt_ranks) == len(out.prompt_top_logprobs) == n
    assert out.prompt_logprobs[0] is None and out.prompt_ranks[0] is None and out.prompt_top_logprobs[0] == []
    assert out.prompt_logprobs[n - 6:] == pytest.approx(said.outputs[0].logprobs, abs=1e-3) and out.prompt_ranks[n - 6:] == [1] * 6
    assert [[t for t, _ in best] for best in out.prompt_top_logprobs[n - 6:]] == [[t for t, _ in best] for best in said.outputs[0].top_logprobs]
    assert said.prompt_logprobs is None


@pytest.fixture(scope="module")
def whole(nereid, engine, model):
    """Of an engine that was built for logits and prompt tables."""
    with nereid.LLM(engine, tokenizer=model, n_threads=1, max_beam_width=2) as one:
        yield one


def test_logits_of_the_prompt_and_of_the_answer(nereid, whole):
    params = nereid.SamplingParams(max_tokens=6, return_context_logits=True, return_generation_logits=True, **GREEDY)
    out = whole.generate(PROMPTS[0], params)
    answer, n, vocab = out.outputs[0], len(out.prompt_token_ids), whole.info["vocab"]
    assert out.context_logits.shape == (n, vocab) and answer.generation_logits.shape == (6, vocab)
    assert answer.generation_logits.argmax(1).tolist() == answer.token_ids
    assert np.allclose(out.context_logits[-1], answer.generation_logits[0], atol=1e-4)
    again = whole.generate(out.prompt_token_ids + answer.token_ids[:5], params)  # what was answered is the prompt now
    assert np.allclose(again.context_logits[n - 1:], answer.generation_logits, atol=1e-3)
    *_, piece = whole.stream(PROMPTS[0], params)
    assert np.array_equal(piece.output.outputs[0].generation_logits, answer.generation_logits)
    stopped = whole.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=6, stop=answer.text[2], return_generation_logits=True, **GREEDY)).outputs[0]
    k = len(stopped.token_ids)
    assert 0 < k < 6 and np.array_equal(stopped.generation_logits, answer.generation_logits[:k]) and stopped.logprobs is None
    plain = whole.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=2))
    assert plain.context_logits is None and plain.outputs[0].generation_logits is None


def test_each_of_several_answers_has_logits_of_its_own(nereid, whole):
    params = nereid.SamplingParams(max_tokens=5, n=3, temperature=1.0, top_k=50, seed=7, return_generation_logits=True, ignore_eos=True)
    drawn = whole.generate(PROMPTS[0], params).outputs
    assert len({tuple(a.token_ids) for a in drawn}) > 1
    for a in drawn:
        best = np.argsort(-a.generation_logits, axis=1)[:, :50]
        assert a.generation_logits.shape[0] == 5 and all(t in row for t, row in zip(a.token_ids, best))
        assert np.array_equal(a.generation_logits[0], drawn[0].generation_logits[0])
    beams = whole.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=5, beam_width=2, return_generation_logits=True, **GREEDY)).outputs
    for b in beams:
        assert b.generation_logits.shape[0] == 5
        of_path = whole.generate(whole.tokenizer.encode(PROMPTS[0]) + b.token_ids, nereid.SamplingParams(max_tokens=1, return_context_logits=True))
        assert np.allclose(of_path.context_logits[-6:-1], b.generation_logits, atol=1e-3)


def test_logits_need_an_engine_that_keeps_them(nereid, llm):
    assert not llm.info["gather_context_logits"] and not llm.info["gather_generation_logits"]
    for name in ("context", "generation"):
        with pytest.raises(nereid.InvalidArgumentError, match=f"needs an engine built with gather_{name}_logits"):
            llm.generate("x", nereid.SamplingParams(**{f"return_{name}_logits": True}))


def test_rows_of_a_prompt_table_stand_for_tokens(nereid, whole, model):
    """A table of the embeddings of the prompt's own tokens: nothing changes."""
    vocab, params = whole.info["vocab"], nereid.SamplingParams(max_tokens=8, **GREEDY)
    ids = whole.tokenizer.encode(PROMPTS[0])
    data = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    at = json.loads(data[8:8 + size])["model.embed_tokens.weight"]
    rows = np.frombuffer(data[8 + size:][slice(*at["data_offsets"])], {"F32": np.float32, "F16": np.float16}[at["dtype"]]).reshape(at["shape"])
    prompt = {"prompt_token_ids": [vocab, vocab + 1, *ids[2:]], "prompt_embedding_table": rows[ids[:2]]}
    want = whole.generate(ids, params).outputs[0].token_ids
    assert whole.generate(prompt, params).outputs[0].token_ids == want
    other = dict(prompt, prompt_embedding_table=rows[ids[:2]][::-1].tolist())
    both = whole.generate([prompt, other], params)
    assert both[0].outputs[0].token_ids == want != both[1].outputs[0].token_ids
    with pytest.raises(ValueError, match=r"has the shape \[2, 3\], expected rows of"):
        whole.generate(dict(prompt, prompt_embedding_table=[[1, 2, 3]] * 2), params)
    with pytest.raises(nereid.InvalidArgumentError, match="9 rows, expected 1 to 8"):
        whole.generate(dict(prompt, prompt_embedding_table=rows[:9]), params)


def test_several_answers_and_their_probabilities(nereid, llm):
    params = nereid.SamplingParams(max_tokens=6, n=3, temperature=1.0, top_k=50, seed=7, logprobs=2, ignore_eos=True)
    out = llm.generate(PROMPTS[0], params)
    assert [c.index for c in out.outputs] == [0, 1, 2]
    assert len({tuple(c.token_ids) for c in out.outputs}) > 1
    for c in out.outputs:
        assert len(c.logprobs) == len(c.top_logprobs) == 6 and {len(t) for t in c.top_logprobs} == {2}
        assert c.cumulative_logprob == pytest.approx(sum(c.logprobs), abs=1e-3)
        assert all(best[0][1] >= best[1][1] for best in c.top_logprobs)
    again = llm.generate(PROMPTS[0], params)
    assert [c.token_ids for c in again.outputs] == [c.token_ids for c in out.outputs]


def test_beams(nereid, model):
    with nereid.LLM(model, n_threads=1, max_batch_size=8, max_beam_width=3) as wide:
        out = wide.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=5, beam_width=3, ignore_eos=True))
        assert len(out.outputs) == 3 and len({tuple(c.token_ids) for c in out.outputs}) == 3


def test_bias_chooses_the_token(nereid, llm):
    out = llm.generate(PROMPTS[0], nereid.SamplingParams(max_tokens=4, logit_bias={77: 100.0}, **GREEDY))
    assert out.outputs[0].token_ids == [77] * 4


def test_a_guide_is_kept_to(nereid, model):
    with nereid.LLM(model, n_threads=1, max_batch_size=4, guided_decoding=True) as guided:
        out = guided.generate("a number:", nereid.SamplingParams(max_tokens=30, guide=("regex", "[0-9]{3}-[a-c]{2}")))
        assert re.fullmatch("[0-9]{3}-[a-c]{2}", out.text)


def test_a_conversation(nereid, llm):
    if not llm.tokenizer.has_chat_template:
        with pytest.raises(nereid.UnsupportedError, match="chat template"):
            llm.chat([{"role": "user", "content": "Hi"}])
        return
    out = llm.chat([{"role": "user", "content": "Hi"}], nereid.SamplingParams(max_tokens=4, **GREEDY))
    assert len(out.outputs[0].token_ids) == 4 and "Hi" in out.prompt


# ---- errors ----


@pytest.mark.parametrize("field, value, error, text", [
    ("beam_width", 99, "InvalidArgumentError", "beam_width"), ("top_p", 7.0, "InvalidArgumentError", "top_p"),
    ("max_tokens", 0, "InvalidArgumentError", "max_new_tokens"), ("n", 0, "InvalidArgumentError", "num_return"),
    ("guide", ("regex", "a"), "UnsupportedError", "tokenizer_dir"), ("lora_id", 5, "Error", "LoRA|lora")])
def test_a_bad_field_is_named_and_the_next_call_works(nereid, llm, field, value, error, text):
    with pytest.raises(getattr(nereid, error), match=text) as caught:
        llm.generate(PROMPTS, nereid.SamplingParams(**{"max_tokens": 4, field: value}))
    assert isinstance(caught.value, RuntimeError) and caught.value.code > 0
    assert len(llm.generate("x", nereid.SamplingParams(max_tokens=3, **GREEDY)).outputs[0].token_ids) == 3


def test_values_of_a_wrong_type(nereid, llm):
    for wrong in ({"max_tokens": "many"}, {"temperature": "hot"}, {"seed": 1.5}):
        with pytest.raises(TypeError, match="expected a"):
            llm.generate("x", nereid.SamplingParams(**wrong))
    with pytest.raises(OverflowError, match="max_new_tokens must be between"):
        llm.generate("x", nereid.SamplingParams(max_tokens=1 << 40))


@pytest.mark.parametrize("prompts, what", [
    (b"abc", "bytes"), ([b"abc"], "bytes"), (bytearray(b"a"), "bytearray"), (5, "int"), (None, "NoneType"), ([None], "NoneType"), ([1.5], "float"),
    ([[1, 2.5]], "float"), ([["1"]], "str"), ({"prompt_token_ids": b"abc"}, "bytes")])
def test_what_is_no_prompt_is_refused(llm, prompts, what):
    with pytest.raises(TypeError, match=f"expected .*token ids, got {what}"):
        llm.generate(prompts)


def test_token_ids_of_numpy_are_ids(nereid, llm):
    numpy = pytest.importorskip("numpy")
    p = nereid.SamplingParams(max_tokens=3, **GREEDY)
    ids = numpy.array([5, 6, 7], dtype=numpy.int64)
    assert llm.generate(ids, p).outputs == llm.generate([5, 6, 7], p).outputs == llm.generate([ids], p)[0].outputs


def test_what_is_no_conversation_is_refused(llm):
    for wrong in ("hi", ["hi"], [["hi"]]):
        with pytest.raises(TypeError, match="expected messages"):
            llm.chat(wrong)


def test_a_model_that_is_not_there(nereid, tmp_path):
    with pytest.raises(nereid.NotFoundError, match="does not exist"):
        nereid.LLM(tmp_path / "nothing")
    with pytest.raises(nereid.Error):
        nereid.LLM(tmp_path)
    with pytest.raises(LookupError):
        nereid.Tokenizer(tmp_path)


def test_an_unknown_option_is_refused(nereid, model):
    with pytest.raises(TypeError, match="'colour' is no known field"):
        nereid.LLM(model, colour=1)


# ---- waiting ----


def test_other_threads_run_while_one_waits(nereid, llm):
    turns = 0
    stop = threading.Event()

    def count():
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = turns
        llm.generate(PROMPTS, nereid.SamplingParams(max_tokens=100, **GREEDY))
        assert turns - before > 20
    finally:
        stop.set()
        thread.join()


def test_threads_get_their_own_answers(nereid, llm):
    params = nereid.SamplingParams(max_tokens=24, **GREEDY)
    expected = {p: llm.generate(p, params).outputs[0].token_ids for p in PROMPTS}
    wrong = []

    def ask(k):
        for i in range(6):
            p = PROMPTS[(k + i) % len(PROMPTS)]
            if k % 2:
                got = [t for piece in llm.stream(p, params) for t in piece.token_ids]
            else:
                got = llm.generate(p, params).outputs[0].token_ids
            if got != expected[p]:
                wrong.append((k, i))
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_who_stops_reading_ends_the_request(nereid, llm):
    for _ in llm.stream(PROMPTS * 4, nereid.SamplingParams(max_tokens=400, **GREEDY)):
        break
    start = time.monotonic()
    llm.generate("x", nereid.SamplingParams(max_tokens=2, **GREEDY))
    assert time.monotonic() - start < 2  # nobody was in front of it
    assert not llm._inbox._queues


def test_ctrl_c_ends_the_wait_and_not_the_model(build_folder, model):
    done = in_process(build_folder, """
        import os, signal, sys, threading, time, nereid
        llm = nereid.LLM(sys.argv[1], n_threads=1, max_batch_size=1)
        long = nereid.SamplingParams(max_tokens=450, temperature=0, ignore_eos=True)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            llm.generate(["x"] * 500, long)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 5)
        print(len(llm.generate("y", nereid.SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
                  .outputs[0].token_ids))
    """, model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted", "True", "3"]


def test_close_ends_those_who_wait(nereid, model):
    one = nereid.LLM(model, n_threads=1, max_batch_size=1)
    raised = []

    def ask():
        try:
            one.generate(["x"] * 200, nereid.SamplingParams(max_tokens=450, **GREEDY))
        except ValueError as e:
            raised.append(str(e))
    thread = threading.Thread(target=ask)
    thread.start()
    while not one._inbox._queues:
        time.sleep(0.01)
    one.close()
    thread.join(20)
    assert len(raised) == 1 and "closed" in raised[0]
    one.close()
    with pytest.raises(ValueError, match="closed"):
        one.generate("x")


def test_the_program_ends_with_a_model_open_and_a_thread_waiting(build_folder, model):
    done = in_process(build_folder, """
        import sys, threading, time, nereid
        llm = nereid.LLM(sys.argv[1], n_threads=1, max_batch_size=1)
        def ask():
            try:
                llm.generate(["x"] * 500, nereid.SamplingParams(max_tokens=450, ignore_eos=True))
            except ValueError:
                pass
        threading.Thread(target=ask, daemon=True).start()
        time.sleep(0.3)
        print("end")
    """, model)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_a_child_of_fork_is_told_and_the_parent_goes_on(build_folder, model):
    done = in_process(build_folder, """
        import os, sys, nereid
        llm = nereid.LLM(sys.argv[1], n_threads=1, max_batch_size=2)
        short = nereid.SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        llm.generate("x", short)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                llm.generate("x", short)
            except RuntimeError as e:
                print("child:", "fork" in str(e), flush=True)
            with nereid.LLM(sys.argv[1], n_threads=1, max_batch_size=2) as own:
                print("own:", len(own.generate("x", short).outputs[0].token_ids), flush=True)
            sys.exit(0)  # with the parent's model still referenced
        print("status", os.waitpid(child, 0)[1])
        print("parent:", len(llm.generate("x", short).outputs[0].token_ids))
    """, model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["child: True", "own: 3", "status 0", "parent: 3"]


# ---- memory ----


def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def test_requests_leave_nothing_behind(nereid, llm):
    params = nereid.SamplingParams(max_tokens=2, logprobs=1, stop="zzz", **GREEDY)

    def round_of(n):
        for _ in range(n):
            llm.generate(PROMPTS, params)
            for _ in llm.stream("x", params):
                pass
            with pytest.raises(nereid.InvalidArgumentError):
                llm.generate("x", nereid.SamplingParams(top_p=9.0))
        gc.collect()
    round_of(40)
    objects, nones, before = len(gc.get_objects()), sys.getrefcount(None), rss()
    round_of(150)
    assert len(gc.get_objects()) - objects < 100
    if sys.version_info < (3, 12):  # None is immortal from then on
        assert abs(sys.getrefcount(None) - nones) < 100
    assert rss() - before < 4 << 20
    assert not llm._inbox._queues and not llm._inbox._ready and llm._inbox._running == 0


def test_models_leave_nothing_behind(nereid, model):
    def once():
        with nereid.LLM(model, n_threads=1, max_batch_size=2, max_tokens_in_paged_kv_cache=2048) as one:
            one.generate("x", nereid.SamplingParams(max_tokens=2))
    for _ in range(3):
        once()
    before, threads = rss(), len(os.listdir("/proc/self/task"))
    for _ in range(8):
        once()
    assert rss() - before < 16 << 20
    assert len(os.listdir("/proc/self/task")) <= threads
    assert len(os.listdir("/proc/self/fd")) < 200


# ---- the page ----


def test_the_example_of_the_page_runs(build_folder, model, tmp_path):
    page = (ROOT / "docs/python-api.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    assert len(example.strip().splitlines()) <= 10
    assert "model.gguf" in example
    done = in_process(build_folder, example.replace("model.gguf", str(model)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


def test_signals_are_still_pythons_own(nereid, llm):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
