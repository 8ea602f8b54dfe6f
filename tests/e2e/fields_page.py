#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/fields.md from fields.tsv and the tables of the readers."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from test_fields import page  # noqa: E402

sys.stdout.write(page())
