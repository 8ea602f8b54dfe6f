# SPDX-License-Identifier: Apache-2.0
"""What the trainings share: the model that is imitated, batches of its text, the loop, and the files that come out.

A position t of a text is the token there and the state of which the model chose token t + 1. Anchors are the positions that a loss or a
count looks at: from the last token of the prompt on, and so that `reach` tokens of the answer follow.
"""
import argparse
import json
import pathlib
import time

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

N_TEST = 256  # last rows of the text, which no training sees


# ---- the model ----

class Teacher:
    """The model whose answers are imitated: a Hugging Face folder, in bfloat16 on a GPU."""

    def __init__(self, folder, device):
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.net = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval().requires_grad_(False)
        self.device, self.config = device, self.net.config
        self.embed = self.net.get_input_embeddings().weight
        self.head = self.net.get_output_embeddings().weight

    @torch.no_grad()
    def states(self, ids, layers=()):
        """The normed state at each position, [rows, tokens, hidden], and a list of what goes into the named layers."""
        out = self.net.model(ids, output_hidden_states=bool(layers), use_cache=False)
        return out.last_hidden_state, [out.hidden_states[i] for i in layers]

    @torch.no_grad()
    def probabilities(self, states, tokens=None):
        """What the model chooses from, of all tokens or among some, as float32."""
        return (states @ (self.head if tokens is None else self.head[tokens]).T).float().softmax(-1)


# ---- text ----

class Text:
    """Rows of tokens that the model wrote (make_text.py): ids [rows, tokens], and where each row's answer begins and ends."""

    def __init__(self, path):
        t = load_file(path)
        self.ids, self.first, self.end = t["ids"], t["first"].long(), t["end"].long()
        self.n_train = len(self.ids) - min(N_TEST, len(self.ids) // 4)

    def rows(self, index, device):
        return self.ids[index].long().to(device), self.first[index].to(device), self.end[index].to(device)

    def common_tokens(self, n):
        """The n tokens that come most often in answers, in order of their numbers."""
        at = torch.arange(self.ids.shape[1])
        ids, first, end = self.ids[:self.n_train], self.first[:self.n_train, None], self.end[:self.n_train, None]
        counts = torch.bincount(ids[(at >= first) & (at < end)].long())
        return counts.argsort(descending=True, stable=True)[:n].sort().values


def anchors(ids, first, end, reach, n=None, generator=None):
    """Rows and positions, at most n of them."""
    at = torch.arange(ids.shape[1], device=ids.device)
    row, pos = torch.nonzero((at >= first[:, None] - 1) & (at < end[:, None] - reach), as_tuple=True)
    if n and len(row) > n:
        chosen = torch.randint(len(row), (n,), generator=generator, device=ids.device)
        row, pos = row[chosen], pos[chosen]
    return row, pos


def cross_entropy(logits, wanted):
    """Of a distribution that the model has."""
    return -(wanted * logits.float().log_softmax(-1)).sum(-1).mean()


# ---- the loop ----

def options(doc, **defaults):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("model", type=pathlib.Path, help="Hugging Face folder of the model that is to be sped up")
    p.add_argument("text", type=pathlib.Path, help="its own text, of make_text.py")
    p.add_argument("out", type=pathlib.Path, help="folder of the result; a training that was stopped goes on there")
    p.add_argument("--seconds", type=float, default=300, help="length of the training")
    p.add_argument("--steps", type=int, default=1 << 30, help="at most so many steps")
    p.add_argument("--rows", type=int, default=defaults.pop("rows", 32), help="texts of a step")
    p.add_argument("--anchors", type=int, default=defaults.pop("anchors", 8192), help="positions of a step whose guesses are learned from")
    p.add_argument("--lr", type=float, default=defaults.pop("lr", 1e-3), help="highest learning rate")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--dtype", choices=["int8", "float16"], default="int8", help="of the matrices that are written")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    args = p.parse_args()
    args.device = torch.device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    return args


def train(net, loss_of, text, args):
    """Minimizes loss_of(ids, first, end, generator). The learning rate rises for 2 % of the training and falls to 0 at its end. What is learned is
    kept in the file state.pt every minute."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator(args.device).manual_seed(args.seed)
    kept, step, before = args.out / "state.pt", 0, 0.0
    if kept.exists():
        was = torch.load(kept, map_location=args.device)
        net.load_state_dict(was["net"])
        optimizer.load_state_dict(was["optimizer"])
        step, before = was["step"], was["seconds"]
        print(f"goes on at step {step}", flush=True)
    started, said, mean = time.time() - before, time.time(), None
    while (done := max((time.time() - started) / args.seconds, step / args.steps)) < 1:
        order = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
        ids, first, end = text.rows(torch.randint(text.n_train, (args.rows,), generator=order), args.device)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, done / 0.02 + 1e-3) * (1 - done)
        with torch.autocast(args.device.type, torch.bfloat16, enabled=args.device.type == "cuda"):
            loss = loss_of(ids, first, end, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        mean = loss.detach() if mean is None else mean * 0.98 + loss.detach() * 0.02
        if time.time() - said > 10:
            said = time.time()
            print(f"{args.out.name}: step {step}, {done:.0%}, loss {mean:.3f}", flush=True)
        if step % 500 == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "seconds": time.time() - started}, kept)
    kept.unlink(missing_ok=True)
    print(f"{args.out.name}: {step} steps, loss {float(mean) if mean is not None else 0:.3f}", flush=True)


@torch.no_grad()
def evaluate(guesses, depth, text, args):
    """How long the drafts of texts that no training saw hold, without a tree. guesses(ids, row, pos): [depth, anchors] the tokens of
    positions pos + 2, pos + 3, ..., each as if those before it had held."""
    held, n = torch.zeros(depth), 0
    for start in range(text.n_train, len(text.ids), args.rows):
        ids, first, end = text.rows(slice(start, start + args.rows), args.device)
        row, pos = anchors(ids, first, end, depth + 1)
        if len(row) == 0:
            continue
        with torch.autocast(args.device.type, torch.bfloat16, enabled=args.device.type == "cuda"):
            said = guesses(ids, row, pos)
        right = torch.stack([said[i] == ids[row, pos + 2 + i] for i in range(depth)])
        held += right.cumprod(0).sum(1).cpu()
        n += len(row)
    rates = (held / max(n, 1)).tolist()
    print(f"{args.out.name}: {n} drafts; each token holds with those before it: {' '.join(f'{r:.3f}' for r in rates)}; "
          f"{1 + sum(rates):.2f} tokens a step", flush=True)
    return {"positions": n, "held": [round(r, 4) for r in rates], "tokens_per_step": round(1 + sum(rates), 3)}


# ---- what comes out ----

def write(folder, tensors, config, dtype, file="model.safetensors"):
    """Matrices in float16, or as int8 with NAME_scale for each row; vectors in float16; integers as they are."""
    out = {}
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        if t.is_floating_point() and t.dim() == 2 and dtype == "int8":
            t = t.float()
            scale = t.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
            out[name] = (t / scale).round().to(torch.int8)
            out[name + "_scale"] = scale
        else:
            out[name] = t.half() if t.is_floating_point() else t
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / file)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(f"{folder / file}: {sum(t.numel() * t.element_size() for t in out.values()) / 1e6:.1f} MB", flush=True)
