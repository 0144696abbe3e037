"""Look into a built wheel: what a run needs beside the code must travel in it."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

NEEDED = (
    "gyre/cli.py",
    "gyre/graph/gyre.libsonnet",
    "gyre/schemas/calls.v1.json",
    "gyre/pipelines/quickstart.jsonnet",
    "gyre/pipelines/harness/mini/mini.py",
    "gyre/pipelines/models/tiny/model.safetensors",
)


def main() -> int:
    wheel = max(Path(sys.argv[1]).glob("*.whl"), key=lambda path: path.stat().st_mtime)
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in NEEDED if name not in names]
    katas = {name.split("/")[4] for name in names if name.startswith("gyre/pipelines/tasks/katas/")}
    if missing or not katas:
        print(f"{wheel} lacks {', '.join(missing) or 'the katas'}")
        return 1
    print(f"{wheel}: {len(names)} files, {len(katas)} katas")
    return 0


if __name__ == "__main__":
    sys.exit(main())
