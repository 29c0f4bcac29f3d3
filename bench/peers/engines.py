"""How Troupe and llama.cpp are started and asked for a figure: the same shapes of work for both."""

import http.client
import importlib
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time

# Words that are one token to most tokenizers, with the space before them.
WORDS = """time people way water day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home room
mother area money story fact month lot right study book eye job word business issue side kind head house service
friend father power hour game line end member law car city community name president team minute idea""".split()

BATCHED_PROMPT, BATCHED_TOKENS = 128, 32  # of llama-batched-bench
DECODED = 64  # tokens of llama-bench


def package(name):
    """A package of requirements.txt; where it is missing the program ends with what to do."""
    try:
        return importlib.import_module(name)
    except ImportError as err:
        sys.exit(f"{err}: install what is needed with {sys.executable} -m pip install --requirement {pathlib.Path(__file__).with_name('requirements.txt')}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def output_of(command, env=None):
    out = subprocess.run(command, capture_output=True, text=True, env=env)
    if out.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with status {out.returncode}:\n{out.stderr[-2000:]}")
    return out.stdout


class Troupe:
    """Measured within the process of `troupe bench latency`: without HTTP, but with all that is around the model."""

    name = "Troupe"

    def __init__(self, program, threads):
        self.program, self.threads = program, threads

    def _bench(self, model, sequences, given, tokens, repetitions, warmups):
        out = output_of([
            self.program, "bench", "latency", model, "--threads", str(self.threads), "--batch-size", str(sequences),
            "--input-len", str(given), "--output-len", str(tokens), "--num-iters", str(repetitions), "--num-iters-warmup", str(warmups),
            "--endpoint", "completions", "--extra-body", '{"temperature":0}', "--ignore-eos", "--no-enable-prefix-caching",
            "--save-detailed", "--json", "-"])
        r = json.loads(out)
        if r["completed"] != sequences * repetitions or set(r["output_lens"]) != {tokens}:
            sys.exit(f"troupe bench latency completed {r['completed']} of {sequences * repetitions} requests, with {set(r['output_lens'])} tokens each; wanted are {tokens}")
        return r

    def prefill(self, model, tokens, repetitions, warmups):
        r = self._bench(model, 1, tokens, 1, repetitions, warmups)
        return statistics.median(n / t for n, t in zip(r["input_lens"], r["ttfts"]))

    def decode(self, model, depth):
        r = self._bench(model, 1, max(depth, 4), DECODED + 1, 1, 1 if depth == 0 else 0)
        return 1000 / r["median_tpot_ms"]

    def batched(self, model, sequences):
        # Prompts are computed while others decode already: what counts is the time in which all do. The first ones
        # have decoded for a while by then, so prompts are shorter by what makes contexts as long as llama.cpp's, in the mean.
        ahead = 3 * sequences // 4
        r = self._bench(model, sequences, BATCHED_PROMPT - ahead, BATCHED_TOKENS + 2 + 2 * ahead, 1, 0)
        stamps = []
        for start, first, gaps in zip(r["start_times"], r["ttfts"], r["itls"]):
            at = [start + first]
            for gap in gaps:
                at.append(at[-1] + gap)
            stamps.append(at)
        begin, end = max(s[0] for s in stamps), min(s[-1] for s in stamps)
        if end <= begin:
            sys.exit(f"the {sequences} sequences never decoded at the same time")
        return sum(begin < t <= end for s in stamps for t in s) / (end - begin)

    def server(self, model, port, slots, context, keep=False):
        """The command; with keep it keeps finished prompts, as is its default."""
        return [self.program, "serve", model, "--port", str(port), "--threads", str(self.threads), "--request-log", "none",
                "--enable-prefix-caching" if keep else "--no-enable-prefix-caching", "--max-num-seqs", str(slots), "--max-model-len", str(context)], None


class Llama:
    """llama.cpp's own programs, with its weights repacked as is its default."""

    name = "llama.cpp"

    def __init__(self, folder, threads):
        self.folder, self.threads = pathlib.Path(folder), threads
        self.env = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(filter(None, [str(self.folder), os.environ.get("LD_LIBRARY_PATH")])))

    def _run(self, program, model, *flags):
        return output_of([self.folder / program, "-m", model, "-t", str(self.threads), *map(str, flags)], self.env)

    def _bench(self, model, flash, *flags):
        return {bool(r["flash_attn"]): statistics.median(r["samples_ts"])
                for r in json.loads(self._run("llama-bench", model, "-fa", ",".join(str(int(f)) for f in flash), "-o", "json", *flags))}

    def prefill(self, model, flash, tokens, repetitions, warmups):
        return self._bench(model, flash, "-p", tokens, "-n", 0, "-r", repetitions, *[] if warmups else ["--no-warmup"])

    def decode(self, model, flash, depth):
        return self._bench(model, flash, "-p", 0, "-n", DECODED, "-d", depth, "-r", 1)

    def batched(self, model, flash, sequences):
        # The prompt is computed once and copied, so that each sequence has it in a cache of its own: only time is saved.
        rates = {}
        for f in flash:
            line = self._run("llama-batched-bench", model, "-tb", self.threads, "-c", sequences * (BATCHED_PROMPT + BATCHED_TOKENS), "-npp", BATCHED_PROMPT,
                             "-ntg", BATCHED_TOKENS, "-npl", sequences, "-pps", "-fa", "on" if f else "off", "--output-format", "jsonl")
            rates[f] = json.loads(line.strip().splitlines()[-1])["speed_tg"]
        return rates

    def server(self, model, port, slots, context, flash=True, more=()):
        # -cram 0: finished prompts are not kept beside the slots, which saves copying and memory.
        return [self.folder / "llama-server", "-m", model, "--port", str(port), "-t", str(self.threads), "-tb", str(self.threads), "-np", str(slots),
                "-c", str(slots * context), "-fa", "on" if flash else "off", "-cram", "0", "-fit", "off", "--no-webui", *more], self.env

    def one_token(self, model):
        """The command that prints one token."""
        return [self.folder / "llama-completion", "-m", model, "-t", str(self.threads), "-tb", str(self.threads), "-n", "1", "-p", "The", "-c", "512",
                "-no-cnv", "--no-display-prompt", "--no-warmup", "-fit", "off", "--ignore-eos"], self.env


