"""The harness profile: what a pipeline says of a harness, checked before a run starts.

    {
      name: 'mini', wire: 'openai_chat', deadline_s: 120,
      command: ['{python}', '-I', '-S', '{harness_dir}/mini.py', '--base-url', '{base_url}', '--key', '{key}'],
      files: ['harness/mini/mini.py'],            // copied into the run, seen under {harness_dir}; relative to the pipeline
      stdin: '{instruction}',                     // or {instruction} / {instruction_file} in the command
      env: { NO_COLOR: '1' }, home_files: { '.config/agent.toml': 'model = "{model}"' }, host_paths: ['/opt/node'],
      success_exit_codes: [0], role_rules: [{ role: 'main-summary', last_user_contains: 'Summarise' }],
    }

`host_paths` are folders of the machine that the harness needs read-only at their own place (a Node installation). `install` is the
folder that a client was installed into (the shipped ones: make harnesses): read-only, `{install_dir}` in the command.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import typeguard

from gyre.errors import Problem, SpecError
from gyre.rollout.wires.registry import WIRES
from gyre.trajectory.roles import find_rule_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProfile:
    """One harness as a pipeline declares it."""

    name: str
    """Names its folder in the run."""
    command: list[str]
    """Argument vector; placeholders are filled in."""
    wire: str = "openai_chat"
    """Which of the proxy's wires it speaks."""
    deadline_s: float = 600.0
    """Seconds until it is killed; a task's own shorter limit wins."""
    env: dict[str, str] = field(default_factory=dict)
    """Its environment beside PATH, HOME, TMPDIR, LANG and TERM."""
    files: list[Path] = field(default_factory=list)
    """Its own program files or folders."""
    home_files: dict[str, str] = field(default_factory=dict)
    """Files written into its home, by relative name."""
    host_paths: list[str] = field(default_factory=list)
    """Folders of the machine bound read-only at their own place."""
    install: Path | None = None
    """Folder that its client was installed into; relative to the pipeline's file."""
    stdin: str | None = None
    """What it reads; None: nothing."""
    success_exit_codes: list[int] = field(default_factory=lambda: [0])
    """Exit codes that mean completed; any other means failed."""
    role_rules: list[dict[str, Any]] = field(default_factory=list)
    """Which request is which role; see `gyre.trajectory.roles`."""
    default_role: str = "main"
    """Role of a request that no rule names."""
    tool_parser: str | None = None
    """Name of llm-router-utils' tool-call parser for the model's format; None: calls stay text."""
    reasoning_parser: str | None = None
    """Name of llm-router-utils' reasoning parser, of a model that thinks; None: thinking stays text."""

    @classmethod
    def from_dict(cls, profile: Mapping[str, Any], *, base_dir: Path, setting: str = "harness") -> HarnessProfile:
        """Read a profile; the paths of `files` and `install` are relative to `base_dir`.

        Raises:
            SpecError: with every problem of the profile.
        """
        problems = find_profile_problems(profile, base_dir=base_dir, setting=setting)
        if problems:
            raise SpecError(problems)
        values = dict(profile)
        values["files"] = [(base_dir / path).resolve() for path in profile.get("files", [])]
        if profile.get("install") is not None:
            values["install"] = (base_dir / profile["install"]).resolve()
        values["deadline_s"] = float(profile.get("deadline_s", cls.__dataclass_fields__["deadline_s"].default))
        return cls(**values)

    def deadline_for(self, task_timeout_s: float | None) -> float:
        """Seconds one attempt may take: the shorter of the profile's and the task's limit."""
        return min(self.deadline_s, task_timeout_s) if task_timeout_s else self.deadline_s


