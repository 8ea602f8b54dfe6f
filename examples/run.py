#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts or token ids in, answers out, with the options and lines of the published run.py. The module `nereid` does the
work; all inputs run in one batch."""
import array
import ast
import csv
import math
import os
import struct
import sys
import time

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "scripts"))
import common_options  # noqa: E402
import nereid_programs  # noqa: E402

DEFAULT_TEXT = "Born in north-east France, Soyer trained as a"
PROFILED_RUNS = 10


def arguments():
    p = common_options.Options("Continues texts or token ids with an engine.")
    p.option("max_output_len", type=int, required=True)
    p.option("max_input_length", type=int, default=923)
    p.option("input_text", nargs="+", default=[DEFAULT_TEXT])
    p.option("input_file", help="token ids: .csv, .npy; texts: .txt")
    for name in ("output_csv", "output_npy", "output_log_probs_npy", "output_cum_log_probs_npy"):
        p.option(name)
    p.option("output_logits_npy", help="logits, as far as the engine keeps them: of prompts into NAME_context.npy, of answers into NAME_generation.npy")
    p.option("no_add_special_tokens", action="store_true", help="texts are encoded without the token that begins them")
    p.option("hf_model_dir", "model_dir", help="the checkpoint, whose tokenizer is taken where none is named")
    p.option("output_generation_logits", action="store_true", help="those of answers must be there")
    p.option("prompt_table_path", help=".npy: embeddings for ids past the vocabulary, [tasks, rows, hidden]")
    p.option("prompt_tasks", help="0,3,1: which of the table's tasks each input has (the first)")
    p.option("num_prepend_vtokens", type=int, nargs="+", help="for each input, how many ids past the vocabulary go before it")
    p.option("num_return_sequences", type=int, help="answers to each input; of beams, how many are shown")
    p.option("streaming", action="store_true")
    p.option("streaming_interval", type=int, default=5)
    p.option("run_profiling", action="store_true")
    args = p.parse()
    args.tokenizer_dir = args.tokenizer_dir or (None if args.vocab_file else args.hf_model_dir)
    if args.num_beams > 1 and args.streaming:
        p.error("--streaming: beams are known at their end")
    return args


# ---- NumPy's files, as far as they are needed here ----


def read_npy(path, kinds, what):
    """(shape, bytes, type) of an array of one of these types."""
    with open(path, "rb") as f:
        start = f.read(8)
        size = int.from_bytes(f.read(2 if start[6:7] == b"\x01" else 4), "little")
        if start[:6] != b"\x93NUMPY" or size > 1 << 16:
            raise SystemExit(f"run.py: {path} is no .npy file")
        header = ast.literal_eval(f.read(size).decode("latin-1"))
        kind, shape = header["descr"], header["shape"]
        if kind not in kinds or header["fortran_order"]:
            raise SystemExit(f"run.py: {path}: expected {what}")
        data = f.read()
    if len(data) != math.prod(shape) * int(kind[2:]):
        raise SystemExit(f"run.py: {path} is cut off")
    return shape, data, kind


def read_ids(path):
    what = "rows of int32 or int64"
    shape, data, kind = read_npy(path, ("<i4", "<i8"), what)
    if len(shape) != 2:
        raise SystemExit(f"run.py: {path}: expected {what}")
    values = array.array("i" if kind == "<i4" else "q", data)
    return [values[i * shape[1]:(i + 1) * shape[1]].tolist() for i in range(shape[0])]


def read_tables(path):
    """Of each task its rows, as float32. V2 is what bfloat16 becomes in such files."""
    what = "[tasks, rows, hidden] of float16, bfloat16 or float32"
    shape, data, kind = read_npy(path, ("<f2", "<f4", "|V2"), what)
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or 0 in shape:
        raise SystemExit(f"run.py: {path}: expected {what}")
    if kind == "<f2":
        numbers = array.array("f", struct.unpack(f"<{math.prod(shape)}e", data)).tobytes()
    elif kind == "|V2":
        numbers = array.array("I", [x << 16 for x in array.array("H", data)]).tobytes()
    else:
        numbers = data
    size = 4 * shape[1] * shape[2]
    return [memoryview(numbers)[i * size:(i + 1) * size].cast("f", shape[1:]) for i in range(shape[0])]


def write_array(path, shape, kind, chunks):
    """chunks: the numbers' bytes, in their order."""
    text = repr({"descr": kind, "fortran_order": False, "shape": tuple(shape)})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    make_folder_of(path)
    with open(path if path.endswith(".npy") else path + ".npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
        for chunk in chunks:
            f.write(chunk)


def write_npy(path, rows, code, depth):
    """rows: lists `depth` deep, all of equal lengths; code: "i" int32, "f" float32."""
    dims, first, flat = [], rows, rows
    for i in range(depth):
        dims.append(len(first))
        if i + 1 < depth:
            first, flat = first[0], [x for row in flat for x in row]
    write_array(path, dims, {"i": "<i4", "f": "<f4"}[code], [array.array(code, flat).tobytes()])


def make_folder_of(path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)


# ---- in, through, out ----


def inputs(args, tokenizer):
    """[(ids)], the last max_input_length of each file's row, the first of a text's, as in the published program."""
    limit, special = args.max_input_length, not args.no_add_special_tokens
    if args.input_file is None:
        return [tokenizer.encode(text, add_special_tokens=special)[:limit] for text in args.input_text]
    if args.input_file.endswith(".csv"):
        with open(args.input_file, encoding="utf-8", newline="") as f:
            return [[int(x) for x in row][-limit:] for row in csv.reader(f)]
    if args.input_file.endswith(".npy"):
        return [[x for x in row if x != tokenizer.pad_token_id][-limit:] for row in read_ids(args.input_file)]
    if args.input_file.endswith(".txt"):
        with open(args.input_file, encoding="utf-8", errors="replace") as f:
            return [tokenizer.encode(line, add_special_tokens=special)[:limit] for line in f]
    print("Input file format not supported.")
    raise SystemExit


def virtual(args, ids, vocab):
    """--num_prepend_vtokens: ids past the vocabulary, which are rows of the prompt table, before each input."""
    if args.num_prepend_vtokens is None:
        return ids
    if len(args.num_prepend_vtokens) != len(ids):
        raise ValueError(f"--num_prepend_vtokens has {len(args.num_prepend_vtokens)} numbers, expected {len(ids)}: one for each input")
    return [[*range(vocab, vocab + n), *row] for n, row in zip(args.num_prepend_vtokens, ids)]


def prompts(args, ids):
    """What goes to the model: ids, and where there is a table the rows of each input's task."""
    if args.prompt_table_path is None:
        return ids
    tables = read_tables(args.prompt_table_path)
    tasks = [0] * len(ids) if args.prompt_tasks is None else [int(x) for x in args.prompt_tasks.split(",")]
    if len(tasks) != len(ids):
        raise ValueError(f"--prompt_tasks has {len(tasks)} tasks, expected {len(ids)}: one for each input")
    if not all(0 <= task < len(tables) for task in tasks):
        raise ValueError(f"--prompt_tasks: {args.prompt_table_path} has {len(tables)} tasks, from 0 on")
    return [{"prompt_token_ids": row, "prompt_embedding_table": tables[task]} for row, task in zip(ids, tasks)]


def ask_for_logits(args, info, params):
    """As far as the engine keeps them."""
    kept = {name: info[f"gather_{name}_logits"] for name in ("context", "generation")}
    if not any(kept.values()):
        raise ValueError("--output_logits_npy needs an engine built with --gather_context_logits or --gather_generation_logits")
    for p in params:
        p.return_context_logits = kept["context"]
        p.return_generation_logits = (kept["generation"] or args.output_generation_logits) and args.num_beams == 1


def show(args, tokenizer, ids, answers, end):
    """answers: for each input the ids of each sequence or beam."""
    for i, (prompt, rows) in enumerate(zip(ids, answers)):
        known = [x for x in prompt if x < tokenizer.vocab_size]
        print(f'Input [Text {i}]: "{tokenizer.decode(known, skip_special_tokens=False)}"')
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
    if args.output_logits_npy:
        write_logits(args.output_logits_npy.split(".npy")[0], outputs)


def write_logits(name, outputs):
    """Of the prompts one behind the other, [tokens, vocabulary]; of the answers, [answers, 1, tokens, vocabulary] with 0 behind the end of the shorter."""
    context = [memoryview(o.context_logits) for o in outputs if o.context_logits is not None]
    if context:
        write_array(name + "_context", (sum(x.shape[0] for x in context), context[0].shape[1]), "<f4", (x.cast("B") for x in context))
    answers = [memoryview(c.generation_logits) for o in outputs for c in o.outputs if c.generation_logits is not None]
    if answers:
        longest, vocab = max(x.shape[0] for x in answers), answers[0].shape[1]
        rows = (x.tobytes() + bytes(4 * vocab * (longest - x.shape[0])) for x in answers)
        write_array(name + "_generation", (len(answers), 1, longest, vocab), "<f4", rows)


def stream(args, llm, ids, asked, params, end):
    answers, shown = [[[] for _ in range(sequences(args))] for _ in ids], 0
    for piece in llm.stream(asked, params):
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
            ids = virtual(args, inputs(args, llm.tokenizer), llm.info["vocab"])
            asked = prompts(args, ids)
            with_probs = args.output_log_probs_npy or args.output_cum_log_probs_npy
            params = common_options.sampling(nereid, args, len(ids), args.max_output_len, 0 if with_probs else None)
            if args.streaming:
                show(args, llm.tokenizer, ids, stream(args, llm, ids, asked, params, end), end)
                return
            if args.output_logits_npy:
                ask_for_logits(args, llm.info, params)
            outputs = llm.generate(asked, params)
            if not args.output_csv and not args.output_npy:
                show(args, llm.tokenizer, ids, [[c.token_ids for c in answers_of(args, o)] for o in outputs], end)
            write_files(args, ids, outputs, end)
            if args.run_profiling:
                start = time.monotonic()
                for _ in range(PROFILED_RUNS):
                    llm.generate(asked, params)
                took = (time.monotonic() - start) / PROFILED_RUNS
                print(f"batch_size: {len(ids)}, avg latency of {PROFILED_RUNS} iterations: : {took} sec")
    except (nereid.Error, OSError, ValueError) as e:
        sys.exit(f"run.py: {e}")


if __name__ == "__main__":
    main()
