"""Compiles the kernels to PTX, and to machine code to see what they use.

    python3 build.py ptx          write troupe.ptx and troupe_80.ptx
    python3 build.py check        fail unless they are what the sources give
    python3 build.py usage        registers and memory of every kernel on sm_75, sm_80 and sm_90
    python3 build.py headers      print the folder of CUDA's headers, for cgo and the tests

It needs the packages of requirements.txt and no GPU.
"""

import ctypes
import hashlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
# The oldest architecture that is supported, and the oldest with tensor cores over 16 halves at once and copies to
# shared memory that run by themselves. Drivers compile the PTX for theirs.
PTX = {"compute_75": HERE / "troupe.ptx", "compute_80": HERE / "troupe_80.ptx"}
MACHINES = {"sm_75": "compute_75", "sm_80": "compute_80", "sm_90": "compute_80"}


def package(name):
    """The folder of one of the nvidia packages, or None."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        if (pathlib.Path(folder) / name).is_dir():
            return pathlib.Path(folder) / name
    sys.exit(f"nvidia/{name} is not installed: python3 -m pip install -r {HERE / 'requirements.txt'}")


def sources():
    """The sources by name, as text."""
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(HERE.iterdir()) if p.suffix in (".cu", ".cuh")}


def digest():
    """What the PTX says that it was made of; gpu/cuda's tests compute the same."""
    h = hashlib.sha256()
    for name, text in sources().items():
        h.update(f"{name} {len(text.encode())}\n{text}".encode())
    return h.hexdigest()


def compile_ptx(architecture):
    library = ctypes.CDLL(str(next((package("cuda_nvrtc") / "lib").glob("libnvrtc.so.*"))))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(function, *arguments):
        code = getattr(library, function)(*arguments)
        return None if code == 0 else library.nvrtcGetErrorString(code).decode()

    def text(size, get):
        n = ctypes.c_size_t()
        call(size, program, ctypes.byref(n))
        buffer = ctypes.create_string_buffer(n.value)
        call(get, program, buffer)
        return buffer.value.decode()

    files = sources()
    main = files.pop("troupe.cu")
    array = ctypes.c_char_p * len(files)
    program = ctypes.c_void_p()
    failed = call("nvrtcCreateProgram", ctypes.byref(program), main.encode(), b"troupe.cu", len(files),
                  array(*(s.encode() for s in files.values())), array(*(n.encode() for n in files)))
    if not failed:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=true"]
        failed = call("nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
        sys.stderr.write(text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"))
    if failed:
        sys.exit(f"troupe.cu does not compile: {failed}")
    ptx = text("nvrtcGetPTXSize", "nvrtcGetPTX")
    return f"// sources: sha256 {digest()}\n" + re.sub(r"[ \t]+$", "", ptx, flags=re.M).strip("\0\n") + "\n"


def usage():
    assembler = package("cuda_nvcc") / "bin" / "ptxas"
    assembler.chmod(0o755)  # pip keeps it, an unpacked archive may not
    worst = 0
    for architecture, virtual in MACHINES.items():
        with tempfile.TemporaryDirectory() as folder:
            out = subprocess.run([assembler, "-v", "-arch", architecture, "-o", f"{folder}/troupe.cubin", PTX[virtual]], capture_output=True, text=True)
        if out.returncode:
            sys.exit(f"{architecture}: {out.stderr}")
        print(f"{architecture:<24}registers  shared  stack  spilled")
        kernel = None
        for line in out.stderr.splitlines():
            if m := re.search(r"Compiling entry function '(\w+)'", line):
                kernel, spilled, stack = m[1], 0, 0
            elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", line):
                stack, spilled = int(m[1]), int(m[2])
            elif m := re.search(r"Used (\d+) registers", line):
                shared = re.search(r"(\d+) bytes smem", line)
                print(f"  {kernel:<22}{m[1]:>9}{shared[1] if shared else 0:>8}{stack:>7}{spilled:>9}")
                worst = max(worst, spilled)
    if worst:
        sys.exit("a kernel keeps registers in memory")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ptx"]:
            for architecture, file in PTX.items():
                file.write_text(compile_ptx(architecture), encoding="utf-8")
        case ["check"]:
            for architecture, file in PTX.items():
                if file.read_text(encoding="utf-8") != compile_ptx(architecture):
                    sys.exit(f"{file.name} is not what the sources give: run task ptx and commit it")
        case ["usage"]:
            usage()
        case ["headers"]:
            print(package("cuda_runtime") / "include")
        case _:
            sys.exit(__doc__)
