"""isolaw's own names in trackers; the round trips are in tests/trackers."""

from __future__ import annotations

from isolaw.readers import frameworks
from isolaw.readers.frameworks.others import ISOLAW as FRAMEWORK


def test_it_is_found_by_its_step_or_its_configuration() -> None:
    assert frameworks.find(["validation/avg@4", "isolaw/step"], {}) is FRAMEWORK
    assert frameworks.find(["validation/avg@4"], {"isolaw.run_id": "ab"}) is FRAMEWORK
    for keys, config in ((["validation/avg@4", "step"], {}), ([], {"run_id": "ab", "seed": 1})):
        assert not FRAMEWORK.recognises(keys, config)


def test_metrics() -> None:
    assert FRAMEWORK.metric("train/reward") == ("train", "reward")
    assert FRAMEWORK.metric("aime24/best_at_16") == ("aime24", "best@16")
    assert FRAMEWORK.metric("validation/looked_at_twice") == ("validation", "looked_at_twice")
    for key in ("isolaw/step", "isolaw/tokens", "reward", ""):
        assert FRAMEWORK.metric(key) is None


def test_facts_are_what_the_mirror_wrote() -> None:
    config = {"isolaw.run_id": "ab", "isolaw.rollouts_per_problem": 8, "isolaw.lr": 0.02, "other": 1}
    found = FRAMEWORK.facts(config, "params")
    assert {name: fact.value for name, fact in found.items()} == {"rollouts_per_problem": 8, "lr": 0.02}
    assert found["lr"].origin == "isolaw.lr in params"
