# SPDX-License-Identifier: Apache-2.0
"""Writes mel_golden.h: some frames of the features that transformers makes of test_mel.c's signal, and the sum of all.
usage: python make_mel_golden.py >mel_golden.h      (needs transformers and numpy)"""
import numpy as np
import transformers
from transformers import WhisperFeatureExtractor

CASES = [("short_80", 50000, 80), ("long_80", 500123, 80), ("short_128", 30011, 128)]
FRAMES = [0, 1, 2, 77, 150, 187, 188, 189, 311, 312, 313, 314, 2998, 2999]


def signal(n):
    i = np.arange(n, dtype=np.uint64)
    v = ((i * i * np.uint64(7) + i * np.uint64(31)) % np.uint64(4001)).astype(np.int64) - 2000
    return (v * ((i // np.uint64(1600)) % np.uint64(10)).astype(np.int64) / 32768).astype(np.float32)


print("/* SPDX-License-Identifier: Apache-2.0")
print(f" * Written by make_mel_golden.py: transformers {transformers.__version__}, WhisperFeatureExtractor. */")
print("static const int golden_frames[] = {" + ", ".join(map(str, FRAMES)) + "};")
for name, n, mels in CASES:
    extract = WhisperFeatureExtractor(feature_size=mels)
    sound = signal(n)
    long = n > extract.n_samples
    features = extract(sound, sampling_rate=16000, return_tensors="np", truncation=not long,
                       padding="longest" if long else "max_length")["input_features"][0]
    print(f"/* {n} samples, {mels} mels: {features.shape[1]} frames */")
    print(f"static const double golden_{name}_sum = {features.astype(np.float64).sum():.6f};")
    print(f"static const float golden_{name}[] = {{")
    for t in FRAMES:
        row = ", ".join(f"{v:.5f}f" for v in features[::4, t])
        print("    " + row + ",")
    print("};")
