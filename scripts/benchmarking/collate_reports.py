#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins the files that benchmark_core_model.py --op-stats-csv wrote into one table. What was measured stands in a file's name:
MACHINE__MODEL__BATCHING__POLICY__DATASET__RATE.csv."""
import argparse
import csv
import pathlib
import sys

NAMES = ["Machine", "Model", "Batching Scheme", "Scheduler Policy", "Dataset", "REQ_RATE"]


def read(path):
    """(names of the figures, a row for each line)"""
    what = path.stem.split("__")
    if len(what) != len(NAMES):
        sys.exit(f"{path}: expected a name of {len(NAMES)} parts with __ between, got {len(what)}")
    if what[2] == "v1":
        what[3] = "NA"  # static batches are not scheduled
    with open(path, newline="", encoding="utf-8") as f:
        lines = list(csv.reader(f))
    if len(lines) < 2:
        sys.exit(f"{path}: no figures")
    return lines[0], [what + line for line in lines[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory_path", required=True, type=pathlib.Path)
    parser.add_argument("--output_filename", required=True, type=pathlib.Path)
    flags = parser.parse_args()
    files = [p for p in sorted(flags.directory_path.glob("*.csv")) if p.resolve() != flags.output_filename.resolve()]
    if not files:
        sys.exit(f"{flags.directory_path}: no .csv files")
    reports = [read(p) for p in files]
    for path, (names, _) in zip(files, reports):
        if names != reports[0][0]:
            sys.exit(f"{path}: its columns are not those of {files[0]}")
    with open(flags.output_filename, "w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(NAMES + reports[0][0])
        out.writerows(row for _, rows in reports for row in rows)
    print(f"Combined data has been written to {flags.output_filename}")


if __name__ == "__main__":
    main()
