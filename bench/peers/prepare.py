"""Makes the model files that task bench:peers compares on, and prints their paths, one a line.

    python prepare.py --llama FOLDER --smollm2 FILE.gguf --gemma FILE.gguf FOLDER

SmolLM2 as it is, in Q4_1, and in Q4_0, for which llama.cpp is fastest; Gemma 3 270M in Q4_K_M; and random
weights of 0.6 and 1.5 billion parameters. Files that are there already are left as they are.
"""

import argparse
import os
import pathlib
import subprocess
import sys

import engines
import random_model

RANDOM = [("qwen3-0.6b", "Q4_K_M"), ("qwen3-0.6b", "Q8_0"), ("qwen2.5-1.5b", "Q4_K_M")]


def make(path, write):
    """Writes a file that is not there yet: under another name first, so that half a file is never taken for one."""
    if not path.exists():
        print(f"writing {path}", file=sys.stderr, flush=True)
        part = path.with_suffix(".part")
        write(str(part))
        os.replace(part, path)
    print(path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama", required=True, help="the folder of llama.cpp's programs")
    p.add_argument("--smollm2", required=True, help="SmolLM2-135M-Instruct in Q4_1")
    p.add_argument("--gemma", required=True, help="Gemma 3 270M in Q4_K_M")
    p.add_argument("folder", type=pathlib.Path)
    args = p.parse_args()
    llama = engines.Llama(args.llama, 1)

    def quantise(to):
        subprocess.run([llama.folder / "llama-quantize", "--allow-requantize", args.smollm2, to, "Q4_0"], check=True, env=llama.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    args.folder.mkdir(parents=True, exist_ok=True)
    make(args.folder / "SmolLM2-135M-Q4_0.gguf", quantise)
    for source in args.smollm2, args.gemma:
        print(source)
    for shape, kind in RANDOM:
        make(args.folder / f"random-{shape}-{kind}.gguf", lambda to: random_model.write(to, shape, kind, args.smollm2))


if __name__ == "__main__":
    main()
