"""Writes a GGUF file anew with its quantised matrices in another type.

    python requantise.py --type Q4_0 FROM.gguf TO.gguf

For comparisons on types that no file at hand has: what is quantised twice answers a little worse. Types that
the gguf package only reads are quantised by llama.cpp itself, in the library of the package xllamacpp. A matrix
whose rows don't divide into the type's blocks becomes what llama.cpp makes of it.
"""

import argparse
import ctypes
import pathlib

import engines

gguf, numpy = engines.package("gguf"), engines.package("numpy")

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
INSTEAD = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def llama():
    """llama.cpp's library, which is all in one with xllamacpp's own."""
    xllamacpp = engines.package("xllamacpp")
    found = list(pathlib.Path(xllamacpp.__file__).parent.glob("*.so"))
    library = ctypes.CDLL(str(found[0]))
    # size_t ggml_quantize_chunk(type, const float * src, void * dst, start, nrows, n_per_row, const float * imatrix)
    n = ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, n, n, n, ctypes.c_void_p]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


def quantise(values, kind, library=[]):
    """Rows of float32 as bytes of blocks."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        pass
    if not library:
        library.append(llama())
    size, block = gguf.GGML_QUANT_SIZES[kind]
    values = numpy.ascontiguousarray(values, dtype=numpy.float32)
    columns = values.shape[-1]
    out = numpy.zeros(values.shape[:-1] + (columns // size * block,), dtype=numpy.uint8)
    n = library[0].ggml_quantize_chunk(kind, values.ctypes.data, out.ctypes.data, 0, values.size // columns, columns, None)
    if n != out.nbytes:
        raise SystemExit(f"{kind.name}: llama.cpp wrote {n} bytes, wanted are {out.nbytes}")
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--type", required=True, choices=TYPES)
    p.add_argument("source")
    p.add_argument("target")
    args = p.parse_args()

    reader = gguf.GGUFReader(args.source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(args.target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    file_type = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}.get(args.type, args.type)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{file_type}"])
    for t in reader.tensors:
        if t.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
            continue
        wanted = gguf.GGMLQuantizationType[args.type]
        if t.shape[0] % gguf.GGML_QUANT_SIZES[wanted][0] != 0:
            wanted = gguf.GGMLQuantizationType[INSTEAD[args.type]]
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        writer.add_tensor(t.name, quantise(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
