# SPDX-License-Identifier: Apache-2.0
"""tests/bench/tune_curves.py: what docs/tune.md draws is what was measured."""
import json
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tests/bench/tune_curves.py"


def draw(folder, curves):
    (folder / "curves.json").write_text(json.dumps(curves))
    return subprocess.run([sys.executable, TOOL, "draw", folder / "curves.json", "--out", folder], capture_output=True, text=True)


def test_a_curve_passes_through_the_medians(tmp_path):
    done = draw(tmp_path, {"batch": {"a": {"1": [9, 10, 30], "2": [20, 20, 20], "4": [40]}}})
    assert done.returncode == 0, done.stderr
    svg = ElementTree.parse(tmp_path / "tune-batch.svg").getroot()
    line = svg.find("{*}polyline").get("points").split()
    (x1, y1), (x2, y2), (x4, y4) = (map(float, point.split(",")) for point in line)
    assert x1 < x2 < x4 and abs((x2 - x1) - (x4 - x2)) < 0.2    # both axes are logarithmic
    assert y1 > y2 > y4 and abs((y1 - y2) - (y2 - y4)) < 0.2


def test_the_folder_is_made(tmp_path):
    (tmp_path / "curves.json").write_text(json.dumps({"batch": {"a": {"1": [9], "2": [20]}}}))
    done = subprocess.run([sys.executable, TOOL, "draw", tmp_path / "curves.json", "--out", tmp_path / "new/images"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/images/tune-batch.svg").is_file()


def test_one_point_is_no_curve(tmp_path):
    done = draw(tmp_path, {"threads": {"a": {"1": [9, 10]}}})
    assert done.returncode == 1 and "'threads' has one point; a curve needs two at least" in done.stderr
    assert not list(tmp_path.glob("*.svg"))


def test_a_small_model_is_measured(tmp_path):
    model, out = tmp_path / "llama", tmp_path / "curves.json"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", model],
                   check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([sys.executable, TOOL, "measure", model, "--only", "batch", "--rounds", "1", "--out", out],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    curves = json.loads(out.read_text())["batch"]
    assert set(curves) == {"output tokens/s", "ms a token of each"}
    for points in curves.values():
        assert list(points) == ["1", "2", "4", "8", "16", "32", "64"] and all(v[0] > 0 for v in points.values())
