"""Measures Troupe beside llama.cpp: the same files, threads and work, in alternation, in one table for each file.

    python peers.py --troupe PROGRAM --llama FOLDER --model FILE.gguf … [--rounds 5] [--json FILE]

FOLDER has llama.cpp's programs. Without it only servers are compared, llama.cpp's being that of the package
xllamacpp. What is measured, each with all threads of both:

engine  without HTTP: troupe bench latency beside llama-bench and llama-batched-bench. Prefill is a prompt's
        tokens by the time until its first token; decode is a sequence's, or those of several while all decode.
server  troupe serve beside llama-server, both running all the time and one having work at a time, asked by
        troupe bench serve: output tokens of requests of 128 tokens in, 64 out.
load    from a process's start to the one token of an answer, in new processes: of both servers, and of
        llama-completion, which has no server. The file is in the page cache, unless --drop-caches.
memory  the most that a server has in memory, and what of it is no file's, when all of its cache has been used.
        llama.cpp reads the file in the way in which it takes less.

A figure is the median of the rounds, and a ratio the median of the rounds' ratios: what else the machine does
meets neighbours alike. llama.cpp computes with flash attention or without it, whichever was faster in the first
round of a row or, where a round takes long, of one like it. The last columns are the shares of what the machine
does at most, as troupe bench machine measures it: the time that reading the weights and the cache takes, or
multiplying by each weight, whichever is longer.
"""

import argparse
import dataclasses
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import typing

import engines
import roofline

SECTIONS = ["engine", "server", "load", "memory"]
PREFILL = {512: (1, 1), 32: (4, 1), 128: (2, 1), 2048: (1, 0)}  # by tokens: prompts in a round, and others before to warm up
DEPTHS = [0, 2000]
BATCHES = [8, 1, 2, 32]
LIKE = {"prefill, 32 tokens": "prefill, 512 tokens", "prefill, 128 tokens": "prefill, 512 tokens"}  # which row's flash attention is taken
LIKE |= {f"decode, {s} at once": "decode, 8 at once" for s in BATCHES}
SERVED = {1: 2, 2: 4, 8: 8, 32: 32}  # requests in a round, by how many at a time
IN, OUT = 128, 64
SLOTS, CONTEXT = 32, 256  # of servers
MEMORY = [(1, 2048), (SLOTS, CONTEXT)]  # slots and context
# What the rounds are for; the others are measured in fewer.
MAIN = re.compile(r"prefill, 512|decode, (depth 0|1 |8|32)|server, (8|32)|load")
LARGE = 400_000_000  # parameters, above which rounds are fewer too


def shrink():
    """Makes all work so small that a run tells only whether it works."""
    global PREFILL, DEPTHS, BATCHES, SERVED, IN, OUT, MEMORY
    PREFILL, DEPTHS, BATCHES, SERVED = {128: (1, 0)}, [0, 128], [8, 1], {8: 8}
    IN, OUT, MEMORY = 32, 8, [(4, 128)]
    engines.DECODED, engines.BATCHED_PROMPT, engines.BATCHED_TOKENS = 8, 32, 4


@dataclasses.dataclass
class Row:
    name: str
    unit: str
    rounds: list  # (Troupe's, llama.cpp's)
    limit: typing.Callable | None = None  # from a machine, how many tokens/s there are at most
    note: str = ""

    @property
    def medians(self):
        return [statistics.median(side) for side in zip(*self.rounds)]

    @property
    def ratios(self):
        return [a / b for a, b in self.rounds]

    def shares(self, machine):
        """Of the limit, each side's; none where that isn't known."""
        most = self.limit and self.limit(machine)
        return [m / most for m in self.medians] if most else []

    def cells(self, machine):
        digits = 2 if self.unit == "s" else 0 if self.medians[0] >= 100 else 1
        ratios = self.ratios
        spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
        shares = [f"{100 * share:.0f} %" for share in self.shares(machine)] or ["", ""]
        name = f"{self.name}, {self.unit}" + (f" ({self.note})" if self.note else "")
        return [name, *(f"{m:,.{digits}f}" for m in self.medians), f"{statistics.median(ratios):.2f}{spread}", *shares]


def say(text, began=time.monotonic()):
    print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)


