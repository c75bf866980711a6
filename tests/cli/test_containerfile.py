"""The container file: who runs the farm, what its steps need, and whether the farm takes what it is started with.

No image is built here: that needs an engine for containers, and a network.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from compilefarm.cli import health
from compilefarm.cli.main import COMMANDS
from compilefarm.cli.serve import add_arguments
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.flags import given_flags

ROOT = Path(__file__).parents[2]
# Of a container file; each is one line once those that end with a backslash are joined.
_KNOWN = {
    "ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
    "ENTRYPOINT", "CMD",
}  # fmt: skip

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    lines = (ROOT / "service" / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def last_stage() -> list[Instruction]:
    found = instructions()
    (*_, start) = [number for number, (name, _) in enumerate(found) if name == "FROM"]
    return found[start:]


def only(name: str) -> str:
    (text,) = [text for instruction, text in last_stage() if instruction == name]
    return text


def command() -> list[str]:
    words: list[str] = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    return words


def settings() -> dict[str, object]:
    """What the farm is started with."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return given_flags(ServeConfig, parser.parse_args(command()[2:]))


def test_every_instruction_is_one() -> None:
    found = instructions()
    assert {name for name, _ in found} <= _KNOWN
    assert [name for name, _ in found if name == "FROM"] == ["FROM", "FROM"]


def test_it_runs_as_a_user_of_its_own() -> None:
    names = [name for name, _ in last_stage()]
    user, _, group = only("USER").partition(":")
    assert min(int(user), int(group)) >= 1000
    # Nothing is run, or written, as that user while the image is built.
    assert not {"RUN", "COPY"} & set(names[names.index("USER") :])
    assert any(f"useradd --uid {user}" in text for name, text in last_stage() if name == "RUN")


def test_its_steps_name_what_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    copied = [text.split() for name, text in instructions() if name == "COPY" and not text.startswith("--from")]
    assert all((ROOT / source).exists() for *sources, _ in copied for source in sources)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {folder.partition("/")[0] for folder in packages["only-include"]} | {"pyproject.toml", "README.md"}
    assert {source for *sources, _ in copied for source in sources} == needed
    (named,) = [text.removeprefix("EXTRAS=") for name, text in instructions() if text.startswith("EXTRAS=")]
    assert set(named.split(",")) <= set(extras)
    assert any('"/source[${EXTRAS}]"' in text for name, text in instructions() if name == "RUN")


def test_its_steps_are_scripts() -> None:
    for name, text in instructions():
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", text], check=True)


def test_the_farm_takes_what_it_is_started_with_and_is_not_told_to_be_careless() -> None:
    assert command()[:2] == ["compilefarm", "serve"]
    given = settings()
    assert set(given) == {"listen", "auth", "store", "state"}
    assert "--allow-root" not in command()


def test_what_it_keeps_lies_in_volumes_that_are_its_own() -> None:
    volumes = json.loads(only("VOLUME"))
    given = settings()
    assert {str(given["store"]), str(given["state"])} <= set(volumes)
    (made,) = [shlex.split(text) for name, text in last_stage() if text.startswith("install --directory")]
    user, _, group = only("USER").partition(":")
    assert {f"--owner={user}", f"--group={group}", "--mode=0700"} <= set(made)
    assert set(volumes) <= set(made)
    # Compiles can read those.
    assert not any(volume.startswith(("/opt", "/usr")) for volume in volumes)


def test_its_health_is_asked_by_a_command_of_ours() -> None:
    program, name = json.loads(only("HEALTHCHECK").partition("CMD ")[2])
    assert program == "compilefarm"
    assert COMMANDS[name][0] == health.__name__
    address = dict(word.split("=", 1) for word in shlex.split(only("ENV")))["COMPILEFARM_ADDRESS"]
    port = str(settings()["listen"]).rpartition(":")[2]
    assert address == f"127.0.0.1:{port}"
    assert only("EXPOSE") == port


@pytest.mark.parametrize("word", ["token", "secret", "password", ".pem", "BEGIN"])
def test_no_secret_is_in_it(word: str) -> None:
    assert not any(word in text.lower() for _, text in instructions())
