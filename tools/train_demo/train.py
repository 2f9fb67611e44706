#!/usr/bin/env python3
"""Train the demo model on one CPU thread within a fixed time.

What: streams the four domains in a fixed mix, optimises with Muon (matrices) and Adam (embedding,
router, norms), balances the experts, follows a schedule laid over the time that is left (so that the
learning rate has decayed when the time is up), and saves a checkpoint every few minutes.
Why here: the learning rate depends on the clock, so the run's data order is reproducible by seed but
its exact weights are not.
Must not know: file formats of the exported model (export.py).
"""
import argparse
import csv
import json
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import Config, Model

# Share of training tokens per domain, unless --mix says otherwise.
MIX = {"code": 0.30, "math": 0.28, "english": 0.23, "chinese": 0.19}


class Stream:
    """Endless token windows of one domain. Each epoch shuffles the documents, joins them by EOT, cuts
    the stream into windows of length + 1 tokens (overlapping by one) and shuffles the windows:
    batches must not be runs of one document."""

    def __init__(self, docs, tokenizer, length, seed):
        eot = tokenizer.token_to_id("<|endoftext|>")
        self.docs = [np.array(e.ids + [eot], dtype=np.int64) for e in tokenizer.encode_batch(docs)]
        self.length, self.rng, self.epochs, self.windows = length, random.Random(seed), 0, []

    def next(self):
        """One window."""
        if not self.windows:
            self.rng.shuffle(self.docs)
            self.epochs += 1
            stream = np.concatenate(self.docs)
            start = self.rng.randrange(self.length)  # other cuts in each epoch
            self.windows = [stream[n: n + self.length + 1]
                            for n in range(start, len(stream) - self.length, self.length)]
            self.rng.shuffle(self.windows)
        return self.windows.pop()


class Mixer:
    """Draws windows from the streams so that each domain keeps its share."""

    def __init__(self, streams, mix):
        self.streams, self.mix = streams, mix
        self.due = dict.fromkeys(mix, 0.0)

    def batch(self, size):
        """A [size, length + 1] int64 tensor."""
        rows = []
        for _ in range(size):
            for d, share in self.mix.items():
                self.due[d] += share
            domain = max(self.due, key=self.due.get)
            self.due[domain] -= 1
            rows.append(self.streams[domain].next())
        return torch.from_numpy(np.stack(rows))


