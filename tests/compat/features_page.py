#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/features.md from features.tsv and the table of test_features.py."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "e2e"), str(HERE)]
from test_features import page  # noqa: E402

sys.stdout.write(page())
