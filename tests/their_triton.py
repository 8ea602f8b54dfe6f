# SPDX-License-Identifier: Apache-2.0
"""Where NVIDIA's server is, for the tests that compare with it. Not "triton": PyTorch would take it for the package of that name."""
import os
import pathlib

RELEASE = "triton-2.51.0"  # the folder that scripts/fetch_triton makes


def find_theirs():
    """The unpacked nvidia-pytriton package that NEREID_TRITON names or scripts/fetch_triton put in
    the cache, or None."""
    home = os.environ.get("NEREID_CACHE") or pathlib.Path.home() / ".cache/nereid"
    folder = pathlib.Path(os.environ.get("NEREID_TRITON") or pathlib.Path(home) / RELEASE)
    return folder if (folder / "pytriton/tritonserver/bin/tritonserver").is_file() else None
