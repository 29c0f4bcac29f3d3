"""Writes a GGUF file anew with its quantised matrices in another type.

    python requantise.py --type Q4_0 FROM.gguf TO.gguf

For comparisons on types that no file at hand has: what is quantised twice answers a little worse.
"""

import argparse

import gguf
from gguf.constants import GGMLQuantizationType, GGUFValueType


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--type", required=True, choices=["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
    p.add_argument("source")
    p.add_argument("target")
    args = p.parse_args()
    wanted = GGMLQuantizationType[args.type]

    reader = gguf.GGUFReader(args.source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(args.target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{args.type}"])
    for t in reader.tensors:
        if t.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
            continue
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        writer.add_tensor(t.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
