# SPDX-License-Identifier: Apache-2.0
"""Disaggregated serving: the model `context` computes prompts, the model `generation` goes on with them, and what comes is
what one model says alone."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import numpy as np
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from llm_server import BIN, MORE, ROOT, Server, wait_until
from test_ranks import workers

PROMPTS = [[5, 17, 33, 60], [7] * 70, list(range(3, 90)), [11]]
ASKED = [{}, {"runtime_top_k": 20, "temperature": 2.0, "random_seed": 5}, {"repetition_penalty": 1.4, "return_log_probs": True},
         {"runtime_top_k": 50, "random_seed": 9, "min_length": 6, "return_context_logits": True}]
TYPES = {"runtime_top_k": np.int32, "temperature": np.float32, "random_seed": np.uint64, "repetition_penalty": np.float32,
         "return_log_probs": bool, "min_length": np.int32, "return_context_logits": bool, "streaming": bool}


@pytest.fixture(scope="module")
def repository(tiny_model, tmp_path_factory):
    """Makes one of copies of tensorrt_llm, whose parameters are given."""
    top = tmp_path_factory.mktemp("disaggregated")

    def engine(tp, pp):
        path = top / f"engine-{tp}-{pp}"
        if not path.exists():
            subprocess.run([BIN / "nereid", "build", tiny_model, "--output_dir", path, "--gather_context_logits", "--tp_size", str(tp),
                            "--pp_size", str(pp)], check=True, capture_output=True)
        return path

    def make(name, decoupled, split=(1, 1), **models):
        subprocess.run([BIN / "nereid", "repo", "--engine_dir", engine(*split), "--tokenizer_dir", tiny_model, "--output_dir",
                        top / name / "whole", "--set", f"decoupled_mode:{decoupled}"], check=True, capture_output=True)
        for model, parameters in models.items():
            shutil.copytree(top / name / "whole" / "tensorrt_llm", top / name / "repo" / model)
            config = top / name / "repo" / model / "config.pbtxt"
            text = re.sub(r'^name: "tensorrt_llm"', f'name: "{model}"', config.read_text(), flags=re.M)
            for key, value in {"deterministic": "true", **parameters}.items():  # of a matrix unit it must be asked
                if key == "split":
                    text = text.replace(str(engine(*split)), str(engine(*value)))
                    continue
                text += f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
            config.write_text(text)
        return top / name / "repo"
    return make


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    path = repository("plain", False, context={}, generation={}, hasty={"kv_transfer_timeout_ms": 50},
                      small={"max_tokens_in_buffer": 64}, counting={}, counted={})
    s = Server(path, tmp_path_factory.mktemp("cache")).wait_ready()
    yield s
    assert s.stop() == 0


def tensor(name, value, dtype):
    array = np.array(value, dtype)
    t = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array)
    return t


def inputs(ids, n=12, **more):
    return [tensor("input_ids", [ids], np.int32), tensor("input_lengths", [[len(ids)]], np.int32),
            tensor("request_output_len", [[n]], np.int32)] + [tensor(k, [[v]], TYPES[k]) for k, v in more.items()]


def infer(s, model, tensors, kind=None):
    with http.InferenceServerClient(f"127.0.0.1:{s.http}") as c:
        return c.infer(model, tensors, parameters={"request_type": kind} if kind else None)


def context(s, tensors, model="context"):
    answer = infer(s, model, tensors, "context_only")
    return tensor("context_phase_params", answer.as_numpy("context_phase_params"), np.uint8), answer


def assert_same(alone, handed):
    """To the bit on a processor; a GPU's numbers depend on the other rows of a step."""
    for name in ("output_ids", "sequence_length", "output_log_probs", "cum_log_probs", "context_logits"):
        a, b = alone.as_numpy(name), handed.as_numpy(name)
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b) or (MORE and a.dtype == np.float32 and np.allclose(a, b, rtol=1e-3, atol=2e-2)), name


