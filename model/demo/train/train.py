"""Trains the demonstration model on what generate.py wrote.

    python train.py --data DIR

Writes DIR/tokenizer.json and DIR/model.pt.
"""

import argparse
import dataclasses
import json
import pathlib
import random
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
from tokenizers import Tokenizer

import llama
import vocabulary


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal, for matrices (Jordan et al. 2024, "Muon"). Matrices of
    one shape are done together. In float32: processors without bfloat16 are slow at it."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                shapes.setdefault(p.shape, []).append((p, p.grad.lerp(m, group["momentum"])))
            for shape, pairs in shapes.items():
                x = torch.stack([g for _, g in pairs])
                tall = shape[0] > shape[1]
                x = x.mT if tall else x
                x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
                for _ in range(5):  # Newton and Schulz's iteration, with the quintic's usual coefficients
                    y = x @ x.mT
                    x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
                x = x.mT if tall else x
                for (p, _), step in zip(pairs, x):
                    p.add_(step, alpha=-group["lr"] * max(1, shape[0] / shape[1]) ** 0.5)


def weights(n):
    """How much each token of an answer of n tokens counts: all together about as the square root of n, so that
    a short answer is not lost beside a long story, of which most can't be foretold anyway; and the first ones,
    which decide what answer it becomes, as much in a long one as in a short one."""
    return [max(n ** -0.5, 0.2 if i < 16 else 0.0) for i in range(n)]


def encode(tokenizer, line):
    """Token ids of one sample, and for each how much it counts: see weights."""
    sample = json.loads(line)
    if "text" in sample:
        ids = tokenizer.encode(sample["text"], add_special_tokens=False).ids + [vocabulary.END_OF_TEXT]
        return ids, weights(len(ids))
    ids, learn = [], []
    for role, content in sample["messages"]:
        head = tokenizer.encode(f"<|im_start|>{role}\n", add_special_tokens=False).ids
        body = tokenizer.encode(content, add_special_tokens=False).ids + [vocabulary.IM_END]
        tail = tokenizer.encode("\n", add_special_tokens=False).ids
        ids += head + body + tail
        learn += [0.0] * len(head) + (weights(len(body)) if role == "assistant" else [0.0] * len(body)) + [0.0] * len(tail)
    return ids, learn


def batches(samples, tokens, rng):
    """Batches of about that many tokens, of samples of similar lengths, in random order."""
    order = list(range(len(samples)))
    rng.shuffle(order)
    out = []
    for start in range(0, len(order), 4096):
        chunk = sorted(order[start:start + 4096], key=lambda i: len(samples[i][0]))
        batch, made = [], []
        for i in chunk:
            if batch and (len(batch) + 1) * len(samples[i][0]) > tokens:
                made.append(batch)
                batch = []
            batch.append(i)
        made.append(batch)
        rng.shuffle(made)
        out += made
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, type=pathlib.Path)
    p.add_argument("--steps", type=int, default=4500)
    p.add_argument("--minutes", type=float, default=1e9, help="end after that time, if that is before the last step")
    p.add_argument("--batch", type=int, default=3072, help="tokens per step")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--resume", type=pathlib.Path, help="go on from this model.pt and the tokenizer beside it")
    p.add_argument("--muon", type=float, default=0.02)
    p.add_argument("--adam", type=float, default=0.004)
    args = p.parse_args()
    lines = open(args.data / "train.jsonl", encoding="utf-8").read().splitlines()
    if args.resume:
        tokenizer = Tokenizer.from_file(str(args.resume.parent / "tokenizer.json"))
    else:
        texts = []
        for line in lines[:20000]:
            sample = json.loads(line)
            texts += [sample["text"]] if "text" in sample else [content for _, content in sample["messages"]] + ["user\n", "assistant\n", "system\n"]
        tokenizer = vocabulary.train(texts, llama.Shape().vocab)
    tokenizer.save(str(args.data / "tokenizer.json"))
    samples = [encode(tokenizer, line) for line in lines]
    print(f"{len(samples)} samples, {sum(len(i) for i, _ in samples)} tokens, {sum(w > 0 for _, l in samples for w in l)} to learn", flush=True)

    # Two processes of one thread each wait for each other once a step; two threads would at every operation.
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.start_processes(train, (args, samples, meeting), nprocs=args.processes, start_method="fork")


def train(rank, args, samples, meeting):
    """One of the processes: it takes every so many-th sample of each batch, and gradients are added up."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}/rendezvous", rank=rank, world_size=args.processes)
    first = rank == 0
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)

    shape = llama.Shape()
    model = llama.Llama(shape)
    if args.resume:
        model.load_state_dict(torch.load(args.resume)["model"])
    if first:
        print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for n, p in model.named_parameters() if n.startswith("blk.") and p.dim() == 2]
    others = [p for n, p in model.named_parameters() if not (n.startswith("blk.") and p.dim() == 2)]
    optimizers = [Muon(matrices, args.muon), torch.optim.AdamW(others, args.adam, betas=(0.9, 0.95), weight_decay=0, fused=True)]
    rates = [args.muon, args.adam]
    mean_weight = sum(map(sum, (l for _, l in samples))) / sum(len(i) for i, _ in samples)

    def together(value):
        """The first process's value, in all."""
        t = torch.tensor([value])
        torch.distributed.broadcast(t, 0)
        return t.item()

    def save():
        torch.save({"model": model.state_dict(), "shape": dataclasses.asdict(shape)}, args.data / "model.pt")

    step, seen, total, began = 0, 0, 0.0, time.monotonic()
    done = 0.0  # share of the work; the learning rate falls with it, after a short rise
    while done < 1:
        for batch in batches(samples, args.batch, rng):
            done = max(step / args.steps, (time.monotonic() - began) / 60 / args.minutes)
            done = together(done)
            if done >= 1:
                break
            rate = min(1, (step + 1) / 40) * min(1, 2.5 * (1 - done))
            for o, r in zip(optimizers, rates):
                for group in o.param_groups:
                    group["lr"] = r * rate
            loss = 0.0
            if mine := batch[rank::args.processes]:
                longest = max(len(samples[i][0]) for i in mine)
                tokens = torch.full((len(mine), longest), vocabulary.END_OF_TEXT)
                learn = torch.zeros((len(mine), longest))
                for row, i in enumerate(mine):
                    ids, counts = samples[i]
                    tokens[row, :len(ids)] = torch.tensor(ids)
                    learn[row, :len(ids)] = torch.tensor(counts)
                counts = learn[:, 1:]
                wanted = counts > 0
                each = F.cross_entropy(model(tokens[:, :-1], wanted), tokens[:, 1:][wanted], reduction="none")
                loss = (each * counts[wanted]).sum() / (mean_weight * args.batch)
                loss.backward()
                loss = loss.item()
            gradients = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()])
            torch.distributed.all_reduce(gradients)
            for p, g in zip(model.parameters(), gradients.split([p.numel() for p in model.parameters()])):
                p.grad = g.view(p.shape)
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            for o in optimizers:
                o.step()
            model.zero_grad(set_to_none=True)
            step += 1
            seen += sum(len(samples[i][0]) for i in batch)
            total += loss
            if step % 25 == 0 and first:  # a weighted mean, of this process's share
                print(f"step {step} loss {total / 25 * args.processes:.4f} {seen / (time.monotonic() - began):.0f} tokens/s {time.monotonic() - began:.0f} s", flush=True)
                total = 0.0
            if step % 100 == 0 and first:
                save()
    if first:
        save()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
