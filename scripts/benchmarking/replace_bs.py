#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets max_batch_size in every config.pbtxt below a folder: another batch size for a whole model repository."""
import argparse
import pathlib
import re
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("bs_replace_value", type=int, metavar="SIZE")
    flags = parser.parse_args()
    if flags.bs_replace_value < 0:
        parser.error("SIZE must be at least 0")
    files = sorted(flags.directory.rglob("config.pbtxt"))
    if not files:
        sys.exit(f"{flags.directory}: no config.pbtxt")
    for path in files:
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"(?m)^max_batch_size\s*:.*$", f"max_batch_size: {flags.bs_replace_value}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
