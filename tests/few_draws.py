"""isolaw with fewer draws, shorter chains and fewer budgets: for all that asserts no numbers of draws.

    few_draws.py isolaw ARGUMENT…   the command line
    few_draws.py -c CODE            as python -c CODE

``runpy.run_path`` of it changes the process. An import does not: `apply` is for each test that is not marked
``numbers``.
"""

import importlib
import inspect
import operator
import sys

FEWER = {
    "isolaw.fits.surface.estimate": {
        "_LEAST_DRAWS": 60,
        "_CANDIDATES": 32,
        "_ROUNDS": 1,
        "_THETA": 8,
        "_STARTS": ((-1.0, 0.0),),
        "_FIRST_STEPS": 5,
        "_LAST_STEPS": 20,
    },
    "isolaw.fits.surface.slices": {"_STEPS": (0.25, 0.5, 1.0)},
    "isolaw.fits.studies.backtest": {"_BUDGETS": 2},
    "isolaw.report.fitted_runs": {"_BACKTEST_DRAWS": 20},
    "isolaw.report.page.budgets": {"_E6": (1.0, 2.0, 5.0)},  # a page's slider: each stop is a prediction
}
DRAWS = 60
DRAWN = ("isolaw.fits.pipeline:fit", "isolaw.report.answer:answer")


def apply(set_attribute=setattr, set_item=operator.setitem):
    for name, values in FEWER.items():
        module = importlib.import_module(name)  # not an attribute: budgets is also a function of its package
        for constant, value in values.items():
            assert hasattr(module, constant), f"{name}.{constant}"
            set_attribute(module, constant, value)
    for name in DRAWN:
        home, _, drawing = name.partition(":")
        function = inspect.unwrap(getattr(importlib.import_module(home), drawing))
        assert "draws" in function.__kwdefaults__, name
        set_item(function.__kwdefaults__, "draws", DRAWS)
    for command in importlib.import_module("isolaw.cli").cli.commands.values():
        for option in command.params:
            if option.name == "draws":
                set_attribute(option, "default", DRAWS)


if __name__ in ("__main__", "<run_path>"):
    apply()
if __name__ == "__main__":
    what = sys.argv.pop(1)
    if what == "-c":
        exec(compile(sys.argv.pop(1), "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[0] = what
        from isolaw.__main__ import main

        main()
