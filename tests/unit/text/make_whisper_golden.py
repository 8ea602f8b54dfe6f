# SPDX-License-Identifier: Apache-2.0
"""Writes whisper_golden.h: windows' ids and the segments that transformers' long-form generation cuts of them.
usage: python make_whisper_golden.py >whisper_golden.h      (needs transformers and torch)"""
import random

import torch
import transformers
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

FIRST = 40  # the id of <|0.00|> in test_whisper.c's tokenizer
rng = random.Random(5)


def window():
    frames, ids, time = rng.choice([3000, 3000, 1234]), [], 0
    for _ in range(rng.randrange(1, 5)):
        time += rng.randrange(0, 120)
        ids.append(FIRST + time)
        ids += [rng.randrange(10) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.85:
            time += rng.randrange(1, 120)
            ids.append(FIRST + time)
    kind = rng.randrange(4)
    if kind == 1:
        ids.append(FIRST + time)  # a pair at the end: the window was cut off
    elif kind == 2:
        ids = [i for i in ids if i < FIRST] or [1]  # without times
    return frames, ids


print("/* SPDX-License-Identifier: Apache-2.0")
print(f" * Written by make_whisper_golden.py: transformers {transformers.__version__}. */")
print("static const struct {\n    int32_t n_frames, ids[40];\n    size_t n;\n    int32_t next;\n    size_t n_segments;\n"
      "    int32_t times[16]; /* start and end of each, in steps */\n} golden[] = {")
for _ in range(60):
    frames, ids = window()
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(ids), seek_outputs=[{}], time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=FIRST, seek_num_frames=torch.tensor([frames]), time_precision=0.02, time_precision_features=0.01,
        input_stride=2, prev_idx=0, idx=0, return_token_timestamps=False, decoder_input_ids=torch.zeros(1, 3))
    times = [round(float(s[k]) / 0.02) for s in segments for k in ("start", "end")]
    if int(offset) <= 0:
        continue
    text = lambda v: "{" + ", ".join(map(str, v)) + "}"  # noqa: E731
    print(f"    {{{frames}, {text(ids)}, {len(ids)}, {int(offset)}, {len(segments)}, {text(times)}}},")
print("};")
