"""isolaw with fewer draws, shorter chains and fewer budgets: whether a documented command runs needs no more.

    few_draws.py isolaw ARGUMENT…   the command line
    few_draws.py -c CODE            as python -c CODE

``runpy.run_path`` of it changes the process. An import does not: pytest imports it, and tests call `apply`.
"""

import importlib
import inspect
import operator
import sys

FEWER = {
    "isolaw.fits.surface.estimate": {"_PREDICTED": 60},
    "isolaw.fits.surface.saturating": {"_BURN": 10, "_KEPT": 20, "_EVERY": 5},
    "isolaw.fits.studies.backtest": {"_BUDGETS": 2},
    "isolaw.report.fitted_runs": {"_BACKTEST_DRAWS": 20},
}
DRAWN = ("isolaw.fits.pipeline:fit", "isolaw.report.answer:answer", "isolaw.fits.studies.recipes:compare")


def apply(set_attribute=setattr, set_item=operator.setitem):
    for name, values in FEWER.items():
        module = importlib.import_module(name)
        for constant, value in values.items():
            assert hasattr(module, constant), f"{name}.{constant}"
            set_attribute(module, constant, value)
    for name in DRAWN:
        home, _, own = name.partition(":")
        function = inspect.unwrap(getattr(importlib.import_module(home), own))
        assert "draws" in function.__kwdefaults__, name
        set_item(function.__kwdefaults__, "draws", 60)


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
