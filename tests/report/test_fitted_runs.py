"""Where configurations are compared, and their rewards there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from isolaw.report.fitted_runs import _common_compute as common_compute
from isolaw.report.fitted_runs import _final_rewards as final_rewards


def test_finals_compare_runs_that_end_a_batch_apart() -> None:
    rows = pd.DataFrame(
        {
            "run_id": list("aabbcc"),
            "problems_per_batch": 1,
            "rollouts_per_problem": [8, 8, 16, 16, 16, 16],
            "compute": [500, 1040, 512, 1024, 400, 1024],
            "value": [0.1, 0.4, 0.2, 0.6, 0.3, 0.8],
        }
    )
    assert common_compute(rows) == 1024
    table = final_rewards(rows, 1024)
    assert table["value"].tolist() == pytest.approx([0.4, 0.7])
    assert table["runs"].tolist() == [1, 2]
    assert np.isnan(table["error"][0])
    assert table["error"][1] == pytest.approx(0.1)  # 0.2 / √2 / √2


def test_a_configuration_that_broke_off_does_not_decide_where_all_are_compared() -> None:
    rows = pd.DataFrame(
        {"run_id": list("ab"), "problems_per_batch": 1, "rollouts_per_problem": [8, 16], "value": 0.5}
    ).assign(compute=[10, 1000])
    assert common_compute(rows) == 1000
    assert final_rewards(rows, 1000)["rollouts_per_problem"].tolist() == [16]
