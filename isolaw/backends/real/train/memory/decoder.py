"""The sizes of a decoder's weights, from its ``config.json`` alone.

It covers decoders with one kind of layer, which `transformers` calls Llama, Mistral, Qwen2 and Qwen3:
grouped-query attention, a gated MLP, RMSNorm before each, an embedding, and a head that may be tied to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isolaw.backends.real import models

# By model_type: whether q, k and v have biases, and whether q and k are normalised by head.
_KINDS = {"llama": (False, False), "mistral": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder; in brackets, the equations' symbols."""

    hidden: int  # of the residual stream (E)
    intermediate: int  # of the MLP (I)
    layers: int  # (L)
    vocabulary: int  # of embedding and head (V)
    query: int  # of a token's queries, all heads (Q)
    key_value: int  # of a token's keys, or of its values (K)
    head_size: int  # of one attention head (D)
    vectors: int  # numbers of a layer's norms and biases
    tied: bool  # whether the head is the embedding

    @property
    def embedding(self) -> int:
        """Numbers of the embedding, or of the head."""
        return self.vocabulary * self.hidden

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each linear map of a layer, by name."""
        e, i, q, kv = self.hidden, self.intermediate, self.query, self.key_value
        attention = {"q_proj": (q, e), "k_proj": (kv, e), "v_proj": (kv, e), "o_proj": (e, q)}
        return {**attention, "gate_proj": (i, e), "up_proj": (i, e), "down_proj": (e, i)}

    @property
    def matrices(self) -> tuple[int, ...]:
        """Numbers of each matrix of a layer."""
        return tuple(outputs * inputs for outputs, inputs in self.linear.values())

    def adapters(self, rank: int, targets: tuple[str, ...] | None) -> tuple[int, ...]:
        """Return the numbers of each matrix of LoRA in a layer (None: for all its linear maps)."""
        chosen = [
            sizes
            for name, sizes in self.linear.items()
            if targets is None or any(f".{target}".endswith(f".{name}") for target in targets)
        ]
        return tuple(rank * size for sizes in chosen for size in sizes)

    @property
    def layer(self) -> int:
        """Numbers of a layer."""
        return sum(self.matrices) + self.vectors

    @property
    def parameters(self) -> int:
        """Numbers of the model; a tied head counts once."""
        return self.embedding * (1 if self.tied else 2) + self.layers * self.layer + self.hidden

    @property
    def critic(self) -> Decoder:
        """The decoder with a critic's scalar head, which is neglected."""
        return replace(self, tied=True)

    def splits(self, processes: int) -> bool:
        """Return whether vLLM can split the heads: queries evenly, keys evenly or each to several."""
        heads, key_heads = self.query // self.head_size, self.key_value // self.head_size
        return heads % processes == 0 and (key_heads % processes == 0 or processes % key_heads == 0)

    @classmethod
    def of(cls, config: dict[str, Any]) -> Decoder | None:
        """Return the decoder of a configuration; None for an unknown kind or an impossible size.

        >>> Decoder.of({"model_type": "mamba"})
        """
        kind = _KINDS.get(str(config.get("model_type")))
        try:
            heads, e = config["num_attention_heads"], config["hidden_size"]
            key_heads = config.get("num_key_value_heads") or heads
            d = config.get("head_dim") or e // heads
            i, layers = config["intermediate_size"], config["num_hidden_layers"]
            vocabulary = config["vocab_size"]
        except (KeyError, TypeError, ZeroDivisionError):
            return None
        sizes = (heads, key_heads, e, d, i, layers, vocabulary)
        if kind is None or any(type(size) is not int or size < 1 for size in sizes):
            return None
        query, key_value = heads * d, key_heads * d
        biased = bool(config.get("attention_bias", False))
        qkv_bias, head_norm = kind[0] or biased, kind[1]
        vectors = 2 * e + 2 * d * head_norm + (query + 2 * key_value) * qkv_bias + e * biased
        vectors += (2 * i + e) * bool(config.get("mlp_bias", False))
        tied = bool(config.get("tie_word_embeddings", False))
        return cls(e, i, layers, vocabulary, query, key_value, d, vectors, tied)

    @classmethod
    def read(cls, model: str | Path) -> Decoder | None:
        """Return the decoder of a model's folder; None for an unknown kind."""
        try:
            config = models.config(model)
        except (OSError, ValueError):
            return None
        return cls.of(config) if isinstance(config, dict) else None