def orthogonalise(g, steps=4):
    """Newton-Schulz iteration: the nearest semi-orthogonal matrices of g [..., rows, cols]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.transpose(-1, -2) if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.transpose(-1, -2)
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.transpose(-1, -2) if tall else x


class Muon:
    """Momentum, then orthogonalised updates, for weight matrices (K. Jordan 2024).

    Expert matrices, the bulk of the work, take part in every second step, with the gradient summed
    over both."""

    def __init__(self, params, momentum=0.95, decay=0.1):
        self.params = [(p, torch.zeros_like(p)) for p in params]
        self.momentum, self.decay, self.count = momentum, decay, 0

    @torch.no_grad()
    def step(self, lr):
        """One update; clears the gradients it used."""
        self.count += 1
        for p, m in self.params:
            if p.ndim == 3 and self.count % 2:
                continue
            m.lerp_(p.grad, 1 - self.momentum)
            u = p.grad.lerp(m, self.momentum)
            p.grad = None
            if p.ndim == 3 and p.shape[1] == p.shape[2]:  # gate_up: two matrices over each other
                u = torch.cat([orthogonalise(half) for half in u.chunk(2, 1)], 1)
                scale = 1.0
            else:
                u = orthogonalise(u)
                scale = max(1.0, u.shape[-2] / u.shape[-1]) ** 0.5
            p.mul_(1 - lr * self.decay).add_(u, alpha=-lr * scale)


class Clock:
    """Fraction of the run that is done, from process CPU time and the wall-clock deadline.

    A paused process loses wall time but no CPU time, so the fraction only moves by what the pause
    took from the remaining time."""

    def __init__(self, minutes):
        self.start, self.end = time.time(), time.time() + 60 * minutes
        self.cpu0, self.last = time.process_time(), 0.0

    def fraction(self):
        cpu = time.process_time() - self.cpu0
        left = max(0.0, self.end - time.time())
        self.last = max(self.last, cpu / (cpu + 0.95 * left + 1e-9))
        return self.last

    def wall(self):
        return time.time() - self.start


def rate(step, frac, warmup=15, flat=0.25):
    """Warm-up in steps, flat, then linear decay to 2 % over the rest of the time."""
    return min(1.0, (step + 1) / warmup) * min(1.0, 0.02 + 0.98 * (1 - frac) / (1 - flat))


@torch.no_grad()
def heldout_bpb(model, tokenizer, text_dir, windows):
    """Bits per byte on the first `windows` disjoint 512-token windows of each held-out text."""
    model.eval()
    out = {}
    for domain in MIX:
        with open(os.path.join(text_dir, "heldout", domain + ".txt"), encoding="utf-8") as f:
            ids = tokenizer.encode(f.read()).ids[: 512 * windows]
        ids = torch.tensor(ids[: len(ids) // 512 * 512]).view(-1, 512)
        logits = model(ids[:, :-1])
        nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
        text = tokenizer.decode(ids[:, 1:].flatten().tolist())
        out[domain] = nll / np.log(2) / len(text.encode())
    model.train()
    return out


def save(path, model, info):
    """Write a checkpoint so that a reader never sees half a file."""
    torch.save({"model": model.state_dict(), "config": vars(model.cfg), "info": info}, path + ".tmp")
    os.replace(path + ".tmp", path)


def arguments():
    """Command line."""
    cache = os.environ.get("FERRY_CACHE", os.path.expanduser("~/.cache/ferry"))
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--text", default=os.path.join(cache, "demo-data", "text"))
    ap.add_argument("--tokenizer", required=True, help="tokenizer.json")
    ap.add_argument("--out", default=os.path.join(cache, "demo-train"))
    ap.add_argument("--minutes", type=float, default=37.67)
    ap.add_argument("--batch", type=int, default=3, help="windows per step")
    ap.add_argument("--short", type=float, default=0.5,
                    help="fraction of the run with half-length windows")
    ap.add_argument("--context", type=int, default=512)
    ap.add_argument("--muon", type=float, default=0.02, help="Muon learning rate; 0: Adam only")
    ap.add_argument("--adam", type=float, default=8e-3, help="Adam learning rate")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--eval-minutes", type=float, default=8)
    ap.add_argument("--init", help="checkpoint to start from (weights only; use another --seed)")
    ap.add_argument("--pid-file", help="write the process id here")
    ap.add_argument("--mix", help="shares instead of the built-in ones: code,math,english,chinese")
    args = ap.parse_args()
    if args.mix:
        try:
            shares = [float(v) for v in args.mix.split(",")]
        except ValueError:
            shares = []
        if len(shares) != len(MIX) or min(shares, default=0) < 0 or not sum(shares) > 0:
            ap.error(f"--mix {args.mix}: want {len(MIX)} numbers, none negative, not all 0")
        args.mix = {d: v / sum(shares) for d, v in zip(MIX, shares)}
    return args


def optimisers(model, args):
    """Split parameters between Muon and Adam; returns (muon or None, adam)."""
    muon_params, adam_params = [], []
    for name, p in model.named_parameters():
        matrix = p.ndim >= 2 and "embed" not in name and "mlp.gate." not in name
        (muon_params if matrix and args.muon else adam_params).append(p)
    adam = torch.optim.AdamW(adam_params, lr=args.adam, betas=(0.9, 0.98), eps=1e-9,
                             weight_decay=0.0 if args.muon else 0.05, fused=True)
    return (Muon(muon_params) if args.muon else None), adam


def main():
    """Train until the time is up."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.set_flush_denormal(True)
    os.makedirs(args.out, exist_ok=True)
    if args.pid_file:
        with open(args.pid_file, "w", encoding="utf-8") as f:
            f.write(str(os.getpid()) + "\n")
    tokenizer = Tokenizer.from_file(args.tokenizer)
    streams = {}
    for n, domain in enumerate(MIX):
        with open(os.path.join(args.text, "train", domain + ".jsonl"), encoding="utf-8") as f:
            docs = [json.loads(line) for line in f]
        streams[domain] = Stream(docs, tokenizer, args.context, args.seed * 100 + n)
    mixer, model = Mixer(streams, args.mix or MIX), Model(Config(vocab_size=tokenizer.get_vocab_size()))
    if args.init:
        model.load_state_dict(torch.load(args.init, weights_only=True)["model"])
    muon, adam = optimisers(model, args)
    print(f"parameters {sum(p.numel() for p in model.parameters())}", flush=True)
    log = open(os.path.join(args.out, "loss.csv"), "w", newline="", encoding="utf-8")
    curve = csv.writer(log)
    curve.writerow(["step", "tokens", "minutes", "lr_scale", "loss", "balance", "z", "max_load",
                    "min_load"] + ["bpb_" + d for d in MIX])
    clock, step, tokens, sums, count = Clock(args.minutes), 0, 0, np.zeros(3), 0
    load, scale, next_save, next_eval = 0, 0.0, 2.0, args.eval_minutes
    layers = model.cfg.num_hidden_layers
    model.train()
    while True:
        frac = clock.fraction()
        done = frac >= 0.999 or time.time() >= clock.end
        if not done:
            scale = rate(step, frac)
            batch = mixer.batch(args.batch)
            inputs, targets = batch[:, :-1], batch[:, 1:]
            if frac < args.short:  # half windows first: cheaper attention
                inputs, targets = (v.reshape(-1, args.context // 2) for v in (inputs, targets))
            logits = model(inputs)
            ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            balance, z = model.router_losses()
            (ce + 0.01 * balance + 1e-3 * z).backward()
            if muon:
                muon.step(args.muon * scale)
            for group in adam.param_groups:
                group["lr"] = args.adam * scale
            adam.step()
            adam.zero_grad(set_to_none=True)
            load = load + model.loads()
            sums += (ce.item(), balance.item() / layers, z.item() / layers)
            count, step, tokens = count + 1, step + 1, tokens + batch.shape[0] * args.context
        minutes = clock.wall() / 60
        if minutes >= next_save or done:
            info = {"step": step, "tokens": tokens, "minutes": minutes,
                    "epochs": {d: s.epochs for d, s in streams.items()}}
            save(os.path.join(args.out, "checkpoint.pt"), model, info)
            next_save = minutes + 3
        if step % 20 == 0 or done:
            share = load / load.sum(1, keepdim=True) * model.cfg.num_experts
            row = [step, tokens, f"{minutes:.2f}", f"{scale:.4f}"]
            row += [f"{v:.4f}" for v in sums / max(count, 1)]
            row += [f"{share.max():.3f}", f"{share.min():.3f}"]
            if minutes >= next_eval or done:
                bpb = heldout_bpb(model, tokenizer, args.text, 30 if done else 6)
                row += [f"{bpb[d]:.4f}" for d in MIX]
                next_eval = minutes + args.eval_minutes
            curve.writerow(row)
            log.flush()
            speed = tokens / max(time.process_time() - clock.cpu0, 1e-9)
            print(*row, f"{frac:.3f} {speed:.0f} tok/s", flush=True)
            sums, count, load = np.zeros(3), 0, 0
        if done:
            return


if __name__ == "__main__":
    main()