@pytest.mark.parametrize("asked", ASKED, ids=lambda a: "-".join(a) or "greedy")
def test_answers_are_those_of_one_model(server, asked):
    for ids in PROMPTS:
        tensors = inputs(ids, **asked)
        params, first = context(server, tensors)
        assert first.as_numpy("sequence_length").tolist() == [[len(ids) + 1]]
        alone, handed = infer(server, "generation", tensors), infer(server, "generation", tensors + [params], "generation_only")
        assert_same(alone, handed)
        assert first.as_numpy("output_ids")[0, 0, -1] == alone.as_numpy("output_ids")[0, 0, len(ids)]


SPLITS = [(2, 1), (1, 2), (2, 2)]


@pytest.fixture(scope="module", params=SPLITS, ids=lambda s: f"tp{s[0]}pp{s[1]}")
def divided(request, repository, tmp_path_factory):
    """Models of several ranks each; `whole` says alone what they should, `other` is of one rank."""
    tp, pp = request.param
    path = repository(f"divided-{tp}-{pp}", False, request.param, other={"split": (1, 1)}, whole={},
                      context={"enable_chunked_context": "true", "max_num_tokens": 32, "kv_transfer_timeout_ms": 600000},
                      generation={"enable_kv_cache_reuse": "true"})
    s = Server(path, tmp_path_factory.mktemp("cache"), "--model-control-mode=explicit", "--restart-on-failure=false",
               *[f"--load-model={m}" for m in ("other", "whole", "generation")]).wait_ready()
    before = workers(s)
    assert s.request("/v2/repository/models/context/load", {})[0] == 200
    s.of_context = [pid for pid in workers(s) if pid not in before]
    assert len(s.of_context) == tp * pp - 1
    yield s
    assert s.stop() == 0


def test_every_rank_hands_over_its_share(divided):
    """The second time the generation model has some of the blocks already. More than one prompt waits at a time."""
    for _ in range(2):
        for asked in ASKED:
            asks = [inputs(ids, **asked) for ids in PROMPTS]
            waiting = [context(divided, tensors)[0] for tensors in asks]
            for tensors, params in zip(asks, waiting):
                assert_same(infer(divided, "whole", tensors), infer(divided, "generation", tensors + [params], "generation_only"))


def test_requests_at_a_time_go_over_between_ranks(divided):
    def both(i):
        tensors = inputs([i + 3] * (5 + 9 * (i % 7)) + [i], 20, random_seed=i, runtime_top_k=30)
        params, _ = context(divided, tensors)
        return infer(divided, "whole", tensors), infer(divided, "generation", tensors + [params], "generation_only")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for alone, handed in pool.map(both, range(48)):
            assert np.array_equal(alone.as_numpy("output_ids"), handed.as_numpy("output_ids"))
    assert wait_until(lambda: divided.metric("nv_llm_handover_tokens", model="context") == 0)


def memory_files(s):
    """Of prompts that wait, which the server's process has open."""
    names = []
    for fd in pathlib.Path(f"/proc/{s.process.pid}/fd").iterdir():
        try:
            names.append(os.readlink(fd))
        except FileNotFoundError:
            pass
    return sum("nereid-prompt" in name for name in names)


def test_a_prompt_goes_only_where_ranks_are_alike(divided):
    tensors = inputs(PROMPTS[1])
    params, _ = context(divided, tensors)
    assert memory_files(divided) == 1
    with pytest.raises(InferenceServerException, match=r"has tp_size \d and pp_size \d, this one 1 and 1") as e:
        infer(divided, "other", tensors + [params], "generation_only")
    assert "501" in str(e.value.status())
    alone, _ = context(divided, tensors, "other")
    with pytest.raises(InferenceServerException, match=r"has tp_size 1 and pp_size 1, this one"):
        infer(divided, "generation", tensors + [alone], "generation_only")
    infer(divided, "generation", tensors + [params], "generation_only")
    infer(divided, "other", tensors + [alone], "generation_only")
    assert wait_until(lambda: memory_files(divided) == 0)


