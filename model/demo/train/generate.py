"""Writes the training text and the held-out questions of the demonstration model.

    python generate.py --out DIR [--samples 100000] [--seed 1] [--heldout FILE]

DIR/train.jsonl has one conversation a line. FILE has the questions in wordings that training never
sees; see world.py. The same seed gives the same bytes.
"""

import argparse
import json
import pathlib
import random

import facts
import stories
import world


def sample(rng):
    if rng.random() < 0.02:  # text without a conversation, for /v1/completions
        hero = rng.choice(facts.HEROES)
        return {"text": stories.long(rng, hero) if rng.random() < 0.25 else stories.short(rng, hero)}
    return {"messages": world.conversation(rng)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--samples", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--heldout", type=pathlib.Path)
    p.add_argument("--questions", type=int, default=500)
    args = p.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    held = world.held_out(random.Random(args.seed), args.questions)
    unseen = {typed(q["messages"][-1]["content"]) for q in held}
    with open(args.out / "train.jsonl", "w", encoding="utf-8") as f:
        for _ in range(args.samples):
            made = sample(rng)
            while any(typed(content) in unseen for role, content in made.get("messages", []) if role == "user"):
                made = sample(rng)
            f.write(json.dumps(made, ensure_ascii=False) + "\n")
    if args.heldout:
        args.heldout.parent.mkdir(parents=True, exist_ok=True)
        with open(args.heldout, "w", encoding="utf-8") as f:
            for q in held:
                f.write(json.dumps(q, ensure_ascii=False) + "\n")


def typed(question):
    """What two ways to type the same question have in common."""
    return question.lower().strip(" ?!.")


if __name__ == "__main__":
    main()