class Xllamacpp:
    """llama.cpp's server as the package xllamacpp has it: for where its programs are not at hand."""

    name = "llama.cpp (xllamacpp)"

    def __init__(self, threads):
        self.threads = threads

    def server(self, model, port, slots, context, flash=True, more=()):
        return [sys.executable, __file__, model, str(port), str(self.threads), str(slots), str(context)], None


def serve_xllamacpp(model, port, threads, slots, context):
    import signal

    xllamacpp = package("xllamacpp")
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.hostnames = ["127.0.0.1"]
    p.port = int(port)
    p.n_parallel, p.n_ctx = int(slots), int(slots) * int(context)
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
    p.verbosity = 0
    server = xllamacpp.Server(p)  # serves as long as it is referred to
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    os._exit(0)  # its threads have nothing to save


class Server:
    """A server's process, for as long as a with block."""

    def __init__(self, command, env=None):
        self.command, self.env = command, env

    def __enter__(self):
        self.began = time.monotonic()
        self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def first_token(self, port):
        """Seconds from the process's start to a one-token answer, asked for from the start until it comes."""
        body = json.dumps({"prompt": "The", "max_tokens": 1, "temperature": 0, "ignore_eos": True})
        while time.monotonic() - self.began < 300:
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(map(str, self.command))} ended with status {self.process.returncode}")
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                r = c.getresponse()
                text = r.read()
                if r.status == 200:
                    return time.monotonic() - self.began
                if r.status != 503:
                    sys.exit(f"{self.command[0]} answers {r.status}: {text[:500]}")
            except (OSError, http.client.HTTPException):
                pass
            finally:
                c.close()
            time.sleep(0.002)
        sys.exit(f"{self.command[0]} has no answer after five minutes")

    def memory(self):
        """MiB of memory: the most that was in use, and what is in use now that is no file's; None where the system does not tell."""
        kib = {}
        try:
            for line in open(f"/proc/{self.process.pid}/status"):
                name, _, value = line.partition(":")
                if name in ("VmHWM", "RssAnon", "RssShmem"):
                    kib[name] = int(value.split()[0])
            return kib["VmHWM"] / 1024, (kib["RssAnon"] + kib["RssShmem"]) / 1024
        except (OSError, KeyError):
            return None


def first_byte(command, env):
    """Seconds from a process's start to the first byte that it prints."""
    began = time.monotonic()
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
        if not p.stdout.read(1):
            sys.exit(f"{' '.join(map(str, command))} printed nothing: status {p.wait()}")
        return time.monotonic() - began


def prompts(path, number, words, rng=random.Random()):
    """Writes prompts that no other run has, so that nothing is found in a prefix cache."""
    with open(path, "w") as f:
        for _ in range(number):
            f.write(json.dumps({"prompt": " ".join(rng.choice(WORDS) for _ in range(words))}) + "\n")


def ask(troupe, port, dataset, concurrency, requests, tokens):
    """What troupe bench serve says of a load on a server, as its JSON."""
    url = f"http://127.0.0.1:{port}"
    r = json.loads(output_of([
        troupe, "bench", "serve", "--url", url, "--endpoint", "completions", "--concurrency", str(concurrency), "--num-requests", str(requests),
        "--dataset", dataset, "--output-len", str(tokens), "--ignore-eos", "--extra-body", '{"temperature":0}', "--json", "-"]))
    if r["completed"] != requests or r["total_output_tokens"] != requests * tokens:
        sys.exit(f"{url} completed {r['completed']} of {requests} requests with {r['total_output_tokens']} tokens, wanted are {requests * tokens}")
    return r


if __name__ == "__main__":
    serve_xllamacpp(*sys.argv[1:])
