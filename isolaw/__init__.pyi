"""The public names. `isolaw.registry` reads them here, and imports each at first use."""

from isolaw.allocation import Allocation as Allocation
from isolaw.backends.command.adapters import trainer_overrides as trainer_overrides
from isolaw.backends.real.export import export as export
from isolaw.config import SweepSpec as SweepSpec
from isolaw.doctor import diagnose as diagnose
from isolaw.engine import status as status
from isolaw.engine import sweep as sweep
from isolaw.errors import IsolawError as IsolawError
from isolaw.evidence import Quantity as Quantity
from isolaw.first_sweeps import Advice as Advice
from isolaw.first_sweeps import advise as advise
from isolaw.fits.law import Law as Law
from isolaw.fits.pipeline import fit as fit
from isolaw.fits.prediction import Prediction as Prediction
from isolaw.fits.studies.backtest import backtest as backtest
from isolaw.fits.studies.model_size import SizeCurves as SizeCurves
from isolaw.fits.studies.model_size import fit_sizes as fit_sizes
from isolaw.fits.studies.retune import retune as retune
from isolaw.fits.studies.shapes import compare_shapes as compare_shapes
from isolaw.fits.studies.targets import to_target as to_target
from isolaw.preview import read_cost as read_cost
from isolaw.readers.read import read as read
from isolaw.report import summary as summary
from isolaw.report.answer import Answer as Answer
from isolaw.report.answer import answer as answer
from isolaw.report.figures import law_figure as law_figure
from isolaw.runs import Runs as Runs

__version__: str
