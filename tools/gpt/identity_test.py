#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""benchmark_core_model.py under the name that v0.5 gave it."""
import benchmark_core_model

if __name__ == "__main__":
    benchmark_core_model.main()
