"""Types of NumPy's arrays by what they hold, named alike in every package."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
