"""Measures troupe serve beside llama.cpp's server: the same file, threads and prompts, in alternation.

    python peers.py --troupe PROGRAM --model FILE.gguf [--threads 2] [--rounds 5] [--json FILE]

llama.cpp comes with the package xllamacpp (requirements.txt), or as a program with --llama-server. Both
servers run all the time, and only one has work at a time: troupe bench, with one set of definitions, asks
them in turn. Each figure is the median of the rounds, and a ratio the median of the rounds' ratios: what
else the machine does meets neighbours alike.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

# Words that are one token to most tokenizers, with the space before them.
WORDS = """time people way water day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home room
mother area money story fact month lot right study book eye job word business issue side kind head house service
friend father power hour game line end member law car city community name president team minute idea""".split()

# What is asked: a name, how many at a time, how many each, tokens in and out, and which figure is taken.
LOADS = [
    ("prefill 128", 1, 6, 128, 1, "prefill"),
    ("prefill 512", 1, 4, 512, 1, "prefill"),
    ("decode, 1 sequence", 1, 2, 16, 64, "decode"),
    ("8 at a time, 128 in, 64 out", 8, 16, 128, 64, "output"),
    ("32 at a time, 128 in, 64 out", 32, 32, 128, 64, "output"),
]
SLOTS, SLOT_TOKENS = 32, 640


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def llama_server(args, port):
    """The command that serves with llama.cpp."""
    if args.llama_server:
        return [args.llama_server, "-m", args.model, "--port", str(port), "-t", str(args.threads), "-tb", str(args.threads),
                "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "--no-webui"]
    return [sys.executable, __file__, "--serve-llama", str(port), "--model", args.model, "--threads", str(args.threads)]


def serve_llama(args):
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = args.model
    p.hostnames = ["127.0.0.1"]
    p.port = args.serve_llama
    p.n_parallel, p.n_ctx = SLOTS, SLOTS * SLOT_TOKENS
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = args.threads
    p.verbosity = 0
    server = xllamacpp.Server(p)  # serves as long as it is referred to
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    os._exit(0)  # its threads have nothing to save


def wait_until_up(url, process):
    began = time.monotonic()
    while time.monotonic() - began < 300:
        if process.poll() is not None:
            sys.exit(f"{' '.join(process.args)} ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=2) as r:
                if r.status == 200:
                    return time.monotonic() - began
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{url} is not up after five minutes")


def peak_memory(pid):
    """The most memory that a process has had in use, in MiB; None where the system does not tell."""
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    except OSError:
        return None


def ask(args, url, load, prompts):
    _, concurrency, requests, _, output, figure = load
    out = subprocess.run([args.troupe, "bench", "serve", "--url", url, "--endpoint", "completions", "--concurrency", str(concurrency),
                          "--num-requests", str(requests), "--dataset", prompts, "--output-len", str(output), "--ignore-eos",
                          "--extra-body", '{"temperature":0}', "--json", "-"], capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"troupe bench failed on {url}: {out.stderr}")
    r = json.loads(out.stdout)
    if r["completed"] != requests or r["total_output_tokens"] != requests * output:
        sys.exit(f"{url} completed {r['completed']} of {requests} requests with {r['total_output_tokens']} tokens, wanted are {requests * output}")
    rate = {"prefill": lambda: 1000 * r["total_input_tokens"] / requests / r["median_ttft_ms"],
            "decode": lambda: 1000 / r["median_tpot_ms"],
            "output": lambda: r["output_throughput"]}[figure]()
    return rate, r["total_input_tokens"]


def row(name, rounds):
    ratios = [a / b for a, b in rounds]
    return (f"{name:30}{statistics.median(a for a, _ in rounds):10.1f}{statistics.median(b for _, b in rounds):12.1f}"
            f"{statistics.median(ratios):7.2f}×   {min(ratios):.2f} to {max(ratios):.2f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--troupe", help="the program")
    p.add_argument("--model", required=True, help="a GGUF file")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--llama-server", help="llama.cpp's own program, in place of the package's")
    p.add_argument("--json", help="write all rounds' figures there")
    p.add_argument("--serve-llama", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.serve_llama:
        return serve_llama(args)
    if not args.troupe:
        p.error("--troupe is missing: the program to measure")

    names = ["Troupe", "llama.cpp"]
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    commands = [
        [args.troupe, "serve", args.model, "--port", str(ports[0]), "--threads", str(args.threads), "--request-log", "none", "--no-enable-prefix-caching"],
        llama_server(args, ports[1]),
    ]
    servers, rows = [], []
    rng = random.Random()  # other prompts in each run and round: nothing is found in a prefix cache
    try:
        for name, command, url in zip(names, commands, urls):
            servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            print(f"{name} is up after {wait_until_up(url, servers[-1]):.2f} s", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for load in LOADS:
                rounds = []
                for i in range(-1, args.rounds):  # the first one warms both up
                    prompts = str(pathlib.Path(folder) / "prompts.jsonl")
                    with open(prompts, "w") as f:
                        for _ in range(load[2]):
                            f.write(json.dumps({"prompt": " ".join(rng.choice(WORDS) for _ in range(load[3]))}) + "\n")
                    got = [None, None]
                    for at in ([0, 1] if i % 2 == 0 else [1, 0]):
                        got[at] = ask(args, urls[at], load, prompts)
                    if got[0][1] != got[1][1]:
                        sys.exit(f"the same prompts are {got[0][1]} tokens to {names[0]} and {got[1][1]} to {names[1]}")
                    if i >= 0:
                        rounds.append((got[0][0], got[1][0]))
                    print(f"{load[0]}: round {max(i + 1, 0)} of {args.rounds}", file=sys.stderr, flush=True)
                rows.append((load[0], rounds))
                print(row(load[0], rounds), file=sys.stderr, flush=True)
        memory = [peak_memory(s.pid) for s in servers]
    finally:
        for s in servers:
            s.terminate()
        for s in servers:
            try:
                s.wait(20)
            except subprocess.TimeoutExpired:
                s.kill()

    print(f"{os.path.basename(args.model)}, {args.threads} threads, tokens/s, medians of {args.rounds} rounds")
    print(f"{'':30}{names[0]:>10}{names[1]:>12}{'ratio':>8}   lowest to highest ratio")
    for name, rounds in rows:
        print(row(name, rounds))
    if all(memory):
        print(f"{'peak memory, MiB':30}{memory[0]:10.0f}{memory[1]:12.0f}{memory[0] / memory[1]:7.2f}×")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"model": args.model, "threads": args.threads, "loads": {name: rounds for name, rounds in rows}, "peak_mib": memory}, f, indent=1)


if __name__ == "__main__":
    main()
