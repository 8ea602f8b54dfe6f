#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what was built into a wheel: the module, and under nereid/runtime the tree of `make install`, whose
programs find everything relative to themselves.

    wheel.py BUILD VERSION FOLDER        prints the wheel's path

Needs nothing but Python. The functions without main() are those of PEP 517, so that `pip wheel .` and
`pip install .` work in a checkout: they run make first. Equal inputs give equal bytes.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUMMARY = "Inference server and engine for language models, in C"


def version():
    return re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M).group(1)


def tag():
    """Any Python from 3.8 on; this machine's system, as the libraries that were linked are its own."""
    return "cp38-abi3-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


def metadata(number):
    text = (f"Metadata-Version: 2.1\nName: nereid\nVersion: {number}\nSummary: {SUMMARY}\nLicense: Apache-2.0\n"
            "Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n")
    return text + (ROOT / "docs/python-api.md").read_text()


def contents(build, number, runtime):
    """{path in the wheel: (file or bytes, executable)}"""
    module = pathlib.Path(build) / "python/nereid"
    files = {f"nereid/{p.relative_to(module)}": (p, p.suffix == ".so")
             for p in sorted(module.rglob("*")) if p.is_file() and p.suffix in (".py", ".pyi", ".so", ".typed")
             or p.name == "py.typed"}
    for p in sorted(runtime.rglob("*")):
        name = p.relative_to(runtime)
        # A wheel has no links: the library under the name by which the programs find it is enough.
        if p.is_file() and not p.is_symlink() and name.parts[0] in ("bin", "lib", "backends", "caches", "repoagents",
                                                                    "share") and "pkgconfig" not in name.parts and name.name != "installed":
            files[f"nereid/runtime/{name}"] = (p, os.access(p, os.X_OK))
    info = f"nereid-{number}.dist-info"
    files[f"{info}/METADATA"] = (metadata(number).encode(), False)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: nereid\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode(),
                              False)
    files[f"{info}/entry_points.txt"] = (b"[console_scripts]\nnereid = nereid.programs:nereid\n"
                                         b"tritonserver = nereid.programs:tritonserver\n"
                                         b"trtllm-build = nereid.programs:trtllm_build\n"
                                         b"trtllm-serve = nereid.programs:trtllm_serve\n"
                                         b"trtllm-bench = nereid.programs:trtllm_bench\n", False)
    for name in ("LICENSE", "NOTICE"):
        files[f"{info}/{name}"] = (ROOT / name, False)
    return files, f"{info}/RECORD"


def pack(build, number, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"nereid-{number}-{tag()}.whl"
    record = []
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([ROOT / "scripts/install_tree", build, tmp, number, "share/nereid/installed"], check=True)
        files, record_name = contents(build, number, pathlib.Path(tmp))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as z:
            for name, (source, executable) in files.items():
                data = source if isinstance(source, bytes) else source.read_bytes()
                add(z, name, data, executable)
                sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                record.append(f"{name},sha256={sha},{len(data)}\n")
            add(z, record_name, "".join([*record, f"{record_name},,\n"]).encode(), False)
    return path


def add(z, name, data, executable):
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    z.writestr(entry, data)


# ---- PEP 517 ----


def build_wheel(folder, config_settings=None, metadata_directory=None):
    subprocess.run(["make", "-C", ROOT, f"-j{os.cpu_count()}", "all"], check=True, stdout=sys.stderr)
    return pack(ROOT / "build", version(), folder).name


def build_sdist(folder, config_settings=None):
    raise RuntimeError("the sources are the repository: pip install . in a checkout, or `make wheel`")


if __name__ == "__main__":
    print(pack(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
