"""Environments that the configuration file of `compilefarm serve` declares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from compilefarm.core.pool import DeclaredEnvironment
from compilefarm.serving.config import ServeConfig, add_arguments, read_config
from compilefarm.serving.flags import UnusableFile


def read(folder: Path, text: str) -> ServeConfig:
    """The configuration that a file gives."""
    file = folder / "serve.toml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_config(parser.parse_args(["--config", str(file)]))


def test_a_file_declares_environments(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        f"""
        queue-limit = 7

        [environments."torch-2.11"]
        python = "{sys.executable}"
        device = "cpu"

        [environments.gpu]
        image = "registry/farm:cuda"
        device = "cuda"
        resources = {{H200 = 1}}
        least-workers = 1
        most-workers = 8
        idle-seconds = 60
        """,
    )
    assert config.environments == (
        DeclaredEnvironment(name="torch-2.11", device="cpu", python=sys.executable),
        DeclaredEnvironment(
            name="gpu",
            device="cuda",
            image="registry/farm:cuda",
            resources={"H200": 1},
            least_workers=1,
            most_workers=8,
            idle_seconds=60,
        ),
    )
    assert config.queue_limit == 7
    # An image has its own interpreter.
    assert list(config.interpreters()) == ["default", "torch-2.11"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("environments = 3", "such as"),
        ("[environments]\ngpu = 3", r"write a table \[environments.gpu\]"),
        ('[environments."a b"]\ndevice = "cpu"', "cannot be called 'a b'"),
        ('[environments.default]\ndevice = "cpu"', "cannot be called 'default'"),
        ('[environments.gpu]\ndevice = "tpu"\npython = "x"', '"cpu" or "cuda"'),
        ('[environments.gpu]\ndevice = "cuda"', "python or image"),
        ('[environments.gpu]\npython = "x"', "has to say device"),
        ('[environments.gpu]\ndevice = "cuda"\nimage = "x"\nmost = 3', "'most'; known are python, image"),
        ('[environments.gpu]\ndevice = "cuda"\nimage = "x"\nmost-workers = 0', "at least 1"),
        ('[environments.gpu]\ndevice = "cuda"\nimage = "x"\nidle-seconds = -1', "no whole number"),
        ('[environments.gpu]\ndevice = "cuda"\nimage = "x"\nleast-workers = true', "no whole number"),
        ('[environments.gpu]\ndevice = "cuda"\nimage = "x"\nresources = {H200 = "1"}', "numbers above 0"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UnusableFile, match=complaint) as refused:
        read(tmp_path, text)
    assert "serve.toml sets environments" in str(refused.value)
