#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much two orders of the same sums differ at the end of a model, with bf16 and with F8 activations.

    f8_noise.py        needs numpy

Residual layers with random weights; every result carries relative noise of 2^-12 (what another order of
a sum leaves) and is rounded to bf16. Prints the mean difference of log probabilities between two runs
whose noise differs, and between one run and the model without noise or F8.
"""

import numpy as np

HIDDEN, LAYERS, VOCAB, TOKENS, NOISE = 512, 32, 2000, 64, 2.0**-12
SPREAD = 0.02 * np.sqrt(4096 / HIDDEN)  # as a model of 4096 columns has it


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + ((bits >> 16) & 1) + 0x7FFF) & 0xFFFF0000).view(np.float32)


def to_f8(x):
    """E4M3 with a scale for each row."""
    scale = np.abs(x).max(-1, keepdims=True) / 448
    y = x / scale
    step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(y), 2.0**-6))) - 3)
    return np.round(y / step) * step * scale


def norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def main():
    rng = np.random.default_rng(0)

    def weight(*shape):
        return rng.standard_normal(shape).astype(np.float32) * SPREAD

    layers = [(weight(2 * HIDDEN, HIDDEN), weight(HIDDEN, 2 * HIDDEN)) for _ in range(LAYERS)]
    head, start = weight(VOCAB, HIDDEN), rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)

    def run(quantize, noise, seed):
        draws = np.random.default_rng(seed)

        def result(y):
            return to_bf16(y * (1 + noise * draws.uniform(-1, 1, y.shape)).astype(np.float32))

        x = to_bf16(start)
        for up, down in layers:
            h = result(quantize(result(norm(x))) @ quantize(up).T)
            x = result(x + result(quantize(result(h / (1 + np.exp(-h)))) @ quantize(down).T))
        logits = quantize(result(norm(x))) @ head.T
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

    exact = run(lambda x: x, 0, 1)
    for name, quantize in (("bf16", lambda x: x), ("F8", to_f8)):
        one, other = run(quantize, NOISE, 1), run(quantize, NOISE, 2)
        print(f"{name}: two orders {np.abs(one - other).mean():.4f}, "
              f"from the model without {np.abs(one - exact).mean():.4f}")


if __name__ == "__main__":
    main()
