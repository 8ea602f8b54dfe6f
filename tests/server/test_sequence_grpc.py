# SPDX-License-Identifier: Apache-2.0
"""Sequences over gRPC, alone and in streams, through the public client."""
import json
import queue

import numpy as np
import pytest

from triton_server import Server
from test_sequence import CONTROLS, PROBE, STATE, param, write_probe

client = pytest.importorskip("tritonclient.grpc")
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402
pytestmark = pytest.mark.skipif(not (PROBE / "probe/libtriton_probe.so").exists(),
                                reason="make test-backends builds what this needs")


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_probe(folder, "sum", "direct { }" + CONTROLS % "TYPE_STRING" + STATE % "", batch=2)
    write_probe(folder, "steps", "iterative_sequence: true" + STATE % "", more=param(
        "iterations", 4) + "model_transaction_policy { decoupled: true }")
    write_probe(folder, "fails", None, more=param("fail", "on purpose"))
    s = Server(tmp_path_factory.mktemp("log"), folder, f"--backend-directory={PROBE}")
    s.wait_ready()
    with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as c:
        yield c
    assert s.stop() == 0


def inputs(value, shape=(1, 1)):
    i = client.InferInput("IN", list(shape), "INT32")
    i.set_data_from_numpy(np.full(shape, value, np.int32))
    return [i]


def seen(result):
    return json.loads(result.as_numpy("SEEN").flatten()[0])


def test_ids_of_both_kinds_reach_the_model(stub):
    for seq, text in ((77, "77"), ("a name", "a name")):
        sums = []
        for k in range(3):
            r = stub.infer("sum", inputs(k + 1), sequence_id=seq, sequence_start=k == 0,
                           sequence_end=k == 2)
            sums.append(int(r.as_numpy("SUM").flatten()[0]))
            assert seen(r)["inputs"]["CORRID"]["data"] == [text]
            assert seen(r)["inputs"]["START"]["data"] == [int(k == 0)]
        assert sums == [1, 3, 6]
    with pytest.raises(Exception, match="must specify the START flag"):
        stub.infer("sum", inputs(1), sequence_id=78)


def test_error_of_a_model_in_a_stream_names_the_model_and_the_request(stub):
    call = service_pb2_grpc.GRPCInferenceServiceStub(stub._channel)  # the client hides it
    request = service_pb2.ModelInferRequest(model_name="fails", id="7")
    request.inputs.add(name="IN", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    answer = next(call.ModelStreamInfer(iter([request])))
    assert "on purpose" in answer.error_message
    assert (answer.infer_response.model_name, answer.infer_response.id) == ("fails", "7")
    request.inputs[0].name = "OTHER"  # refused before any model is asked
    answer = next(call.ModelStreamInfer(iter([request])))
    assert (answer.infer_response.model_name, answer.infer_response.id) == ("", "7")


def test_two_sequences_share_a_stream(stub):
    answers = queue.Queue()
    stub.start_stream(lambda result, error: answers.put((result, error)))
    for k in range(5):
        for seq in (5, 6):
            stub.async_stream_infer("sum", inputs(seq), request_id=f"{seq}-{k}", sequence_id=seq,
                                    sequence_start=k == 0, sequence_end=k == 4)
    sums = {5: [], 6: []}
    for _ in range(10):
        result, error = answers.get(timeout=20)
        assert error is None
        seq = int(result.get_response().id.split("-")[0])
        sums[seq].append(int(result.as_numpy("SUM").flatten()[0]))
    stub.stop_stream()
    assert sums == {5: [5, 10, 15, 20, 25], 6: [6, 12, 18, 24, 30]}


def test_iterations_stream_their_responses(stub):
    answers = queue.Queue()
    stub.start_stream(lambda result, error: answers.put((result, error)))
    stub.async_stream_infer("steps", inputs(1, (1,)))
    got = [answers.get(timeout=20) for _ in range(4)]
    stub.stop_stream()
    assert [e for _, e in got] == [None] * 4
    assert [int(r.as_numpy("SUM").flatten()[0]) for r, _ in got] == [1, 2, 3, 4]
