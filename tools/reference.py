"""Write the reference of the command line and of the pytest plugin from the code, as Markdown.

    python tools/reference.py        print it

The documentation has a line such as `<!-- reference: commands -->` where each part belongs
(`docs_hooks.py`).
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge import cli, plugin


def command_parsers(
    parser: argparse.ArgumentParser | None = None,
) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each command, subcommands included."""
    for action in (parser or cli._parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                inner = list(command_parsers(command))
                yield from inner or [command]


def plugin_settings() -> Settings:
    """Return the options and ini settings that the plugin adds to pytest."""
    found = Settings()
    plugin.pytest_addoption(found)  # type: ignore[arg-type]
    return found


class Settings:
    """Stand in for pytest's parser, and keep what the plugin adds to it.

    Attributes:
        options: the arguments of `addoption`, by the option.
        ini: type, default and help of each ini setting, by its name.
    """

    def __init__(self) -> None:
        self.options: dict[str, dict[str, Any]] = {}
        self.ini: dict[str, dict[str, Any]] = {}

    def getgroup(self, *_: str) -> Settings:
        return self

    def addoption(self, name: str, **how: Any) -> None:
        self.options[name] = how

    def addini(self, name: str, **how: Any) -> None:
        self.ini[name] = how


def commands() -> str:
    """Describe each command: what it does, its usage and its arguments."""
    return "\n\n".join(map(_command, command_parsers()))


def _command(parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().rstrip().removeprefix("usage: ").replace("\n       ", "\n")
    rows = [
        (_invocation(action), _explanation(action))
        for action in parser._actions
        if action.dest != "help"
    ]
    rows = [row for row in rows if row[1]]  # the usage has the others
    parts = [f"### {parser.prog}", _text(parser.description or ""), f"```text\n{usage}\n```"]
    return "\n\n".join([*parts, *([_table(("argument", "meaning"), rows)] if rows else [])])


def _invocation(action: argparse.Action) -> str:
    names, value = ", ".join(action.option_strings), str(action.metavar or "")
    return f"`{f'{names} {value}'.strip()}`"


def _explanation(action: argparse.Action) -> str:
    text = action.help or ""
    is_named = all(str(choice) in text for choice in action.choices or ())
    choices = "" if is_named else ", ".join(f"`{choice}`" for choice in action.choices or ())
    required = "required" if action.required and action.option_strings else ""
    return "; ".join(part for part in (_text(text), choices, required) if part)


def pytest_options() -> str:
    """Describe the options of `pytest`."""
    rows = []
    for name, how in plugin_settings().options.items():
        choices = ",".join(how.get("choices", ()))
        values = how.get("metavar") or (choices and f"{{{choices}}}")
        shown = (
            f"{name}[={how['choices'][-1]}]"
            if how.get("nargs") == "?"
            else f"{name} {values}".rstrip()
        )
        default = f" (default: `{how['default']}`)" if how.get("default") else ""
        rows.append((f"`{shown}`", _text(how["help"]) + default))
    return _table(("option", "meaning"), rows)


def pytest_ini() -> str:
    """Describe the settings of pytest's configuration."""
    rows = []
    for name, how in plugin_settings().ini.items():
        default = str(how["default"]).lower() if how["type"] == "bool" else how["default"]
        rows.append(
            (f"`{name}`", how["type"], f"`{default}`" if default else "", _text(how["help"]))
        )
    return _table(("setting", "type", "default", "meaning"), rows)


def pytest_marks() -> str:
    """Describe the marks."""
    pairs = (mark.partition(":") for mark in plugin._MARKS)
    return _table(
        ("mark", "meaning"),
        [(f"`{name}`", _text(text.replace("(kernelgauge)", ""))) for name, _, text in pairs],
    )


def pytest_hooks() -> str:
    """Describe the hooks that a suite implements."""
    rows = []
    for name, function in inspect.getmembers(plugin._Specifications, inspect.isfunction):
        arguments = [each for each in inspect.signature(function).parameters if each != "self"]
        meaning = (inspect.getdoc(function) or "").split()
        rows.append((f"`{name}({', '.join(arguments)})`", " ".join(meaning)))
    return _table(("hook", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _text(words: str) -> str:
    return words.strip().replace("<", "&lt;").replace("*", "\\*").replace("%%", "%")


PARTS = {
    "commands": commands,
    "pytest options": pytest_options,
    "pytest settings": pytest_ini,
    "pytest marks": pytest_marks,
    "pytest hooks": pytest_hooks,
}

if __name__ == "__main__":
    print("\n\n".join(part() for part in PARTS.values()))
