#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Multiple choice questions of 57 subjects (MMLU): how many a model answers rightly, with the options and lines of the
published mmlu.py. --data_dir holds dev/SUBJECT_dev.csv and test/SUBJECT_test.csv: question, choices, letter."""
import csv
import os
import sys
import tempfile

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "scripts"))
import common_options  # noqa: E402
import nereid_programs  # noqa: E402
from mmlu_subjects import CATEGORIES, FIELDS  # noqa: E402

OUTPUT_LEN = 2  # a blank and the letter may be two tokens


def arguments():
    p = common_options.Options("Questions with four answers to choose from: how many a model answers rightly.")
    common_options.hf_options(p)
    p.option("data_dir", default="data/mmlu")
    p.option("ntrain", type=int, default=5, help="examples before each question; fewer where they are too long")
    p.option("max_input_length", type=int, default=2048)
    p.option("accuracy_threshold", type=float, default=30.0, help="of --check_accuracy, in percent")
    p.set_defaults(max_ite=10000000)
    args = p.parse()
    if args.test_trt_llm == args.test_hf:
        p.error("--test_trt_llm or --test_hf, one of them")
    if args.test_hf and not args.hf_model_dir:
        p.error("--test_hf needs --hf_model_dir")
    args.tokenizer_dir = args.tokenizer_dir or args.hf_model_dir
    return args


def read_questions(path):
    """Rows of a question, its choices and the right letter."""
    with open(path, encoding="utf-8", newline="") as f:
        rows = list(csv.reader(f))
    for i, row in enumerate(rows):
        if not 3 <= len(row) <= 2 + 26 or not row[-1].strip():
            raise ValueError(f"{path}: row {i + 1} must hold a question, its choices and a letter")
    return rows


def as_text(row, with_answer):
    choices = "".join(f"\n{chr(ord('A') + i)}. {choice}" for i, choice in enumerate(row[1:-1]))
    return f"{row[0]}{choices}\nAnswer:" + (f" {row[-1]}\n\n" if with_answer else "")


def prompt_ids(tokenizer, subject, examples, row, limit):
    """As many examples as leave room for the answer; the question alone is cut to its end."""
    # the published prompts have two blanks before the subject
    head = f"The following are multiple choice questions (with answers) about  {subject.replace('_', ' ')}.\n\n"
    for k in range(len(examples), -1, -1):
        ids = tokenizer.encode(head + "".join(as_text(e, True) for e in examples[:k]) + as_text(row, False))
        if len(ids) <= limit:
            return ids
    return ids[-limit:]


def answer_subject(args, nereid, llm, subject):
    """[is right] of its questions."""
    examples = read_questions(os.path.join(args.data_dir, "dev", subject + "_dev.csv"))[:args.ntrain]
    rows = read_questions(os.path.join(args.data_dir, "test", subject + "_test.csv"))[:args.max_ite]
    limit = min(args.max_input_length, llm.info["max_seq_len"] - OUTPUT_LEN)
    ids = [prompt_ids(llm.tokenizer, subject, examples, row, limit) for row in rows]
    outputs = llm.generate(ids, nereid.SamplingParams(max_tokens=OUTPUT_LEN, temperature=1.0, top_k=1, top_p=1.0, min_p=0.0,
                                                      repetition_penalty=1.0))
    return [output.text.strip().startswith(row[-1].strip()) for output, row in zip(outputs, rows)]


def percent(answers):
    return 100 * sum(answers) / len(answers)


def report(by_subject):
    """Fields, categories and all. Those without a question are left out. -> percent of all"""
    def of(fields):
        return [x for field in fields for subject in FIELDS[field] for x in by_subject.get(subject, ())]

    for name, fields in [(field, (field,)) for field in FIELDS] + list(CATEGORIES.items()):
        if of(fields):
            print(f"Average accuracy {percent(of(fields)):.2f} - {name}")
    whole = percent([x for answers in by_subject.values() for x in answers])
    print(f"MMLU weighted average accuracy: {whole:.2f}", flush=True)
    return whole


def main():
    args = arguments()
    nereid = nereid_programs.module()
    try:
        suffix = "_test.csv"
        subjects = sorted(name[:-len(suffix)] for name in os.listdir(os.path.join(args.data_dir, "test"))
                          if name.endswith(suffix))
        by_subject = {}
        with tempfile.TemporaryDirectory() as folder:
            model = common_options.hf_engine(args, folder) if args.test_hf else args.engine_dir
            with common_options.open_llm(nereid, args, model) as llm:
                for subject in subjects:
                    answers = answer_subject(args, nereid, llm, subject)
                    if answers:
                        by_subject[subject] = answers
                        print(f"Average accuracy {percent(answers) / 100:.3f} - {subject}", flush=True)
        if not by_subject:
            raise ValueError(f"there are no questions in '{args.data_dir}/test'")
        whole = report(by_subject)
    except (nereid.Error, OSError, ValueError) as e:
        sys.exit(f"mmlu.py: {e}")
    if args.check_accuracy and whole < args.accuracy_threshold:
        sys.exit(f"Expected accuracy >= {args.accuracy_threshold} while got {whole}")


if __name__ == "__main__":
    main()
