# SPDX-License-Identifier: Apache-2.0
"""Weights that are the same on every machine: a counter, a hash, and exact arithmetic.

No library generator (their streams may change) and no log or cos (their last bits differ): a value
is the sum of the four 16-bit pieces of splitmix64(key of the name + counter), centred and scaled.
By the central limit that is nearly normal; every step but the last rounding to float32 is exact.
"""

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(key, n):
    """n 64-bit values of the stream that starts at `key`."""
    with np.errstate(over="ignore"):
        z = np.uint64(key) + _GOLDEN * np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def key_of(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def normal(name, shape, deviation, mean):
    n = int(np.prod(shape))
    pieces = splitmix64(key_of(name), n).view(np.uint16).reshape(n, 4)
    total = pieces.sum(axis=1, dtype=np.int64) - 2 * 65535
    # One piece has variance (2^32 - 1) / 12; the constant is 1 / sqrt of four of them.
    x = total.astype(np.float64) * (deviation * 2.6428997921303018e-05) + mean
    return x.astype(np.float32).reshape(shape)


def tokens(name, n, vocab):
    """Token ids for prompts."""
    return [int(v) for v in splitmix64(key_of(name), n) % np.uint64(vocab)]


def build(spec):
    """{name: float32 array} with the names of the Hugging Face model class."""
    return {
        name: normal(f"{spec.seed}/{name}", shape, deviation, mean)
        for name, shape, deviation, mean in spec.tensors()
    }
