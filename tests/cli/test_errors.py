"""A user's mistake is one message and exit code 2; nothing is written, and nothing written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw import engine

SOUND = """\
[sweep]
compute = 20000
seeds = 1
[grid]
problems_per_batch = [8]
rollouts_per_problem = [4, 16]
[problems]
n_train = 50
n_validation = 40
[executor]
kind = "inline"
"""

MISTAKES = {
    "unknown key": (
        SOUND.replace("rollouts_per_problem", "rollouts_per_prblem"),
        [":6: grid.rollouts_per_prblem: unknown key", "did you mean 'rollouts_per_problem'?"],
    ),
    "unknown section": (SOUND + "[evalution]\npoints = 3\n", [":12: [evalution]", "'evaluation'"]),
    "unknown key of the recipe": (
        SOUND + "[recipe]\nlrr = 1\n",
        [":13: recipe.lrr", "did you mean 'lr'?"],
    ),
    "n = 0": (SOUND.replace("4, 16", "0, 16"), [":6: grid.rollouts_per_problem: found 0", "equal to 1"]),
    "B_p = 0": (SOUND.replace("[8]", "[0]"), [":5: grid.problems_per_batch: found 0"]),
    "n = 1": (SOUND.replace("4, 16", "1, 16"), ["grid.rollouts_per_problem", "found 1", "at least 2"]),
    "above the cap": (
        SOUND.replace("4, 16", "4, 16384"),
        ["grid.rollouts_per_problem", "found 16384", "8 = 131072 rollouts", "65536"],
    ),
    "all above the cap": (
        SOUND + "[limits]\nmax_batch_rollouts = 16\n",
        ["grid.problems_per_batch", "found 8", "max_batch_rollouts = 16"],
    ),
    "more problems than there are": (
        SOUND.replace("[8]", "[64]"),
        ["grid.problems_per_batch", "found 64", "n_train = 50"],
    ),
    "budget below a batch": (
        SOUND.replace("20000", "20"),
        ["sweep.compute", "found 20", "at least one batch"],
    ),
    "billions of runs": (
        SOUND.replace("[4, 16]", str([*range(2, 602)])).replace("[8]", str([*range(1, 3001)])),
        [":4: [grid]: found 1,800,000 runs; expected at most 20,000 runs"],
    ),
    "not TOML": (SOUND + "[sweep\n", ["not valid TOML", "line 12"]),
    "a table twice": (SOUND + "[sweep]\n", ["not valid TOML", "line 12"]),
    "JSON": ('{"sweep": {}}', ["not valid TOML", "line 1"]),
    "unknown backend": (
        SOUND.replace("[sweep]", '[sweep]\nbackend = "bandits"'),
        ["sweep.backend: found 'bandits'", "expected bandit, replay", "did you mean 'bandit'?"],
    ),
    "unknown preset": (SOUND + '[bandit]\npreset = "i"\n', ["bandit.preset", "found 'i'", "expected "]),
    "unknown parameter": (
        SOUND + "[bandit.parameters]\nsigma = 1\n",
        ["bandit.parameters.sigma", "did you mean 'sigma2'?"],
    ),
    "three at once": (
        SOUND.replace("seeds = 1", "seeds = 0") + "[recipe]\nkll = 1\n[limit]\n",
        ["3 issues", ":3: sweep.seeds", ":13: recipe.kll", ":14: [limit]"],
    ),
}


def assert_one_message(result: tuple[int, str, str], words: list[str]) -> None:
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith(("isolaw: ", "Usage: "))
    assert err.count("isolaw: ") <= 1
    for word in words:
        assert word in err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sweep_file(isolaw, tree, tmp_path: Path, mistake: str) -> None:
    text, words = MISTAKES[mistake]
    (tmp_path / "sweep.toml").write_text(text)
    before = tree(tmp_path)
    result = isolaw("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "out")
    assert_one_message(result, words)
    assert tree(tmp_path) == before


def test_the_sound_file_runs(isolaw, tmp_path: Path) -> None:
    """The mistakes above are the only reason for their refusals."""
    (tmp_path / "sweep.toml").write_text(SOUND)
    assert isolaw("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "out")[0] == 0


@pytest.mark.parametrize("mistake", ["unknown key", "three at once", "not TOML"])
def test_the_file_is_named(isolaw, tmp_path: Path, mistake: str) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(MISTAKES[mistake][0])
    _, _, err = isolaw("sweep", file, "--out", tmp_path / "out")
    assert err.startswith(f"isolaw: {file}:")


@pytest.mark.parametrize(
    "content", [b"\x93NUMPY\x01\x00\xff\xfe", b"\x7fELF\x02\x01\x01\0\0\0\0", b"PAR1\x15\x04"]
)
def test_binary_sweep_file(isolaw, tree, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "sweep.toml"
    file.write_bytes(content)
    assert_one_message(isolaw("sweep", file, "--out", tmp_path / "out"), [str(file)])
    assert list(tree(tmp_path)) == ["sweep.toml"]


@pytest.mark.parametrize("what", ["other files", "a file", "another sweep"])
def test_directories_that_cannot_be_used(isolaw, tree, tiny, tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what == "a file":
        out.write_text("mine")
    elif what == "other files":
        out.mkdir()
        (out / "thesis.tex").write_text("mine")
        (out / "data").mkdir()
    else:
        engine.sweep(tiny(sweep={"seeds": 1}, evaluation={"points": 60}), out)
    (tmp_path / "sweep.toml").write_text(SOUND + ("[recipe]\nlr = 0.5\n" if what == "another sweep" else ""))
    before = tree(tmp_path)
    words = {
        "other files": [str(out), "contains other files (data, thesis.tex)"],
        "a file": [str(out), "is a file"],
        "another sweep": [str(out), "recipe.lr is ", " in the directory and 0.5 in this sweep"],
    }[what]
    assert_one_message(isolaw("sweep", tmp_path / "sweep.toml", "--out", out), words)
    assert tree(tmp_path) == before


def test_a_damaged_line_is_named_and_made_again(isolaw, tiny, tmp_path: Path) -> None:
    engine.sweep(tiny(), tmp_path)
    points = sorted(tmp_path.glob("runs/*/points.jsonl"))[0]
    lines = points.read_text().splitlines(keepends=True)
    points.write_text(lines[0] + "###\n" + "".join(lines[2:]))
    said = f"{points}: line 2 is damaged"
    assert said in isolaw("status", tmp_path)[1]
    code, _, err = isolaw("sweep", "--out", tmp_path)
    assert code == 0
    assert f"warning: {said}; the run starts again" in err
    assert said not in isolaw("status", tmp_path)[1]