class Comparison:
    """One model file."""

    def __init__(self, args, machine, troupe, llama, path, save):
        self.args, self.machine, self.troupe, self.llama, self.path, self.save = args, machine, troupe, llama, path, save
        self.shapes = roofline.Shapes(path)
        self.large = self.shapes.parameters > LARGE
        self.rows = []
        self.flash = {}  # by row: whether llama.cpp is faster with it
        with open(path, "rb") as f:  # into the page cache
            while f.read(1 << 24):
                pass

    @property
    def title(self):
        return f"{os.path.basename(self.path)}: {self.shapes.parameters / 1e6:,.0f} million parameters, {os.path.getsize(self.path) / 1e6:,.0f} MB"

    def rounds_of(self, name):
        a = self.args
        if MAIN.search(name):
            return min(a.rounds, a.large_rounds) if self.large else a.rounds
        return 1 if self.large else min(a.rounds, a.other_rounds)

    def wanted(self, name):
        return not self.args.only or re.search(self.args.only, name)

    @property
    def sections(self):
        """Those to measure: servers of a large model only where that is asked for."""
        return [s for s in self.args.sections if s != "server" or not self.large or self.args.large_server]

    def alternate(self, name, unit, ours, theirs, limit=None, note="", rounds=None):
        """Measures a row, unless it is not wanted."""
        if not self.wanted(name):
            return
        rows, n = [], rounds or self.rounds_of(name)
        for i in range(n):
            got = [0.0, 0.0]
            for at in (0, 1) if i % 2 == 0 else (1, 0):
                got[at] = (ours, theirs)[at]()
            rows.append(tuple(got))
            say(f"{os.path.basename(self.path)}: {name}, {unit}: round {i + 1} of {n}: {got[0]:,.2f} to {got[1]:,.2f}")
        if name in self.flash:
            note = "llama.cpp with flash attention" if self.flash[name] else "llama.cpp without flash attention"
        self.rows.append(Row(name, unit, rows, limit, note))
        self.save()

    def faster(self, name, ask):
        """Asks llama.cpp with and without flash attention at first, and then in the way that was faster."""

        def measure():
            like = LIKE.get(name, name)
            if like not in self.flash and self.large and self.rounds_of(name) < self.rounds_of("load"):
                like = "prefill, 512 tokens"
            ways = [self.flash[like]] if like in self.flash else [False, True]
            rates = ask(ways)
            self.flash[name] = max(rates, key=rates.get)
            return rates[self.flash[name]]

        return measure

    def engine(self):
        t, l, path, shapes = self.troupe, self.llama, self.path, self.shapes
        for n, (repetitions, warmups) in PREFILL.items():
            name = f"prefill, {n} tokens"
            self.alternate(name, "tokens/s", lambda: t.prefill(path, n, repetitions, warmups), self.faster(name, lambda f: l.prefill(path, f, n, repetitions, warmups)),
                           lambda machine, n=n: shapes.prefill(machine, n))
        for d in DEPTHS:
            name = f"decode, depth {d}"
            self.alternate(name, "tokens/s", lambda: t.decode(path, d), self.faster(name, lambda f: l.decode(path, f, d)),
                           lambda machine, d=d: shapes.decode(machine, 1, d + engines.DECODED // 2))
        for s in BATCHES:
            name = f"decode, {s} at once"
            self.alternate(name, "tokens/s", lambda: t.batched(path, s), self.faster(name, lambda f: l.batched(path, f, s)),
                           lambda machine, s=s: shapes.decode(machine, s, engines.BATCHED_PROMPT + engines.BATCHED_TOKENS // 2))
        number = re.compile(r"\d+")
        kinds = list(dict.fromkeys(number.sub("", r.name) for r in self.rows))
        self.rows.sort(key=lambda r: (kinds.index(number.sub("", r.name)), int(number.search(r.name)[0])))

    def served(self, side, slots, context, more=(), keep=False):
        """A server's process and its port. llama.cpp has flash attention as it was faster for several sequences."""
        port = engines.free_port()
        if side is self.troupe:
            return engines.Server(*side.server(self.path, port, slots, context, keep)), port
        return engines.Server(*side.server(self.path, port, slots, context, self.flash.get("decode, 8 at once", True), more)), port

    def server(self):
        (a, port_a), (b, port_b) = self.served(self.troupe, SLOTS, CONTEXT), self.served(self.llama, SLOTS, CONTEXT)
        with tempfile.TemporaryDirectory() as folder, a, b:
            a.first_token(port_a)
            b.first_token(port_b)
            dataset = os.path.join(folder, "prompts.jsonl")

            def ask(port, concurrency):
                # Each side of a round gets the prompts that were written for its first one.
                r = engines.ask(self.args.troupe, port, dataset, concurrency, SERVED[concurrency], OUT)
                seen.append(r["total_input_tokens"])
                if len(seen) % 2 == 0:
                    if seen[-1] != seen[-2]:
                        sys.exit(f"the same prompts are {seen[-2]} tokens to one server and {seen[-1]} to the other")
                    engines.prompts(dataset, SERVED[concurrency], IN)
                return r["output_throughput"]

            for concurrency, requests in SERVED.items():
                seen = []
                engines.prompts(dataset, requests, IN)
                self.alternate(f"server, {concurrency} at once", "tokens/s", lambda: ask(port_a, concurrency), lambda: ask(port_b, concurrency))

    def load(self):
        def start(side, more=()):
            self.drop_caches()
            server, port = self.served(side, 1, 2048, more)
            with server:
                return server.first_token(port)

        self.alternate("load, server to first token", "s", lambda: start(self.troupe), lambda: start(self.llama, ["--no-warmup"]))
        if hasattr(self.llama, "one_token"):
            def complete():
                self.drop_caches()
                return engines.first_byte(*self.llama.one_token(self.path))

            self.alternate("load, server beside llama-completion", "s", lambda: start(self.troupe), complete)

    def drop_caches(self):
        if self.args.drop_caches:
            os.sync()
            with open("/proc/sys/vm/drop_caches", "w") as f:
                f.write("3")

    def memory(self):
        def fill(side, slots, context, more=()):
            server, port = self.served(side, slots, context, more, keep=True)
            with tempfile.TemporaryDirectory() as folder, server:
                server.first_token(port)
                dataset = os.path.join(folder, "prompts.jsonl")
                # llama.cpp writes all of its cache at the start. Troupe's is memory only once it was used: prompts that
                # are kept when they are done fill it.
                requests, words = (slots + slots // 16, context - 24) if side is self.troupe else (min(slots, 4), min(context - 24, 512))
                engines.prompts(dataset, requests, words)
                engines.ask(self.args.troupe, port, dataset, min(slots, requests), requests, 8)
                return server.memory()

        for slots, context in MEMORY:
            name = f"memory, {slots} × {context:,} tokens"
            if not self.wanted(name):
                continue
            ways = [["-lm", "none"], []] if hasattr(self.llama, "one_token") else [[]]
            ours = fill(self.troupe, slots, context)
            theirs = [fill(self.llama, slots, context, more) for more in ways]
            if ours is None or None in theirs:
                say("the system tells nothing of processes' memory")
                return
            # The peak may have been of either way of reading the file, and so may what is no file's.
            for at, what in enumerate(["at most", "no file's"]):
                self.rows.append(Row(name, "MiB", [(ours[at], min(x[at] for x in theirs))], note=what))
            self.save()
            say(f"{os.path.basename(self.path)}: {name}: {ours[0]:.0f} MiB to {min(x[0] for x in theirs):.0f}")

    def measure(self):
        for section in self.sections:
            if section == "engine" and not hasattr(self.llama, "prefill"):
                say("no engine figures: llama.cpp's own programs are needed for them (--llama)")
            else:
                getattr(self, section)()

    def estimate(self):
        """About how many seconds measuring takes, by how fast both compute now."""
        rates = [(self.troupe.prefill(self.path, 128, 1, 0), self.troupe.batched(self.path, 8)),
                 (self.llama.prefill(self.path, [True], 128, 1, 0)[True], self.llama.batched(self.path, [True], 8)[True])]
        start = 0.3 + os.path.getsize(self.path) / 1e9  # of a process
        seconds = 0
        for side, (prefill, decode) in enumerate(rates):
            def add(name, processes, computed, decoded):
                if self.wanted(name):
                    return self.rounds_of(name) * (processes * start + computed / prefill + decoded / decode)
                return 0

            for section in self.sections:
                if section == "engine":
                    seconds += sum(add(f"prefill, {n} tokens", 1, n * (r + w), 0) for n, (r, w) in PREFILL.items())
                    seconds += sum(add(f"decode, depth {d}", 1, d, 3 * engines.DECODED) for d in DEPTHS)
                    seconds += sum(add(f"decode, {s} at once", 1, s * engines.BATCHED_PROMPT * (side == 0), s * engines.BATCHED_TOKENS * (2 if side == 0 else 1))
                                   for s in BATCHES)
                elif section == "server":
                    seconds += sum(add(f"server, {c} at once", 0, n * IN, n * OUT) for c, n in SERVED.items())
                elif section == "load":
                    seconds += add("load", 1.5, 0, 0)
                elif section == "memory":
                    seconds += sum(s * c for s, c in MEMORY) / prefill / (1 if side == 0 else 10) + len(MEMORY) * start
        return 1.2 * seconds  # with what is measured twice to choose


def table(comparison, args, machine):
    out = [f"### {comparison.title}", "", f"| {args.threads} threads | Troupe | {comparison.llama.name} | ratio (lowest to highest) | of the machine: Troupe | llama.cpp |",
           "| --- | --- | --- | --- | --- | --- |"]
    out += ["| " + " | ".join(r.cells(machine)) + " |" for r in comparison.rows]
    return "\n".join(out) + "\n"


def document(comparisons, args, machine):
    """All that was measured, for --json."""
    return {
        "machine": dataclasses.asdict(machine), "threads": args.threads,
        "models": [{
            "file": os.path.basename(c.path), "bytes": os.path.getsize(c.path), "parameters": c.shapes.parameters, "peer": c.llama.name,
            "rows": [{"name": r.name, "unit": r.unit, "note": r.note, "rounds": r.rounds, "troupe": r.medians[0], "llama.cpp": r.medians[1],
                      "ratio": statistics.median(r.ratios), "lowest": min(r.ratios), "highest": max(r.ratios), "shares": r.shares(machine)} for r in c.rows],
        } for c in comparisons],
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--troupe", required=True, help="the program to measure")
    p.add_argument("--llama", help="the folder of llama.cpp's programs")
    p.add_argument("--model", required=True, nargs="+", help="GGUF files")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--other-rounds", type=int, default=2, help="at most so many rounds of what is no target: prefill of other lengths, decode at depth, one or two requests at a time")
    p.add_argument("--large-rounds", type=int, default=3, help="at most so many rounds of models with more than 400 million parameters, and one of what is no target")
    p.add_argument("--large-server", action="store_true", help="compare servers on those, too")
    p.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    p.add_argument("--only", metavar="PATTERN", help="only rows in whose names this regular expression is found")
    p.add_argument("--quick", action="store_true", help="one round of a little work, to see that all works: its figures mean nothing")
    p.add_argument("--drop-caches", action="store_true", help="empty the page cache before each load, as root")
    p.add_argument("--json", help="write all rounds' figures there, after each row")
    p.add_argument("--markdown", help="write the tables there, too")
    args = p.parse_args()
    if args.quick:
        args.rounds = args.other_rounds = args.large_rounds = 1
        shrink()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended
    machine = roofline.Machine.measure(args.troupe, args.threads)
    say(f"{args.threads} threads: {machine}")
    troupe = engines.Troupe(args.troupe, args.threads)
    llama = engines.Llama(args.llama, args.threads) if args.llama else engines.Xllamacpp(args.threads)
    comparisons = []

    def save():
        if args.json:
            with open(args.json, "w") as f:
                json.dump(document(comparisons, args, machine), f, indent=1)

    for path in args.model:
        comparisons.append(Comparison(args, machine, troupe, llama, path, save))
    if args.llama and not args.quick:
        estimates = [c.estimate() for c in comparisons]
        say(f"this takes about {sum(estimates) / 60:.0f} minutes at most: " + ", ".join(f"{os.path.basename(c.path)} {e / 60:.1f}" for c, e in zip(comparisons, estimates)))
    try:
        for c in comparisons:
            c.measure()
            machine.measure_again(args.troupe, args.threads)
    except KeyboardInterrupt:
        say("interrupted: this is what was measured")
    tables = "\n".join([table(c, args, machine) for c in comparisons if c.rows] + [f"The machine at most: {machine}."])
    print(tables)
    if args.markdown:
        with open(args.markdown, "w") as f:
            f.write(tables + "\n")


if __name__ == "__main__":
    main()
