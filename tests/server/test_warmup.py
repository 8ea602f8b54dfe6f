# SPDX-License-Identifier: Apache-2.0
"""model_warmup: runs before the model is ready, for every instance; a failure fails the load."""
import pytest

from test_sequence import CONTROLS, PROBE, STATE, ask, param, write_probe

pytestmark = pytest.mark.skipif(not (PROBE / "probe/libtriton_probe.so").exists(),
                                reason="make test-backends builds what this needs")
LOG = param("log_inputs", "yes")


def warm(inputs, batch=1, count=0, name="w"):
    inputs = " ".join('inputs { key: "%s" value: { %s } }' % i for i in inputs.items())
    return (f'model_warmup [ {{ name: "{name}" batch_size: {batch} {inputs} '
            + (f"count: {count} " if count else "") + "} ]\n")


def data(kind, dtype="TYPE_INT32", dims="1"):
    return f"data_type: {dtype} dims: [ {dims} ] {kind}"


ZERO = {"IN": data("zero_data: true")}
SEVEN = {"IN": data('input_data_file: "seven"')}


def write(folder, name, sequence=None, batch=0, more="", **kwargs):
    model = write_probe(folder, name, sequence, batch, LOG + more, **kwargs)
    (model / "warmup").mkdir()
    (model / "warmup/seven").write_bytes((7).to_bytes(4, "little"))
    return model


def seen(server):
    return [line[line.index("{"):] for line in server.log().splitlines() if '"place":' in line]


def test_samples_run_on_every_instance_before_requests_do(tmp_path, launch):
    folder = tmp_path / "models"
    model = write(folder, "m", batch=4, more=warm(SEVEN, batch=3, count=2) + warm(ZERO))
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1 kind", "count: 2 kind"))
    s = launch(folder, f"--backend-directory={PROBE}").wait_ready()
    lines = seen(s)
    assert len(lines) == 2 * (3 * 2 + 1)
    assert sum('"data":[7]' in line for line in lines) == 12
    assert sum('"batch":3' in line for line in lines) == 12
    assert s.log().index('"place":') < s.log().index("successfully loaded 'm'")
    assert ask(s, "m", batch=1).status == 200


def test_random_data_fills_the_input(tmp_path, launch):
    folder = tmp_path / "models"
    write(folder, "m", more=warm({"IN": data("random_data: true", dims="8")}), dims="8")
    s = launch(folder, f"--backend-directory={PROBE}").wait_ready()
    values = seen(s)[0].split('"data":[')[1].split("]")[0].split(",")
    assert len(values) == 8 and len(set(values)) > 4


def test_sequence_models_get_controls_and_states(tmp_path, launch):
    folder = tmp_path / "models"
    inputs = ZERO | {"START": data("zero_data: true"),
                     "READY": data("zero_data: true", "TYPE_BOOL"),
                     "END": data("zero_data: true", "TYPE_FP32"),
                     "CORRID": data("zero_data: true", "TYPE_UINT64")}
    write(folder, "m", "direct { }" + CONTROLS % "TYPE_UINT64" + STATE % "", 2, warm(inputs))
    s = launch(folder, f"--backend-directory={PROBE}").wait_ready()
    line = seen(s)[0]
    for name in ("START", "END", "READY", "CORRID", "OLD", "IN"):
        assert f'"{name}":' in line
    assert ask(s, "m", 1, start=True, value=4, batch=1).sum == 4  # nothing stays of the warm-up


@pytest.mark.parametrize("more,words", [
    (warm(ZERO, name="first") + param("fail", "on purpose"),
     "failed to run warmup sample 'first': on purpose; "),
    (warm({"IN": data('input_data_file: "none"')}), "failed to open text file for read"),
    (warm({"IN": data("zero_data: true", dims="-1")}),
     "warmup setting expects all variable-size dimensions are specified for input 'IN'"),
    (warm({"IN": data("")}), "warmup setting expects input 'IN' to have input_data_type set"),
    (warm({}), "but missing required input(s) ['IN']"),
])
def test_failure_fails_the_load(tmp_path, launch, more, words):
    write(tmp_path / "models", "m", more=more)
    s = launch(tmp_path / "models", f"--backend-directory={PROBE}",
               "--model-control-mode=explicit").wait_ready()
    reply = s.call("POST", "/v2/repository/models/m/load", {})
    assert reply.status == 400 and words in reply.error()
