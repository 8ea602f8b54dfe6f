#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts or token ids in, answers out, with the options and lines of the published run.py. The module `nereid` does the
work; all inputs run in one batch."""
import array
import ast
import csv
import os
import sys
import time

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "scripts"))
import common_options  # noqa: E402
import nereid_programs  # noqa: E402

DEFAULT_TEXT = "Born in north-east France, Soyer trained as a"
PROFILED_RUNS = 10
REFUSED = ("output_logits_npy",)


def arguments():
    p = common_options.Options("Continues texts or token ids with an engine.")
    p.option("max_output_len", type=int, required=True)
    p.option("max_input_length", type=int, default=923)
    p.option("input_text", nargs="+", default=[DEFAULT_TEXT])
    p.option("input_file", help="token ids: .csv, .npy; texts: .txt")
    for name in ("output_csv", "output_npy", "output_log_probs_npy", "output_cum_log_probs_npy"):
        p.option(name)
    p.option("num_return_sequences", type=int, help="answers to each input; of beams, how many are shown")
    p.option("streaming", action="store_true")
    p.option("streaming_interval", type=int, default=5)
    p.option("run_profiling", action="store_true")
    p.refused(REFUSED)
    args = p.parse()
    if args.num_beams > 1 and args.streaming:
        p.error("--streaming: beams are known at their end")
    return args


# ---- NumPy's files, as far as they are needed here ----


def read_npy(path):
    """Rows of whole numbers."""
    with open(path, "rb") as f:
        start = f.read(8)
        size = int.from_bytes(f.read(2 if start[6:7] == b"\x01" else 4), "little")
        if start[:6] != b"\x93NUMPY" or size > 1 << 16:
            raise SystemExit(f"run.py: {path} is no .npy file")
        header = ast.literal_eval(f.read(size).decode("latin-1"))
        code = {"<i4": "i", "<i8": "q"}.get(header["descr"])
        if code is None or header["fortran_order"] or len(header["shape"]) != 2:
            raise SystemExit(f"run.py: {path}: expected rows of int32 or int64")
        values = array.array(code, f.read())
    n_rows, n = header["shape"]
    if len(values) != n_rows * n:
        raise SystemExit(f"run.py: {path} is cut off")
    return [values[i * n:(i + 1) * n].tolist() for i in range(n_rows)]


def write_npy(path, rows, code, depth):
    """rows: lists `depth` deep, all of equal lengths; code: "i" int32, "f" float32."""
    dims, first, flat = [], rows, rows
    for i in range(depth):
        dims.append(len(first))
        if i + 1 < depth:
            first, flat = first[0], [x for row in flat for x in row]
    text = repr({"descr": {"i": "<i4", "f": "<f4"}[code], "fortran_order": False, "shape": tuple(dims)})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    make_folder_of(path)
    with open(path if path.endswith(".npy") else path + ".npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
        f.write(array.array(code, flat).tobytes())


def make_folder_of(path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)


# ---- in, through, out ----


def inputs(args, tokenizer):
    """[(ids)], the last max_input_length of each file's row, the first of a text's, as in the published program."""
    limit = args.max_input_length
    if args.input_file is None:
        return [tokenizer.encode(text)[:limit] for text in args.input_text]
    if args.input_file.endswith(".csv"):
        with open(args.input_file, encoding="utf-8", newline="") as f:
            return [[int(x) for x in row][-limit:] for row in csv.reader(f)]
    if args.input_file.endswith(".npy"):
        return [[x for x in row if x != tokenizer.pad_token_id][-limit:] for row in read_npy(args.input_file)]
    if args.input_file.endswith(".txt"):
        with open(args.input_file, encoding="utf-8", errors="replace") as f:
            return [tokenizer.encode(line)[:limit] for line in f]
    print("Input file format not supported.")
    raise SystemExit


def show(args, tokenizer, ids, answers, end):
    """answers: for each input the ids of each sequence or beam."""
    for i, (prompt, rows) in enumerate(zip(ids, answers)):
        print(f'Input [Text {i}]: "{tokenizer.decode(prompt, skip_special_tokens=False)}"')
        for k, new in enumerate(rows):
            new = new[:-1] if new and new[-1] == end else new
            row = f"Beam {k}" if sequences(args) == 1 else f"Seq {k} Beam 0"
            print(f'Output [Text {i} {row}]: "{tokenizer.decode(new, skip_special_tokens=False)}"')
    sys.stdout.flush()


def sequences(args):
    """How many answers an input gets, beside its beams."""
    return 1 if args.num_beams > 1 else args.num_return_sequences or 1


def answers_of(args, output):
    """Of an input; of beams, num_return_sequences says how many."""
    return output.outputs[:args.num_return_sequences]


def padded(rows, value):
    longest = max((len(row) for row in rows), default=0)
    return [list(row) + [value] * (longest - len(row)) for row in rows]


def beams_of(args, flat):
    """A row for each sequence, of its beams."""
    n = min(args.num_beams, args.num_return_sequences or args.num_beams)
    return [flat[i:i + n] for i in range(0, len(flat), n)]


def write_files(args, ids, outputs, end):
    whole = padded([prompt + c.token_ids for prompt, o in zip(ids, outputs) for c in answers_of(args, o)], end)
    if args.output_csv:
        make_folder_of(args.output_csv)
        with open(args.output_csv, "w", encoding="utf-8", newline="") as f:
            csv.writer(f).writerows(whole)
    if args.output_npy:
        write_npy(args.output_npy, whole, "i", 2)
    if args.output_cum_log_probs_npy:
        write_npy(args.output_cum_log_probs_npy, beams_of(args, [c.cumulative_logprob for o in outputs for c in answers_of(args, o)]), "f", 2)
    if args.output_log_probs_npy:
        flat = padded([c.logprobs for o in outputs for c in answers_of(args, o)], 0.0)
        write_npy(args.output_log_probs_npy, beams_of(args, flat), "f", 3)


def stream(args, llm, ids, params, end):
    answers, shown = [[[] for _ in range(sequences(args))] for _ in ids], 0
    for piece in llm.stream(ids, params):
        answers[piece.prompt][piece.index] += piece.token_ids
        longest = max(len(a) for rows in answers for a in rows)
        if longest >= shown + args.streaming_interval:
            show(args, llm.tokenizer, ids, answers, end)
            shown = longest
    return answers


def main():
    args = arguments()
    nereid = nereid_programs.module()
    try:
        with common_options.open_llm(nereid, args, args.engine_dir) as llm:
            end = llm.tokenizer.eos_token_id if args.end_id is None else args.end_id
            ids = inputs(args, llm.tokenizer)
            with_probs = args.output_log_probs_npy or args.output_cum_log_probs_npy
            params = common_options.sampling(nereid, args, len(ids), args.max_output_len, 0 if with_probs else None)
            if args.streaming:
                show(args, llm.tokenizer, ids, stream(args, llm, ids, params, end), end)
                return
            outputs = llm.generate(ids, params)
            if not args.output_csv and not args.output_npy:
                show(args, llm.tokenizer, ids, [[c.token_ids for c in answers_of(args, o)] for o in outputs], end)
            write_files(args, ids, outputs, end)
            if args.run_profiling:
                start = time.monotonic()
                for _ in range(PROFILED_RUNS):
                    llm.generate(ids, params)
                took = (time.monotonic() - start) / PROFILED_RUNS
                print(f"batch_size: {len(ids)}, avg latency of {PROFILED_RUNS} iterations: : {took} sec")
    except (nereid.Error, OSError, ValueError) as e:
        sys.exit(f"run.py: {e}")


if __name__ == "__main__":
    main()
