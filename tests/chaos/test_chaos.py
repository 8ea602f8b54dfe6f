# SPDX-License-Identifier: Apache-2.0
"""A minute of chaos.py, half of one in `make test`; NEREID_CHAOS_SECONDS says how long."""
import os
import pathlib
import subprocess
import sys

import pytest

SECONDS = float(os.environ.get("NEREID_CHAOS_SECONDS", 60))


@pytest.mark.timeout(3 * SECONDS + 420)
def test_chaos():
    r = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("chaos.py"), str(SECONDS)], text=True, capture_output=True,
                       timeout=3 * SECONDS + 400)
    print(r.stdout)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr[-3000:]