def test_a_rank_of_the_context_model_is_lost(divided):
    """What waits goes with its model, and nothing of it stays; a load order brings the model back."""
    tensors = inputs(PROMPTS[2])
    params, _ = context(divided, tensors)
    os.kill(divided.of_context[-1], signal.SIGKILL)
    def said():
        try:
            context(divided, tensors)
        except InferenceServerException as e:
            return re.search("rank . of . was lost", str(e))
        return False
    assert wait_until(said)
    assert wait_until(lambda: memory_files(divided) == 0)
    with pytest.raises(InferenceServerException, match="its model was unloaded"):
        infer(divided, "generation", tensors + [params], "generation_only")
    assert divided.request("/v2/repository/models/context/load", {})[0] == 200
    params, _ = context(divided, tensors)
    assert_same(infer(divided, "whole", tensors), infer(divided, "generation", tensors + [params], "generation_only"))


def test_what_is_wrong_is_refused_and_said(server):
    params, _ = context(server, inputs([1, 2, 3]))
    with pytest.raises(InferenceServerException, match=r"input_ids \(4 tokens\) are not those"):
        infer(server, "generation", inputs([1, 2, 3, 4]) + [params], "generation_only")
    infer(server, "generation", inputs([1, 2, 3]) + [params], "generation_only")
    with pytest.raises(InferenceServerException, match="nothing waits under them") as e:
        infer(server, "generation", inputs([1, 2, 3]) + [params], "generation_only")
    assert "404" in str(e.value.status())
    for wrong in ([[1, 2, 3]], [list(range(24))]):
        with pytest.raises(InferenceServerException, match="context_phase_params") as e:
            infer(server, "generation", inputs([1, 2, 3]) + [tensor("context_phase_params", wrong, np.uint8)], "generation_only")
        assert "400" in str(e.value.status())
    with http.InferenceServerClient(f"127.0.0.1:{server.http}") as c:
        with pytest.raises(InferenceServerException, match="'context_phase_params' must be requested"):
            c.infer("context", inputs([1, 2, 3]), parameters={"request_type": "context_only"},
                    outputs=[http.InferRequestedOutput("output_ids"), http.InferRequestedOutput("sequence_length")])


def test_time_and_room_are_limited(server):
    params, _ = context(server, inputs([1, 2, 3]), "hasty")
    assert wait_until(lambda: server.metric("nv_llm_handovers", handover_event="expired", model="hasty") == 1)
    with pytest.raises(InferenceServerException, match="nothing waits under them"):
        infer(server, "generation", inputs([1, 2, 3]) + [params], "generation_only")
    kept, _ = context(server, inputs([1] * 60), "small")
    with pytest.raises(InferenceServerException, match="max_tokens_in_buffer") as e:
        context(server, inputs([1] * 60), "small")
    assert "503" in str(e.value.status())
    infer(server, "generation", inputs([1] * 60) + [kept], "generation_only")
    context(server, inputs([1] * 60), "small")


def test_transfers_are_counted(server):
    """Two models that no other test uses: their counters begin at 0."""
    def counted():
        names = (("counting", "given"), ("counted", "taken"))
        return ([server.metric("nv_llm_handovers", handover_event=e, model=m) for m, e in names] +
                [server.metric("nv_trt_llm_disaggregated_serving_metrics", disaggregated_serving_type="request_count", model=m)
                 for m, _ in names])
    assert counted() == [0] * 4
    params, _ = context(server, inputs([4, 5, 6]), "counting")
    assert wait_until(lambda: server.metric("nv_llm_handover_tokens", model="counting") == 3)
    infer(server, "counted", inputs([4, 5, 6]) + [params], "generation_only")
    assert wait_until(lambda: counted() == [1] * 4)
    assert wait_until(lambda: server.metric("nv_llm_handover_tokens", model="counting") == 0)


