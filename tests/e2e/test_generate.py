# SPDX-License-Identifier: Apache-2.0
"""The five-model repository through the generate extension."""
import concurrent.futures
import http.client
import json
import re
import socket

import pytest

from llm_server import wait_until

MODELS = ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"]
PROMPT = {"text_input": "the quick brown fox", "max_tokens": 12, "bad_words": "", "stop_words": ""}


def body(**more):
    return dict(PROMPT, **more)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_ready_and_describes_itself(server, model):
    assert server.request(f"/v2/models/{model}/ready")[0] == 200
    status, meta = server.request(f"/v2/models/{model}")
    assert status == 200 and meta["name"] == model and meta["versions"] == ["1"]
    status, config = server.request(f"/v2/models/{model}/config")
    assert status == 200 and config["name"] == model


def test_server_metadata_says_triton(server):
    status, meta = server.request("/v2")
    assert status == 200 and meta["name"] == "triton"


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_generate_answers_with_prompt_and_completion(server, model):
    status, answer = server.generate(body(), model)
    assert status == 200, answer
    assert answer["model_name"] == model and answer["model_version"] == "1"
    assert answer["text_output"].startswith(PROMPT["text_input"])


def test_ensemble_and_bls_give_the_same_text(server):
    assert server.generate(body())[1]["text_output"] == \
        server.generate(body(), "tensorrt_llm_bls")[1]["text_output"]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_streamed_pieces_add_up_to_the_whole_text(server, model):
    whole = server.generate(body(exclude_input_in_output=True), model)[1]["text_output"]
    pieces = server.stream(body(stream=True), model)
    assert len(pieces) >= 12
    assert "".join(p["text_output"] for p in pieces) == whole


@pytest.mark.parametrize("seed", ["random_seed", "seed"])  # as releases up to v0.19 and after it call it
def test_same_seed_gives_same_text_and_another_seed_another(server, seed):
    sampled = dict(temperature=1.0, top_k=0, top_p=0.99, max_tokens=24)
    one = [server.generate(body(**{seed: 7}, **sampled))[1]["text_output"] for _ in range(2)]
    other = server.generate(body(**{seed: 8}, **sampled))[1]["text_output"]
    assert one[0] == one[1] != other


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_the_load_of_the_cache_is_told_to_who_asks(server, path):
    """ORCA's header, for gateways; the numbers are those of the metrics."""
    def header(form):
        conn = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        conn.request("POST", f"/v2/models/ensemble/{path}", json.dumps(body(max_tokens=4, stream=path != "generate")),
                     {"endpoint-load-metrics-format": form} if form else {})
        answer = conn.getresponse()
        assert answer.status == 200 and answer.read()
        conn.close()
        return answer.headers["endpoint-load-metrics"]

    kind, _, text = header("json").partition(" ")
    named = json.loads(text)["named_metrics"]
    line = re.compile(r'nv_trt_llm_kv_cache_block_metrics\{kv_cache_block_type="(\w+)"[^}]*\} (\S+)')
    blocks = {k: float(v) for k, v in line.findall(server.metrics_text())}
    assert kind == "JSON" and named["max_token_capacity"] == blocks["max"] * blocks["tokens_per"] > 0
    used = named["kv_cache_utilization"] * blocks["max"]
    assert 0 <= used <= blocks["max"] and abs(used - round(used)) < 1e-6
    assert re.fullmatch(r"TEXT named_metrics\.kv_cache_utilization=[\d.e-]+, named_metrics\.max_token_capacity="
                        + str(named["max_token_capacity"]), header("text"))
    assert header(None) is None and header("xml") is None


def test_a_result_does_not_depend_on_who_shares_the_batch(server):
    alone = server.generate(body())[1]["text_output"]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(server.generate, body(text_input=f"{i} words of prompt " * (i % 7 + 1)))
                for i in range(24)]
        same = [pool.submit(server.generate, body()) for _ in range(8)]
        assert all(j.result()[0] == 200 for j in jobs)
        assert {j.result()[1]["text_output"] for j in same} == {alone}


