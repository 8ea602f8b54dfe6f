#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmark under the name and with the options of v0.5: prompts of a data set."""
import sys

import benchmark_core_model

if __name__ == "__main__":
    benchmark_core_model.main(["dataset", *sys.argv[1:]])
