"""Compute the sizes of a decoder's weights from its ``config.json``.

This supports Llama, Mistral, Qwen2 and Qwen3 (names of `transformers`), which have one kind of layer:
grouped-query attention and a gated MLP, with RMSNorm before each. These models also have an embedding, and a
head that can be tied to the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# By model_type: whether q, k and v have biases, and whether q and k are normalised per head.
TYPES = {"llama": (False, False), "mistral": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder; the comments give the symbols of the equations in `footprint`."""

    hidden: int  # E: size of the residual stream
    intermediate: int  # I: size of the MLP
    layers: int  # L: number of layers
    vocabulary: int  # V: size of the vocabulary of embedding and head
    query: int  # Q: size of a token's queries over all heads
    key_value: int  # K: size of a token's keys, which is also the size of its values
    head_size: int  # D: size of one attention head
    vector_size: int  # number of parameters in a layer's norms and biases
    tied: bool  # whether the head shares the embedding's weights

    @property
    def embedding_size(self) -> int:
        """Number of parameters of the embedding, and also of the head."""
        return self.vocabulary * self.hidden

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of each linear map in a layer, by name."""
        e, i, q, kv = self.hidden, self.intermediate, self.query, self.key_value
        attention = {"q_proj": (q, e), "k_proj": (kv, e), "v_proj": (kv, e), "o_proj": (e, q)}
        return {**attention, "gate_proj": (i, e), "up_proj": (i, e), "down_proj": (e, i)}

    @property
    def matrix_sizes(self) -> tuple[int, ...]:
        """Number of parameters of each matrix in a layer."""
        return tuple(outputs * inputs for outputs, inputs in self.linear.values())

    def adapter_sizes(self, rank: int) -> tuple[int, ...]:
        """Return the number of parameters of each LoRA matrix in a layer."""
        return tuple(rank * size for sizes in self.linear.values() for size in sizes)

    @property
    def layer_size(self) -> int:
        """Number of parameters of a layer."""
        return sum(self.matrix_sizes) + self.vector_size

    @property
    def parameters(self) -> int:
        """Number of parameters of the model; a tied head counts once."""
        return self.embedding_size * (1 if self.tied else 2) + self.layers * self.layer_size + self.hidden

    @property
    def critic(self) -> Decoder:
        """Sizes of the critic: the same decoder without its head; the scalar head is neglected."""
        return replace(self, tied=True)

    @classmethod
    def of(cls, config: dict[str, Any]) -> Decoder | None:
        """Return the decoder of a configuration, or None for an unknown model type or an invalid size.

        >>> Decoder.of({"model_type": "mamba"})
        """
        variant = TYPES.get(str(config.get("model_type")))
        try:
            heads, e = config["num_attention_heads"], config["hidden_size"]
            key_heads = config.get("num_key_value_heads") or heads
            d = config.get("head_dim") or e // heads
            i, layers = config["intermediate_size"], config["num_hidden_layers"]
            vocabulary = config["vocab_size"]
        except (KeyError, TypeError, ZeroDivisionError):
            return None
        sizes = (heads, key_heads, e, d, i, layers, vocabulary)
        if variant is None or any(type(size) is not int or size < 1 for size in sizes):
            return None
        query, key_value = heads * d, key_heads * d
        has_biases = bool(config.get("attention_bias", False))
        qkv_bias, head_norm = variant[0] or has_biases, variant[1]
        vector_size = 2 * e + 2 * d * head_norm + (query + 2 * key_value) * qkv_bias + e * has_biases
        vector_size += (2 * i + e) * bool(config.get("mlp_bias", False))
        tied = bool(config.get("tie_word_embeddings", False))
        return cls(e, i, layers, vocabulary, query, key_value, d, vector_size, tied)