def test_stop_word_ends_the_answer_and_is_part_of_it(server):
    text = server.generate(body(exclude_input_in_output=True, max_tokens=24))[1]["text_output"]
    word = text[len(text) // 2:][:2]
    stopped = server.generate(body(exclude_input_in_output=True, max_tokens=24, stop_words=[word]))[1]
    assert len(stopped["text_output"]) <= len(text)


def test_log_probs_come_when_asked_for(server):
    answer = server.generate(body(return_log_probs=True))[1]
    assert len(answer["output_log_probs"]) == 12 and answer["cum_log_probs"] < 0


@pytest.mark.parametrize("bad, word", [
    (dict(max_tokens=0), "max"),
    (dict(max_tokens=-3), "max"),
    (dict(beam_width=99), "beam"),
    (dict(temperature=-1.0), "temperature"),
    (dict(top_p=1.5), "top_p"),
    (dict(text_input="word " * 20000), "exceeds maximum input length"),
    (dict(max_tokens="many"), "max_tokens"),
])
def test_bad_values_are_refused_by_name_and_the_server_goes_on(server, bad, word):
    status, answer = server.generate(body(**bad))
    assert 400 <= status < 600 and word in answer["error"], (status, answer)
    assert server.generate(body())[0] == 200


@pytest.mark.parametrize("raw, status", [  # the status codes are those of Triton 2.51
    (b"{", 500), (b"", 500), (b"[1,2]", 500), (b"\xff\xfe", 500), (b'{"text_input": "a"}', 400),
])
def test_a_malformed_body_is_refused_with_a_reason(server, raw, status):
    got, answer = server.request("/v2/models/ensemble/generate", raw)
    assert got == status and answer["error"]
    assert server.generate(body())[0] == 200


def test_unknown_model_is_named(server):
    status, answer = server.generate(body(), "nothing")
    assert 400 <= status < 500 and "nothing" in answer["error"]


def test_huge_max_tokens_is_cut_to_the_sequence_limit(server):
    status, answer = server.generate(body(max_tokens=2**31 - 1, end_id=-1))
    assert status == 200 and answer["text_output"]


def test_a_client_that_goes_away_frees_its_blocks(server):
    conn = http.client.HTTPConnection("127.0.0.1", server.http, timeout=20)
    conn.request("POST", "/v2/models/ensemble/generate_stream",
                 json.dumps(body(max_tokens=100000, stream=True, end_id=-1)))
    response = conn.getresponse()
    assert response.read(20)
    response.fp.raw._sock.shutdown(socket.SHUT_RDWR)  # the client vanishes
    conn.close()
    model = dict(model="tensorrt_llm")
    server.generate(body())
    assert wait_until(lambda: server.metric("nv_trt_llm_request_metrics", request_type="active",
                                            **model) == 0 or server.generate(body())[0] != 200)


def test_gauges_are_zero_when_the_last_request_was_cancelled(server):
    kinds = [("nv_trt_llm_request_metrics", "request_type", "active"),
             ("nv_trt_llm_request_metrics", "request_type", "scheduled"),
             ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric",
              "generation_requests"),
             ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "used")]

    def values():
        return [server.metric(name, model="tensorrt_llm", **{label: v}) for name, label, v in kinds]

    def seen_before_it_vanished():
        """A quick machine may end the answer first: then the next one is tried."""
        conn = http.client.HTTPConnection("127.0.0.1", server.http, timeout=20)
        conn.request("POST", "/v2/models/ensemble/generate_stream",
                     json.dumps(body(max_tokens=100000, stream=True, end_id=-1)))
        assert conn.getresponse().read(20)
        seen = all(values())
        conn.sock.shutdown(socket.SHUT_RDWR)
        conn.close()
        return seen

    assert wait_until(seen_before_it_vanished)
    assert wait_until(lambda: not any(values())), values()



def test_many_streams_at_once_lose_nothing(server):
    whole = server.generate(body(exclude_input_in_output=True))[1]["text_output"]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(server.stream, body(stream=True)) for _ in range(256)]
        texts = {"".join(p["text_output"] for p in j.result()) for j in jobs}
    assert texts == {whole}


def test_metrics_tell_what_happened(server):
    before = server.metric("nv_inference_request_success", model="ensemble")
    server.generate(body())
    assert wait_until(lambda: server.metric("nv_inference_request_success", model="ensemble")
                      == before + 1)
    text = server.metrics_text()
    for family in ["nv_inference_count", "nv_inference_exec_count", "nv_trt_llm_request_metrics",
                   "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_inflight_batcher_metrics",
                   "nv_trt_llm_general_metrics", "nv_llm_input_token_len_bucket"]:
        assert family in text
    counts = {m: server.metric("nv_inference_request_success", model=m)
              for m in ("preprocessing", "tensorrt_llm", "postprocessing")}
    assert all(v > 0 for v in counts.values())
    _, stats = server.request("/v2/models/tensorrt_llm/stats")
    for part in stats["model_stats"][0]["inference_stats"], stats["model_stats"][0]["batch_stats"][0]:
        assert 0 < part["compute_output"]["ns"] < part["compute_infer"]["ns"], part
