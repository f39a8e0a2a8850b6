"""Run a program that uses transformers, after psnode has imported torchvision, which may be built for another torch."""

import runpy
import sys

from psnode.tasks.torchvision_ops import import_torchvision

if __name__ == "__main__":
    import_torchvision()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
