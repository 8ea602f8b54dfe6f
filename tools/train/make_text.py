#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets a model write the text that drafts for it are trained on: answers to prompts that are put together here.

    tools/train/make_text.py MODEL TEXT.safetensors [--rows 49152] [--tokens 256]

A third of the answers is greedy, a third drawn at temperature 0.7 and a third at 1. A TEXT that exists is added to until it has --rows rows.
"""
import argparse
import itertools
import pathlib
import random
import time

import torch
from common import Teacher
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

TASKS = ["Explain {}{}.", "What is {}{}?", "Write a short story about {}{}.", "Write a poem about {}{}.", "List five facts about {}{}.",
         "Give a definition of {}{}.", "Why does {} matter{}?", "Summarize what is known about {}{}.", "Write an email about {}{}.",
         "How would you teach {}{}?", "Compare {} with something similar{}.", "What are the pros and cons of {}{}?", "Tell me a joke about {}{}.",
         "Write a dialogue about {}{}.", "What is the history of {}{}?", "Ask me three questions about {}{}.", "Give advice on {}{}.",
         "Describe {}{}.", "Write a plan for a lesson on {}{}.", "What mistakes do people make with {}{}?", "Write a Python function that has to do with {}{}.",
         "How has {} changed over time{}?", "Write a product description about {}{}.", "What would happen without {}{}?", "Make a table about {}{}.",
         "Give an example of {}{}.", "Write a news article about {}{}.", "Write a letter to a friend about {}{}.", "How does {} work{}?"]
STARTS = ["The history of {} begins", "Once upon a time there was someone who loved {}.", "{} is", "Chapter 1: {}\n\n", "Q: What is {}?\nA:",
          "Here are some notes on {}:\n", "def describe():\n    \"\"\"Says what is special about {}.\"\"\"\n", "# {}\n\n", "In this article we look at {}."]
MANNERS = ["", "", "", "", " in one paragraph", " in simple words", " for a child", " for an expert", " with examples", " step by step",
           " in two sentences", " in a formal tone", " as a list", " from the view of a historian", " with numbers", " for a student"]
TOPICS = """the moon|bicycles|bread|the sea|clocks|winter|libraries|copper|bridges|rain|gravity|democracy|chess|photosynthesis|volcanoes|the Roman Empire|
jazz|the human heart|electric cars|bees|inflation|recursion|sorting a list|prime numbers|fractions|the French Revolution|tea|coffee|sleep|dreams|
trains|ships|airplanes|satellites|Mars|black holes|stars|atoms|light|sound|magnets|batteries|solar power|wind turbines|nuclear energy|rivers|lakes|
deserts|forests|mountains|islands|glaciers|earthquakes|hurricanes|clouds|snow|fire|water|salt|sugar|chocolate|cheese|rice|apples|gardening|roses|
oak trees|mushrooms|dogs|cats|horses|elephants|whales|sharks|penguins|eagles|owls|ants|spiders|butterflies|dinosaurs|fossils|evolution|DNA|viruses|
vaccines|antibiotics|the immune system|the brain|memory|learning|languages|grammar|poetry|novels|theater|film|photography|painting|sculpture|
architecture|castles|cathedrals|cities|villages|roads|maps|compasses|explorers|pirates|knights|kings and queens|the Silk Road|ancient Egypt|
ancient Greece|the Vikings|the Renaissance|the Industrial Revolution|steam engines|the printing press|the telephone|radio|television|the internet|
email|search engines|social media|privacy|passwords|encryption|programming|databases|binary search|linked lists|hash tables|operating systems|
robots|machine learning|neural networks|statistics|probability|geometry|algebra|calculus|logic|philosophy|ethics|friendship|courage|patience|
happiness|stress|exercise|running|swimming|football|tennis|yoga|cooking|soup|pizza|salads|breakfast|travel|hotels|museums|schools|teachers|
homework|exams|job interviews|resumes|meetings|leadership|teamwork|negotiation|money|banks|taxes|budgets|insurance|markets|trade|farming|fishing|
mining|steel|glass|plastic|recycling|climate change|pollution|bicycles in cities|public transport|elections|laws|courts|police|hospitals|doctors|
nurses|dentists|glasses|clothes|shoes|hats|jewelry|music theory|guitars|pianos|drums|orchestras|dance|festivals|holidays|birthdays|weddings|
families|children|grandparents|neighbors|pets|houses|kitchens|furniture|tools|paint|lamps|windows|doors|keys|umbrellas|bags|books|pens|paper|letters""".replace("\n", "").split("|")


def prompts(tokenizer, seed):
    """Ids of questions in the model's chat format, and of texts to go on with, without end."""
    rng = random.Random(seed)
    chat = "ASK"
    if tokenizer.chat_template:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": chat}], tokenize=False, add_generation_prompt=True)
    while True:
        topic = rng.choice(TOPICS)
        if rng.random() < 0.2:
            yield tokenizer(rng.choice(STARTS).format(topic[0].upper() + topic[1:])).input_ids
            continue
        ask = rng.choice(TASKS).format(topic, rng.choice(MANNERS))
        yield tokenizer(chat.replace("ASK", ask)).input_ids


