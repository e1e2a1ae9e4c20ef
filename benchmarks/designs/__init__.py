"""Coverage of isolaw's intervals over many truths and designs."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # matrices are small, and cells run side by side
