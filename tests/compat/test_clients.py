# SPDX-License-Identifier: Apache-2.0
"""Every client of clients.py that is installed, over a small random model whose template takes tools."""
import pathlib
import subprocess
import sys

import pytest

import clients

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from llm_server import ROOT, Server  # noqa: E402

TEMPLATE = ("{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
            "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content or '') }}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}<|assistant|>")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    model = folder / "tiny"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", model],
                   check=True, stdout=subprocess.DEVNULL)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    s = Server(model, folder, "--served-model-name", "tiny")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


@pytest.mark.parametrize("name", clients.CLIENTS)
def test_a_client_can_do_what_the_table_says(server, name):
    if not clients.is_there(name):
        pytest.skip(f"{name} is not installed")
    rows = clients.results(name, server.url(""), "tiny")
    assert len(rows) > 1 and not [row for row in rows if row[1]], rows
