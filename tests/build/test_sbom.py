# SPDX-License-Identifier: Apache-2.0
"""The SPDX list of an installation has the fields that SPDX 2.3 requires, and names what the programs are linked with."""
import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
BUILD = ROOT / "build"


def sbom(**env):
    done = subprocess.run([sys.executable, ROOT / "scripts/sbom.py", BUILD, VERSION], capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env})
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def document():
    return sbom(SOURCE_DATE_EPOCH="1700000000")


def test_the_fields_that_spdx_requires(document):
    """SPDX 2.3, clauses 6 (document), 7 (packages), 11 (relationships)."""
    assert document["spdxVersion"] == "SPDX-2.3" and document["dataLicense"] == "CC0-1.0"
    assert document["SPDXID"] == "SPDXRef-DOCUMENT" and document["name"] == f"nereid-{VERSION}"
    assert re.fullmatch(r"https://[^#\s]+", document["documentNamespace"])
    assert document["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert all(re.match(r"(Tool|Person|Organization): \S", c) for c in document["creationInfo"]["creators"])
    ids = [p["SPDXID"] for p in document["packages"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", i) for i in ids)
    for p in document["packages"]:
        assert p["name"] and p["downloadLocation"] == "NOASSERTION" and p["filesAnalyzed"] is False
        assert all(re.fullmatch(r"NOASSERTION|[A-Za-z0-9.+-]+", p[k]) for k in ("licenseConcluded", "licenseDeclared"))
    known = {*ids, "SPDXRef-DOCUMENT"}
    relations = {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in document["relationships"]}
    assert all(a in known and b in known for a, _, b in relations)
    assert ("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Package-nereid") in relations
    assert {b for _, kind, b in relations if kind == "DYNAMIC_LINK"} == {*ids} - {"SPDXRef-Package-nereid"}


def test_it_names_what_is_linked(document):
    """Every library that the loader would open for the server's own files, and no file of ours."""
    said = " ".join(p.get("comment", "") + " " + p["name"] for p in document["packages"])
    for program in (BUILD / "bin/nereid", BUILD / "bin/tritonserver", BUILD / "lib/libnereid.so"):
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.check_output(["readelf", "-d", program], text=True)):
            assert name in said or (BUILD / "lib" / name).exists(), name
    assert not any("nereid" in p["name"] or "triton" in p["name"] for p in document["packages"][1:])


def test_packages_of_this_system_have_version_and_licence(document):
    if not pathlib.Path("/var/lib/dpkg/status").exists():
        pytest.skip("no dpkg")
    zlib, = [p for p in document["packages"] if p["name"] == "zlib1g"]
    wanted = subprocess.check_output(["dpkg-query", "-W", "-f", "${Version}", "zlib1g"], text=True)
    assert zlib["versionInfo"] == wanted and zlib["licenseDeclared"] == "Zlib"
    assert zlib["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/") and wanted in zlib["externalRefs"][0]["referenceLocator"]


def test_one_build_has_one_list(document):
    assert sbom(SOURCE_DATE_EPOCH="1700000000") == document
    other = sbom(SOURCE_DATE_EPOCH="1700000001")
    assert other["documentNamespace"] != document["documentNamespace"]
    assert "created" in sbom()["creationInfo"]  # of the commit, or of debian/changelog


def test_nothing_built_is_said(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "scripts/sbom.py", tmp_path, VERSION], capture_output=True, text=True)
    assert done.returncode == 1 and "run `make`" in done.stderr
