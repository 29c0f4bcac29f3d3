"""What a GGUF file's shapes say of the least time that a step can take on a machine."""

import dataclasses
import json

import engines

gguf = engines.package("gguf")


@dataclasses.dataclass
class Machine:
    """Its limits, as `troupe bench machine` measures them."""

    processor: str
    instructions: str
    read: float  # bytes a second from memory
    operations: float | None  # multiplications and additions of bytes a second; None where nothing does them

    @classmethod
    def measure(cls, troupe, threads):
        r = json.loads(engines.output_of([troupe, "bench", "machine", "--threads", str(threads), "--json"]))
        return cls(r["processor"], r["instructions"], r["read_bytes_per_second"], r["int8_operations_per_second"])

    def measure_again(self, troupe, threads):
        """Other programs make limits look lower than they are: the highest counts."""
        again = self.measure(troupe, threads)
        self.read = max(self.read, again.read)
        self.operations = self.operations and max(self.operations, again.operations)

    def __str__(self):
        operations = "" if self.operations is None else f", {self.operations / 1e9:,.0f} billion int8 operations a second"
        return f"{self.read / 1e9:.1f} GB/s from memory{operations} ({self.processor}, {self.instructions})"


class Shapes:
    """Weights and cache of a model.

    A step reads each layer's matrices once, and the output matrix; a token multiplies by each of their
    weights, by the output's only where a token is chosen. Attention's arithmetic isn't counted, nor what is
    not a matrix: the time is a lower bound. Of a mixture of experts nothing is known.
    """

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        fields = reader.fields
        architecture = fields["general.architecture"].contents()

        def value(name, default=None):
            f = fields.get(f"{architecture}.{name}")
            return default if f is None else f.contents()

        self.known = not value("expert_count", 0)
        matrices = [t for t in reader.tensors if len(t.shape) > 1]
        layers = [t for t in matrices if t.name.startswith("blk.")]
        named = {t.name: t for t in matrices}
        output = named.get("output.weight", named["token_embd.weight"])
        self.parameters = sum(int(t.n_elements) for t in reader.tensors)
        self.layer_weights, self.layer_bytes = (sum(int(x) for x in each) for each in ([t.n_elements for t in layers], [t.n_bytes for t in layers]))
        self.output_weights, self.output_bytes = int(output.n_elements), int(output.n_bytes)
        heads = value("attention.head_count")
        size = value("attention.key_length", value("embedding_length") // heads)
        # Of each layer: bytes of a token's keys and values in 16 bits, and how many tokens it looks back at.
        per_token = value("attention.head_count_kv", heads) * (size + value("attention.value_length", size)) * 2
        window = value("attention.sliding_window")
        everywhere = 6 if architecture == "gemma3" else 1  # one layer in so many has no window
        self.cached = [
            (per_token, None if window is None or i % everywhere == everywhere - 1 else window) for i in range(value("block_count"))
        ]

    def _most(self, machine, tokens, operations, read):
        """Tokens a second at most, when so many take so much work; None when that isn't known."""
        if not self.known or not machine.operations:
            return None
        return tokens / max(operations / machine.operations, read / machine.read)

    def prefill(self, machine, tokens):
        """Tokens a second of a prompt, at most, until its first token."""
        operations = 2 * (tokens * self.layer_weights + self.output_weights)
        return self._most(machine, tokens, operations, self.layer_bytes + self.output_bytes)

    def decode(self, machine, sequences, depth):
        """Tokens a second, at most, of so many sequences together that have so many tokens before each."""
        cache = sequences * sum(each * min(depth, window or depth) for each, window in self.cached)
        operations = 2 * sequences * (self.layer_weights + self.output_weights)
        return self._most(machine, sequences, operations, self.layer_bytes + self.output_bytes + cache)
