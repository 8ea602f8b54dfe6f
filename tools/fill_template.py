#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the ${NAME} of a config.pbtxt: fill_template.py [-i] FILE NAME:VALUE[,NAME:VALUE…]

The command line of every release: `nereid fill_template` does the work. A comma inside a value needs one backslash, a
colon two. `--participant_ids LIST` (of v0.15) sets that variable.
"""
import argparse
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "scripts"))
import nereid_programs  # noqa: E402


def escaped(value):
    """As a value of SUBSTITUTIONS: two passes each take one level of backslashes."""
    for c in "\\:":
        value = value.replace(c, "\\" + c)
    for c in "\\,":
        value = value.replace(c, "\\" + c)
    return value


def main():
    parser = argparse.ArgumentParser(description="Replaces ${NAME} in a config.pbtxt.")
    parser.add_argument("file_path", help="the config.pbtxt")
    parser.add_argument("substitutions", help="NAME:VALUE,NAME:VALUE…; names that are not given stay as they are")
    parser.add_argument("--in_place", "--in-place", "-i", action="store_true",
                        help="rewrite the file; else the result goes to the standard output")
    parser.add_argument("--participant_ids", "--participant-ids", help="the same as participant_ids:LIST")
    args = parser.parse_args()
    substitutions = args.substitutions
    if args.participant_ids is not None:
        substitutions = f"participant_ids:{escaped(args.participant_ids)},{substitutions}"
    nereid_programs.run("fill_template", *(["-i"] if args.in_place else []), args.file_path, substitutions)
    if not args.in_place:
        print()  # the published tool ends its output with an empty line; who compares files finds the same bytes


if __name__ == "__main__":
    main()
