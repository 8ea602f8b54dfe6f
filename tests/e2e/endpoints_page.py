#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/endpoints.md from endpoints.tsv and the table of routes."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from test_endpoints import page  # noqa: E402

sys.stdout.write(page())