@pytest.fixture(scope="module", params=[False, True], ids=["one answer", "decoupled"])
def beside(request, repository, tmp_path_factory):
    """Two servers of the same engine: in the second one tensorrt_llm is the model that has two others do its work."""
    decoupled = request.param
    path = repository(f"two-{decoupled}", decoupled, context={}, generation={})
    for model in ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls"):
        shutil.copytree(path.parent / "whole" / model, path / model)
    shutil.copytree(ROOT / "all_models/disaggregated_serving/disaggregated_serving_bls", path / "tensorrt_llm")
    config = path / "tensorrt_llm/config.pbtxt"
    subprocess.run([ROOT / "tools/fill_template.py", "-i", config, f"triton_max_batch_size:64,decoupled_mode:{decoupled},"
                    "logits_datatype:TYPE_FP32,context_model_name:context,generation_model_name:generation,"
                    "disaggregated_serving_bls_count:1"], check=True)
    config.write_text(config.read_text().replace('"disaggregated_serving_bls"', '"tensorrt_llm"'))
    servers = [Server(p, tmp_path_factory.mktemp("cache")).wait_ready() for p in (path.parent / "whole", path)]
    yield decoupled, *servers
    assert [s.stop() for s in servers] == [0, 0]


def post(s, path, body):
    status, answer = s.request(path, body)
    assert status == 200, answer
    return answer


def test_models_before_it_see_no_difference(beside):
    """ensemble, tensorrt_llm_bls and /v1 in front of it, as in front of one model."""
    _, one, two = beside
    asked = {"text_input": "a b c d e f", "max_tokens": 9, "temperature": 1.5, "top_k": 30, "random_seed": 3}
    chat = {"model": "ensemble", "prompt": "a b c d e f g", "max_tokens": 9, "temperature": 1.5, "seed": 4, "logprobs": 2}
    for model in ("ensemble", "tensorrt_llm_bls"):
        answers = [post(s, f"/v2/models/{model}/generate", asked)["text_output"] for s in (one, two)]
        assert answers[0] == answers[1] and answers[0]
    choices = [post(s, "/v1/completions", chat)["choices"] for s in (one, two)]
    assert choices[0] == choices[1]
    assert wait_until(lambda: two.metric("nv_llm_handovers", handover_event="taken", model="generation") == 3)


def test_streams_have_the_same_pieces(beside):
    decoupled, one, two = beside
    if not decoupled:
        with http.InferenceServerClient(f"127.0.0.1:{two.http}") as c, pytest.raises(InferenceServerException, match="decoupled"):
            c.infer("tensorrt_llm", inputs([1, 2, 3], streaming=True))
        return
    asked = {"text_input": "a b c d e f g", "max_tokens": 9, "stream": True}
    streams = [[answer["text_output"] for answer in s.stream(asked)] for s in (one, two)]
    assert streams[0] == streams[1] and len(streams[0]) >= 9


def test_what_it_cannot_do_is_said(beside):
    decoupled, _, two = beside
    for kind in ("context_only", "generation_only"):
        if not decoupled:
            with pytest.raises(InferenceServerException, match="request_type belongs to the models 'context' and 'generation'"):
                infer(two, "tensorrt_llm", inputs([1, 2, 3]), kind)
    if not decoupled:
        with pytest.raises(InferenceServerException, match="beam_width"):
            infer(two, "tensorrt_llm", inputs([1, 2, 3]) + [tensor("beam_width", [[2]], np.int32)])


def test_who_goes_away_leaves_nothing(beside):
    _, _, two = beside
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", two.http)) as c:
            body = json.dumps({"text_input": "a b c d e f", "max_tokens": 400})
            c.sendall(f"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    assert wait_until(lambda: two.metric("nv_llm_handover_tokens", model="context") == 0 and
                      two.metric("nv_inference_pending_request_count", model="tensorrt_llm") == 0)


def test_a_model_without_its_two_is_refused(repository, tmp_path):
    path = tmp_path / "models"
    shutil.copytree(ROOT / "all_models/disaggregated_serving/disaggregated_serving_bls", path / "disaggregated_serving_bls")
    subprocess.run([ROOT / "tools/fill_template.py", "-i", path / "disaggregated_serving_bls/config.pbtxt", "triton_max_batch_size:4,"
                    "decoupled_mode:False,logits_datatype:TYPE_FP32,context_model_name:context,disaggregated_serving_bls_count:1"],
                   check=True)
    s = Server(path, tmp_path)
    assert s.process.wait(60) != 0
    assert "needs the parameter generation_model_name" in s.log_text()
