#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""client.py with a request that does not wait for its answer."""
import client

if __name__ == "__main__":
    client.main(is_async=True)
