"""Which rows of which tensor are which there. Comes in: a Model; goes out: Strips between our names and Hugging Face's.

Ours are Megatron-Core's: layers are stacked along a first axis, q, k and v are one tensor with the rows of a group
together, gate and up are one tensor with gate above. A norm goes by the name of the projection after it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ftppo.config_model import Model

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
SCORE = "score.weight"  # Hugging Face's name of a classifier's output, where a language model has "lm_head.weight"
_LAYERS = "decoder.layers."


@dataclass(frozen=True)
class Strip:
    """Rows [start, start + rows) of our tensor `key` are rows [at, at + rows) of Hugging Face's `name`, all columns.

    Where our tensor stacks layers it is about `layer`, whose own first axis are the rows. A vector has no columns.
    """

    key: str
    layer: int | None
    start: int
    name: str
    at: int
    rows: int
    columns: tuple[int, ...]


def stacks_layers(key: str) -> bool:
    """Whether the first axis of our tensor `key` counts the layers."""
    return key.startswith(_LAYERS)


def strips(model: Model, vocab: int, classifies: bool = False) -> list[Strip]:
    """All weights of `model` with `vocab` tokens, as a forward pass meets them; those of one tensor of ours adjoin.

    One that `classifies` gives a number instead of tokens.
    """
    hidden = (model.hidden,)
    found = [Strip(EMBEDDING, None, 0, "model.embed_tokens.weight", 0, vocab, hidden)]
    for layer in range(model.layers):
        found += _layer(model, layer)
    found.append(Strip("decoder.final_layernorm.weight", None, 0, "model.norm.weight", 0, model.hidden, ()))
    if classifies:
        found.append(Strip(OUTPUT, None, 0, SCORE, 0, 1, hidden))
    elif not model.tie_embeddings:
        found.append(Strip(OUTPUT, None, 0, "lm_head.weight", 0, vocab, hidden))
    return found


def shapes(found: Iterable[Strip]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's names and shapes, from strips that cover them."""
    sizes: dict[str, tuple[int, ...]] = {}
    for strip in found:
        rows = max(strip.at + strip.rows, sizes.get(strip.name, (0,))[0])
        sizes[strip.name] = (rows, *strip.columns)
    return sizes


def own_shapes(model: Model, vocab: int) -> dict[str, tuple[int, ...]]:
    """Our names and shapes of all weights of `model` with `vocab` tokens."""
    rows: dict[str, int] = {}
    columns: dict[str, tuple[int, ...]] = {}
    for strip in strips(model, vocab):
        rows[strip.key] = max(strip.start + strip.rows, rows.get(strip.key, 0))
        columns[strip.key] = strip.columns
    layers = {key: (model.layers,) if stacks_layers(key) else () for key in rows}
    return {key: (*layers[key], rows[key], *columns[key]) for key in rows}


def _layer(model: Model, layer: int) -> Iterator[Strip]:
    hidden, heads, size = model.hidden, model.heads * model.head_size, model.head_size

    def whole(key: str, name: str, rows: int, *columns: int) -> Strip:
        return Strip(f"{_LAYERS}{key}", layer, 0, f"model.layers.{layer}.{name}", 0, rows, columns)

    yield whole("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", hidden)
    yield from _qkv(model, layer, "weight", (hidden,))
    if model.family == "qwen2":
        yield from _qkv(model, layer, "bias", ())
    if model.family == "qwen3":
        for part in ("q", "k"):
            yield whole(f"self_attention.{part}_layernorm.weight", f"self_attn.{part}_norm.weight", size)
    yield whole("self_attention.linear_proj.weight", "self_attn.o_proj.weight", hidden, heads)
    yield whole("mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", hidden)
    for half, part in enumerate(("gate", "up")):
        name = f"model.layers.{layer}.mlp.{part}_proj.weight"
        yield Strip(f"{_LAYERS}mlp.linear_fc1.weight", layer, half * model.ffn, name, 0, model.ffn, (hidden,))
    yield whole("mlp.linear_fc2.weight", "mlp.down_proj.weight", hidden, model.ffn)


def _qkv(model: Model, layer: int, kind: str, columns: tuple[int, ...]) -> Iterator[Strip]:
    """The query heads of a group, its key head, its value head; then the next group."""
    size, group = model.head_size, model.heads // model.kv_heads
    start = 0
    for number in range(model.kv_heads):
        for part, heads in (("q", group), ("k", 1), ("v", 1)):
            name, rows = f"model.layers.{layer}.self_attn.{part}_proj.{kind}", heads * size
            yield Strip(f"{_LAYERS}self_attention.linear_qkv.{kind}", layer, start, name, number * rows, rows, columns)
            start += rows
