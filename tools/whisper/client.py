#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sound file to the model whisper_bls over gRPC, by one or more tasks at once: what is said, and how long it took."""
import asyncio
import pathlib
import sys
import time
import wave

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from utils import llm_client as llm  # noqa: E402

RATE = 16000
PADDING = 10  # seconds of which the sent length is a multiple, so that requests of a batch are alike
PROMPT = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"


def parse():
    parser = llm.Parser(description=__doc__)
    add = parser.add_argument
    add("--server-addr", default="localhost")
    add("--server-port", type=int, default=8001, help="of gRPC")
    add("--audio-path", required=True, help="sound of 16 kHz: WAV; what the module soundfile reads, where it is installed")
    add("--whisper-prompt", default=PROMPT, help="e.g. <|startofprev|>Some words" + PROMPT)
    add("--model-name", default="whisper_bls", choices=["whisper_bls", "whisper_bls_async", "whisper"])
    add("--streaming", action="store_true", help="the model is decoupled")
    add("--num-tasks", type=int, default=1, help="requests at once")
    return parser.parse_args()


def read_wave(path):
    """(samples of all channels, rate) of 8, 16 or 32 bit integers."""
    with wave.open(path, "rb") as f:
        width, n_channels, rate = f.getsampwidth(), f.getnchannels(), f.getframerate()
        data = f.readframes(f.getnframes())
    if width not in (1, 2, 4):
        raise wave.Error(f"samples of {width} bytes")
    kind = {1: np.uint8, 2: "<i2", 4: "<i4"}[width]
    samples = np.frombuffer(data, kind).astype(np.float32)
    samples = (samples - 128) / 128 if width == 1 else samples / float(1 << 8 * width - 1)
    return samples.reshape(-1, n_channels), rate


def read_sound(path):
    try:
        samples, rate = read_wave(path)
    except (wave.Error, EOFError) as e:
        try:
            import soundfile
        except ImportError:
            sys.exit(f"{path}: {e}; other formats need the Python module soundfile")
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    if rate != RATE:
        sys.exit(f"{path}: only a rate of 16000 is supported, this is {rate}")
    return samples.mean(axis=1, dtype=np.float32)


def inputs(grpc, samples, prompt):
    seconds = len(samples) // RATE
    padded = np.zeros((1, PADDING * RATE * (seconds // PADDING + 1)), np.float32)
    padded[0, :len(samples)] = samples
    arrays = {"WAV": padded, "WAV_LENS": np.array([[len(samples)]], np.int32), "TEXT_PREFIX": np.array([[prompt.encode()]], object)}
    made = []
    for (name, array), kind in zip(arrays.items(), ("FP32", "INT32", "BYTES")):
        tensor = grpc.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def text_of(result):
    return b" ".join(result.as_numpy("TRANSCRIPTS").ravel()).decode()


async def last_text(client, request):
    """Of a decoupled model: each answer has the text so far."""
    async def one():
        yield request

    text = ""
    async for result, error in client.stream_infer(one()):
        if error:
            raise error
        text = text_of(result)
    return text


async def run_task(client, grpc, flags, number, samples):
    """(seconds that it took, what was heard)"""
    name = f"task-{number}"
    print(f"{name}: 0/1", flush=True)
    start = llm.now()
    request = {"model_name": flags.model_name, "inputs": inputs(grpc, samples, flags.whisper_prompt),
               "outputs": [grpc.InferRequestedOutput("TRANSCRIPTS")], "request_id": str(100000000 + number * 10)}
    text = await last_text(client, request) if flags.streaming else text_of(await client.infer(**request))
    took = llm.now() - start
    print((0, ["foo"], text.split()), flush=True)
    return took


def report(times, total, elapsed):
    lines = [f"RTF: {elapsed / total if total else 0:.4f}", f"total_duration: {total:.3f} seconds", f"({total / 3600:.2f} hours)",
             f"processing time: {elapsed:.3f} seconds ({elapsed / 3600:.2f} hours)",
             f"latency_variance: {np.var(times) * 1000:.2f}"]
    lines += [f"latency_{p}_percentile_ms: {np.percentile(times, p) * 1000:.2f}" for p in (50, 90, 95, 99)]
    print("\n".join(lines + [f"average_latency_ms: {np.mean(times) * 1000:.2f}\n"]))


async def main():
    import tritonclient.grpc.aio as grpc
    flags = parse()
    samples = read_sound(flags.audio_path)
    client = grpc.InferenceServerClient(f"{flags.server_addr}:{flags.server_port}")
    start = time.monotonic()
    try:
        times = await asyncio.gather(*(run_task(client, grpc, flags, i, samples) for i in range(flags.num_tasks)))
    except Exception as e:  # of the client library
        llm.fail(e)
    report(times, len(samples) / RATE * flags.num_tasks, time.monotonic() - start)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
