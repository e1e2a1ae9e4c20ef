"""The tiny model: what it is, what it can, and that a seed makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import arithmetic
import pytest

from isolaw.backends.real.rollout.problems import Problem, ProblemSet, read_pool

pytestmark = pytest.mark.real


def test_the_tokenizer_survives_a_round_trip(tmp_path: Path) -> None:
    """`AutoTokenizer` makes a tokenizer of its own from a Qwen2 model's folder."""
    import tiny_model
    from transformers import AutoTokenizer

    made = tiny_model.make_tokenizer()
    made.save_pretrained(tmp_path)
    tiny_model.make_model().config.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("0123456789+-*=", "17+25=", "9*9=81", "0-0", "=*-+", "1 1", ""):
        ids = made(text).input_ids
        assert loaded(text).input_ids == ids
        assert len(ids) == 1 + len(text.replace(" ", ""))
        assert loaded.decode(ids, skip_special_tokens=True) == text.replace(" ", "")
    for name in ("pad", "bos", "eos"):
        assert getattr(loaded, f"{name}_token_id") == getattr(made, f"{name}_token_id")
        assert loaded.decode([getattr(loaded, f"{name}_token_id")], skip_special_tokens=True) == ""
    assert len(loaded) == tiny_model.make_model().config.vocab_size


def test_only_answers_are_learned() -> None:
    import tiny_model

    tokenizer = tiny_model.make_tokenizer()
    questions = [Problem("a", "17+25=", "42"), Problem("b", "1+1=", "2")]
    ids, labels = tiny_model._batch(tokenizer, questions)
    assert ids.shape == labels.shape == (2, 10)
    for row, label, question in zip(ids, labels, questions, strict=True):
        whole = tokenizer(f"{question.prompt}{question.answer}").input_ids
        assert row.tolist() == [*whole, 2, *[0] * (9 - len(whole))]
        learned = [i for i in label.tolist() if i != -100]
        assert tokenizer.decode(learned) == f"{question.answer}<eos>"
        assert row[label != -100].tolist() == learned


@pytest.mark.slow
def test_what_is_made(made: Any) -> None:
    from safetensors.numpy import load_file

    config = json.loads((made.model / "config.json").read_text())
    weights = load_file(made.model / "model.safetensors")
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["hidden_size"] // config["num_attention_heads"] == 32
    assert config["tie_word_embeddings"] is False
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(weights)
    assert {str(tensor.dtype) for tensor in weights.values()} == {"float32"}
    assert 1e5 <= sum(tensor.size for tensor in weights.values()) <= 8e5
    pool = {q.id for q in read_pool(made.model.parent / "pool.jsonl")}
    for folder in (made.easy, made.hard):
        parts = ProblemSet.read(folder).parts
        assert {q.id for questions in parts.values() for q in questions} <= pool
        assert len(parts["train"]) >= 256
        assert len(parts["validation"]) >= 60  # a fifth


@pytest.mark.slow
def test_reinforcement_learning_has_something_to_raise(made: Any) -> None:
    """Samples of its own, not those that chose the sets: those of the hard set come back up a little."""
    from tiny_model import accuracy
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(made.model)
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    easy, hard = (ProblemSet.read(folder).parts["validation"][:100] for folder in (made.easy, made.hard))
    assert 0.3 < accuracy(model, tokenizer, easy, 8, 0.6, seed=99) < 0.6
    assert accuracy(model, tokenizer, hard, 8, 0.6, seed=99) < 0.15
    assert 0.25 < accuracy(model, tokenizer, easy, 8, 1.0, seed=99) < 0.6


@pytest.mark.slow
def test_a_seed_makes_the_model_and_its_warm_up(tmp_path: Path) -> None:
    import tiny_model
    import torch

    tokenizer = tiny_model.make_tokenizer()
    questions = arithmetic.generate("add-10", 55)
    models = [tiny_model.make_model(seed) for seed in (0, 0, 1)]
    before = {name: p.clone() for name, p in models[0].named_parameters()}
    for model in models:
        torch.rand(3)  # the state of torch's own stream is nobody's business
        assert tiny_model.warm_up(model, tokenizer, questions, questions, 2.0, most_steps=3) == 3
    first, same, other = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if name.endswith("proj.weight"))
    assert not any(torch.equal(first[name], before[name]) for name in first)


@pytest.mark.slow
def test_a_warm_up_stops_at_its_target() -> None:
    import tiny_model

    tokenizer, model = tiny_model.make_tokenizer(), tiny_model.make_model()
    questions = arithmetic.generate("add-4", 10)
    start = tiny_model.accuracy(model, tokenizer, questions, samples=20)
    steps = tiny_model.warm_up(model, tokenizer, questions, questions, target=0.5, most_steps=500)
    assert steps < 500
    assert steps % 50 == 0
    assert start < 0.2 < 0.4 < tiny_model.accuracy(model, tokenizer, questions, samples=20, seed=5)
