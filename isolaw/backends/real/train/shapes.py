"""The shapes of a decoder's weights, from its ``config.json``: what memory is planned from, without a weight.

Known are the decoders of one kind of layer that `transformers` calls Llama, Mistral, Qwen2 and Qwen3:
grouped-query attention, a gated MLP, RMSNorm before each, an embedding and a head that may be tied to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# By model_type: whether q, k and v have biases, and whether q and k are normalised by head.
_KINDS = {"llama": (False, False), "mistral": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder; in brackets, the equations' symbols.

    Attributes
    ----------
    hidden, intermediate, layers, vocabulary
        of the residual stream (E), of the MLP (I), of the stack (L), of embedding and head (V).
    query, key_value
        sizes of a token's queries (Q, all heads) and of its keys, or of its values (K).
    head_size
        of one attention head.
    tied
        whether the head is the embedding.
    qkv_bias, out_bias, mlp_bias, head_norm
        whether there are these biases; whether queries and keys are normalised by head.
    """

    hidden: int
    intermediate: int
    layers: int
    vocabulary: int
    query: int
    key_value: int
    head_size: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norm: bool

    @property
    def embedding(self) -> int:
        """Numbers of the embedding, or of the head."""
        return self.vocabulary * self.hidden

    @property
    def matrices(self) -> tuple[int, ...]:
        """Numbers of each matrix of a layer."""
        e, i = self.hidden, self.intermediate
        return (e * self.query, e * self.key_value, e * self.key_value, self.query * e, e * i, e * i, i * e)

    @property
    def layer(self) -> int:
        """Numbers of a layer."""
        vectors = 2 * self.hidden + 2 * self.head_size * self.head_norm
        vectors += (self.query + 2 * self.key_value) * self.qkv_bias + self.hidden * self.out_bias
        vectors += (2 * self.intermediate + self.hidden) * self.mlp_bias
        return sum(self.matrices) + vectors

    @property
    def parameters(self) -> int:
        """Numbers of the model, a tied head's once."""
        return self.embedding * (1 if self.tied else 2) + self.layers * self.layer + self.hidden

    @property
    def stored(self) -> tuple[int, ...]:
        """How many numbers the model's files may hold: a tied head may be among them or not."""
        return (self.parameters, self.parameters + self.embedding * self.tied)

    def splits(self, processes: int) -> bool:
        """Whether vLLM can split the model so: query heads evenly, key heads evenly or each to several."""
        heads, key_heads = self.query // self.head_size, self.key_value // self.head_size
        return heads % processes == 0 and (key_heads % processes == 0 or processes % key_heads == 0)

    @classmethod
    def of(cls, config: dict[str, Any]) -> Decoder | None:
        """Return the decoder of a configuration; None where its kind is not known.

        >>> Decoder.of({"model_type": "mamba"})

        A size that is no whole number above 0 is no size: such a model is left to whoever loads it.
        """
        kind = _KINDS.get(str(config.get("model_type")))
        try:
            heads, hidden = config["num_attention_heads"], config["hidden_size"]
            key_heads = config.get("num_key_value_heads") or heads
            head_size = config.get("head_dim") or hidden // heads
            sizes = [config[name] for name in ("intermediate_size", "num_hidden_layers", "vocab_size")]
            if kind is None or any(
                type(size) is not int or size < 1 for size in (heads, key_heads, hidden, head_size, *sizes)
            ):
                return None
            intermediate, layers, vocabulary = sizes
            biased = bool(config.get("attention_bias", False))
            qkv_bias, head_norm = kind
            return cls(
                hidden=hidden,
                intermediate=intermediate,
                layers=layers,
                vocabulary=vocabulary,
                query=heads * head_size,
                key_value=key_heads * head_size,
                head_size=head_size,
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=qkv_bias or biased,
                out_bias=biased,
                mlp_bias=bool(config.get("mlp_bias", False)),
                head_norm=head_norm,
            )
        except (KeyError, TypeError, ZeroDivisionError):
            return None

    @classmethod
    def read(cls, model: str | Path) -> Decoder | None:
        """Return the decoder of a model's folder; None where it is none of the known kinds."""
        try:
            config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return cls.of(config) if isinstance(config, dict) else None
