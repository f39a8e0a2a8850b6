"""The kernels of the master's optimizers on a device, launched by CuPy: see cuda/descent.h."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psnode.codecs.device.cupy.row_kernels import Loaded

TEXT = '// Optimizers of the master\n#include "rows.h"\n#include "descent.h"\n'
_LANES = 32


class StepKernels(Loaded):
    """Kernels that update vectors, coordinate by coordinate, on CUDA device number `device`."""

    names = ("descend_plain", "descend_momentum", "descend_nesterov", "descend_beside", "adam")

    def __init__(self, device: int) -> None:
        super().__init__(TEXT, device)

    def step(
        self, name: str, stream: int, vectors: Sequence[int], numbers: Sequence[np.float32 | np.int32], once: bool, size: int
    ) -> None:
        """Launch the kernel `name` on `vectors` of `size` float32, with the parameters `numbers`.

        If `once` is True, a multiplication followed by an addition is rounded only once.
        """
        addresses = [np.uint64(vector) for vector in vectors]
        self._launch(name, stream, -(-size // _LANES), *addresses, *numbers, np.int32(once), np.uint64(size))