def batches(source, rows):
    """Prompts of equal length, so that nothing is padded."""
    waiting = {}
    for ids in source:
        some = waiting.setdefault(len(ids), [])
        some.append(ids)
        if len(some) == rows:
            yield torch.tensor(waiting.pop(len(ids)))


@torch.no_grad()
def answer(teacher, prompt, n_new, ends, temperature, generator):
    """[rows, prompt + n_new], and the length of each row with its end token."""
    out = [prompt]
    length = torch.full((len(prompt),), prompt.shape[1] + n_new, device=prompt.device)
    cache, ids = None, prompt
    for i in range(n_new):
        done = teacher.net(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = done.past_key_values, done.logits[:, -1].float()
        noise = torch.empty_like(logits).exponential_(generator=generator).log_()  # the largest of logits - log(exponential) is a draw
        ids = (logits - temperature[:, None] * noise).argmax(-1, keepdim=True)
        out.append(ids)
        length = torch.where(torch.isin(ids[:, 0], ends) & (length == prompt.shape[1] + n_new), prompt.shape[1] + i + 1, length)
    return torch.cat(out, 1), length


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("text", type=pathlib.Path)
    p.add_argument("--rows", type=int, default=49152)
    p.add_argument("--tokens", type=int, default=256, help="longest answer")
    p.add_argument("--batch", type=int, default=4096)
    p.add_argument("--seconds", type=float, default=1e9, help="stop then")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    device = torch.device(args.device)
    teacher, tokenizer = Teacher(args.model, device), AutoTokenizer.from_pretrained(args.model)
    ends = teacher.net.generation_config.eos_token_id or teacher.config.eos_token_id
    ends = torch.tensor(ends if isinstance(ends, list) else [ends], device=device)
    kept = load_file(args.text) if args.text.exists() else {}
    have, started = len(kept.get("ids", [])), time.time()
    source = batches(prompts(tokenizer, args.seed + have), args.batch)
    temperature = torch.tensor(list(itertools.islice(itertools.cycle([0, 0.7, 1.0]), args.batch)), device=device)
    generator = torch.Generator(device).manual_seed(args.seed + have)
    while have < args.rows and time.time() - started < args.seconds:
        prompt = next(source).to(device)
        ids, length = answer(teacher, prompt, args.tokens, ends, temperature, generator)
        width = max(ids.shape[1], kept["ids"].shape[1] if kept else 0)
        new = {"ids": torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=int(ends[0])).int().cpu(),
               "first": torch.full((len(ids),), prompt.shape[1], dtype=torch.int32), "end": length.int().cpu()}
        if kept:
            kept["ids"] = torch.nn.functional.pad(kept["ids"], (0, width - kept["ids"].shape[1]), value=int(ends[0]))
        kept = {k: torch.cat([kept[k], v]) for k, v in new.items()} if kept else new
        have = len(kept["ids"])
        n = int((kept["end"] - kept["first"]).sum())
        print(f"{have} answers of {n} tokens, {time.time() - started:.0f} s", flush=True)
        save_file(kept, args.text)


if __name__ == "__main__":
    main()