PLACEHOLDERS = (
    "base_url",
    "deadline_s",
    "harness_dir",
    "home",
    "install_dir",
    "instruction",
    "instruction_file",
    "key",
    "model",
    "proxy_url",
    "python",
    "workspace",
)
"""Words in braces that `harness.py` fills in; other braces stay as they are."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_TYPES: Mapping[str, tuple[Any, str]] = {
    "name": (str, "a string"),
    "command": (list[str], "a list of strings"),
    "wire": (str, "a string"),
    "deadline_s": (float, "a number of seconds"),
    "env": (dict[str, str], "an object of strings"),
    "files": (list[str], "a list of paths"),
    "home_files": (dict[str, str], "an object of strings"),
    "host_paths": (list[str], "a list of absolute paths"),
    "install": (str | None, "a path or null"),
    "stdin": (str | None, "a string or null"),
    "success_exit_codes": (list[int], "a list of whole numbers"),
    "role_rules": (list[dict[str, Any]], "a list of objects"),
    "default_role": (str, "a role"),
    "tool_parser": (str | None, "a string or null"),
    "reasoning_parser": (str | None, "a string or null"),
}


def find_profile_problems(profile: Any, *, base_dir: Path, setting: str = "harness") -> list[Problem]:
    """Say what is wrong with a profile; empty where nothing is."""
    if not isinstance(profile, Mapping):
        return [Problem(setting, f"a harness profile is an object, not {type(profile).__name__}", "import a harness file")]
    problems: list[Problem] = []
    sound = dict(profile)
    for key, value in profile.items():
        if key not in _TYPES:
            near = difflib.get_close_matches(key, _TYPES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(_TYPES)}"
            problems.append(Problem(f"{setting}.{key}", "a harness profile has no such key", hint))
            continue
        expected, words = _TYPES[key]
        try:
            typeguard.check_type(value, expected, collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS)
        except typeguard.TypeCheckError:
            problems.append(Problem(f"{setting}.{key}", f"{value!r} is not {words}", f"write {words}"))
            del sound[key]
    # Values of a wrong type have their problem; the others are looked at all the same, so that all problems come at once.
    rule_problems = find_rule_problems(sound, path=setting)
    return [*problems, *_missing(profile, setting), *_bad_values(sound, base_dir, setting), *_bad_texts(sound, setting), *rule_problems]


def _missing(profile: Mapping[str, Any], setting: str) -> list[Problem]:
    required = [f.name for f in fields(HarnessProfile) if f.default is MISSING and f.default_factory is MISSING]
    return [Problem(setting, f"the harness profile has no {n}", f"add {n}") for n in required if not profile.get(n)]


def _bad_texts(profile: Mapping[str, Any], setting: str) -> Iterator[Problem]:
    """Refuse names that lead out of the folders of a run, and placeholders that are misspelt: what is not known stays as it is."""
    name = profile.get("name", "")
    if name in (".", "..") or "/" in name:
        yield Problem(f"{setting}.name", f"{name!r} cannot name a folder", "write a name without '/'")
    for path in profile.get("home_files", {}):
        if not path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            yield Problem(
                f"{setting}.home_files", f"{path!r} is not a place in the home", "write a relative path, e.g. '.config/agent.toml'"
            )
    texts = {f"{setting}.command[{index}]": word for index, word in enumerate(profile.get("command", []))}
    texts |= {f"{setting}.env.{variable}": text for variable, text in profile.get("env", {}).items()}
    texts |= {f"{setting}.stdin": profile.get("stdin") or ""}
    for place, text in texts.items():
        for word in PLACEHOLDER.findall(text):
            near = difflib.get_close_matches(word, PLACEHOLDERS, n=1, cutoff=0.8)
            if near and word not in PLACEHOLDERS:
                yield Problem(place, f"'{{{word}}}' is no placeholder", f"did you mean '{{{near[0]}}}'?")


def _bad_values(profile: Mapping[str, Any], base_dir: Path, setting: str) -> list[Problem]:
    problems = []
    if profile.get("wire", "openai_chat") not in WIRES:
        problems.append(Problem(f"{setting}.wire", f"{profile['wire']!r} is no wire", f"write one of {', '.join(WIRES)}"))
    if profile.get("deadline_s", 1.0) <= 0:
        problems.append(Problem(f"{setting}.deadline_s", "a deadline is a positive number of seconds", "write e.g. 600"))
    copied: dict[str, str] = {}
    for index, path in enumerate(profile.get("files", [])):
        if copied.setdefault(Path(path).name, path) != path:
            message = f"{path} and {copied[Path(path).name]} would have the same name in {{harness_dir}}"
            problems.append(Problem(f"{setting}.files[{index}]", message, "name the folder that holds them, or rename one"))
        if not (base_dir / path).exists():
            problems.append(
                Problem(f"{setting}.files[{index}]", f"there is no {base_dir / path}", "paths are relative to the pipeline's file")
            )
    install = profile.get("install")
    if install is not None and not (base_dir / install).is_dir():
        hint = "install the client there (the shipped ones: make harnesses), or name the folder where it is"
        problems.append(Problem(f"{setting}.install", f"there is no folder {(base_dir / install).resolve()}", hint))
    for index, path in enumerate(profile.get("host_paths", [])):
        if not Path(path).is_absolute() or not Path(path).exists():
            problems.append(Problem(f"{setting}.host_paths[{index}]", f"there is no folder {path}", "name an existing folder"))
    return problems
