"""A framework's own parser reads settings: ``python parsers.py FRAMEWORK [[WORD, …], …]``.

It prints what it understood. The framework is imported, or what of it parses: that needs no GPU and none of
its other dependencies.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.util
import json
import sys
import typing
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock


def folder(package: str) -> Path:
    """Return where a package is, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def verl(words: list[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(config_dir=str(folder("verl") / "trainer/config"), version_base=None):
        return OmegaConf.to_container(compose("ppo_trainer", overrides=words))


def trl(words: list[str]) -> Any:
    from trl import GRPOConfig, TrlParser

    (found,) = TrlParser(GRPOConfig).parse_args_and_config(words)
    return vars(found)


def openrlhf(words: list[str]) -> Any:
    """Execute the script's beginning, up to its parser."""
    path = folder("openrlhf") / "cli/train_ppo_ray.py"
    (main,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    end = next(i for i, node in enumerate(main.body) if "parse_args" in ast.unparse(node))
    names: dict[str, Any] = {"argparse": argparse, "datetime": datetime.datetime}
    sys.argv[1:] = words
    exec(compile(ast.Module(main.body[: end + 1], []), str(path), "exec"), names)
    return vars(names["args"])


def skyrl(words: list[str]) -> Any:
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]  # it wants Python 3.12
    from skyrl.train.config import SkyRLTrainConfig, get_config_as_dict

    return get_config_as_dict(SkyRLTrainConfig.from_cli_overrides(words))


def ms_swift(words: list[str]) -> Any:
    from swift.arguments import RLHFArguments
    from transformers import HfArgumentParser

    return vars(HfArgumentParser(RLHFArguments).parse_args(words))


def prime_rl(words: list[str]) -> Any:
    """What plays games, or talks to services, is empty."""

    class Empty:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name.partition(".")[0] in (
                "prime_sandboxes",
                "prime_tunnel",
                "prime_runs",
                "nltk",
                "textarena",
            ):
                return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
            return None

        def create_module(self, spec: ModuleSpec) -> Any:
            return MagicMock(__name__=spec.name, __spec__=spec, __path__=[])

        def exec_module(self, module: Any) -> None:
            return

    sys.meta_path.insert(0, Empty())  # type: ignore[arg-type]
    from prime_rl.configs.rl import RLConfig
    from pydantic_config import cli

    return cli(RLConfig, args=words).model_dump(mode="json")


if __name__ == "__main__":
    _, framework, commands = sys.argv
    parse = globals()[framework.lower().replace("-", "_")]
    json.dump([parse(words) for words in json.loads(commands)], sys.stdout, default=str)
