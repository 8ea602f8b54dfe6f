# SPDX-License-Identifier: Apache-2.0
"""One small engine for the repositories of all releases."""
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "e2e"), str(HERE)]
import repositories  # noqa: E402


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    return repositories.build(tmp_path_factory.mktemp("compat"))
