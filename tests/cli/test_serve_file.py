"""The configuration file of `compilefarm serve`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from compilefarm.cli import serve
from compilefarm.cli.main import main
from compilefarm.serving.config import ServeConfig, read_config
from compilefarm.serving.flags import UnusableFile, flags_of

# A text, and what it means, for each setting that a file can give.
WHOLE = f"""
listen = "0.0.0.0:7077"
insecure = true
auth = "callers.toml"
tls-certificate = "farm.pem"
tls-key = "farm-key.pem"
tls-client-ca = "pods.pem"
signing-key = "signing.pem"
signer = "unix:/run/signer"
trusted-key = ["ed25519:a", "ed25519:b"]
store = "/data"
read-only = true
store-size-limit = "50GB"
cache-size-limit = "5GB"
cache-lifetime = 7
cache-memory = "1GiB"
state = "/state"
device = "cpu"
slots = 2
pool = "ray"
ray-address = "10.0.0.1:6379"
ray-workers = 3
worker-lifetime = 5
worker = ["torch-2.11={sys.executable}"]
compile-timeout = 60
verify = "after"
import = ["my_ops", "einops"]
libraries = "torchvision, timm"
allow-triton-kernels = true
queue-limit = 7
tenant-limit = 3
tenant-slots = 2
tenant-upload-limit = "5GB"
orphan-grace = 0
sandbox = "off"
allow-root = true
memory-limit = 8
disk-limit = "1GB"
control-group = "/sys/fs/cgroup/farm"
metrics-listen = "127.0.0.1:9100"
record = "recording"
log-format = "json"
grace = 1
"""


def read(folder: Path, text: str, *arguments: str) -> ServeConfig:
    file = folder / "farm.toml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return read_config(parser.parse_args(["--config", str(file), *arguments]))


def test_a_file_says_the_same_as_the_flags(tmp_path: Path) -> None:
    given = read(tmp_path, WHOLE)
    changed = {
        field.name for field in fields(ServeConfig) if getattr(given, field.name) != getattr(ServeConfig(), field.name)
    }
    # Tables, which no flag can say (test_declared.py).
    assert changed == {field.name for field in fields(ServeConfig)} - {"environments"}
    flags = [
        *("--listen", "0.0.0.0:7077", "--insecure", "--auth", "callers.toml", "--tls-certificate", "farm.pem"),
        *("--tls-key", "farm-key.pem", "--tls-client-ca", "pods.pem", "--signing-key", "signing.pem"),
        *("--signer", "unix:/run/signer", "--trusted-key", "ed25519:a", "--trusted-key", "ed25519:b"),
        *("--store", "/data", "--read-only", "--store-size-limit", "50GB", "--cache-memory", "1GiB"),
        *("--cache-size-limit", "5GB", "--cache-lifetime", "7"),
        *("--pool", "ray", "--ray-address", "10.0.0.1:6379", "--ray-workers", "3", "--worker-lifetime", "5"),
        *("--state", "/state", "--device", "cpu", "--slots", "2", "--worker", f"torch-2.11={sys.executable}"),
        *("--compile-timeout", "60", "--verify", "after", "--import", "my_ops", "--import", "einops"),
        *("--libraries", "torchvision, timm"),
        *("--allow-triton-kernels", "--queue-limit", "7", "--tenant-limit", "3", "--tenant-slots", "2"),
        *("--tenant-upload-limit", "5GB", "--orphan-grace", "0", "--sandbox", "off", "--allow-root"),
        *("--memory-limit", "8", "--disk-limit", "1GB", "--control-group", "/sys/fs/cgroup/farm"),
        *("--metrics-listen", "127.0.0.1:9100", "--record", "recording", "--log-format", "json", "--grace", "1"),
    ]
    assert read(tmp_path, "", *flags) == given


def test_a_flag_comes_before_the_file_and_the_file_before_the_default(tmp_path: Path) -> None:
    text = 'queue-limit = 7\nimport = ["my_ops"]\nlisten = "127.0.0.1:1"'
    given = read(tmp_path, text, "--queue-limit", "9", "--import", "einops")
    assert (given.queue_limit, given.modules, given.listen) == (9, ("einops",), "127.0.0.1:1")
    assert given.tenant_limit == ServeConfig().tenant_limit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("queue-limt = 7", "farm.toml sets 'queue-limt', which is not a flag: did you mean queue-limit?"),
        ("queue_limit = 7", "did you mean queue-limit?"),
        ("xyz = 7", "'xyz', which is not a flag: `compilefarm serve --help` lists them"),
        ("[store]\npath = 'x'", "sets store to {'path': 'x'}: write a text in quotes"),
        ("queue-limit = '7'", "sets queue-limit to '7': write a whole number without quotes"),
        ("queue-limit = true", "sets queue-limit to True: write a whole number without quotes"),
        ("queue-limit = 0", "sets queue-limit to 0: '0' is not a whole number of at least 1"),
        ("cache-memory = 5", "sets cache-memory to 5: write a text in quotes"),
        ("cache-memory = '5 apples'", "'5 apples' is not a size: write it like 500MB"),
        ("read-only = 'yes'", "sets read-only to 'yes': write true or false"),
        ("import = 'my_ops'", "sets import to 'my_ops': write a list of texts in quotes"),
        ("import = [1]", "sets import to [1]: write a list of texts in quotes"),
        ("worker = ['a=/nowhere/python']", "'/nowhere/python', the interpreter of a, is no program"),
        ("sandbox = 'maybe'", "sets sandbox to 'maybe': use one of auto, require, off"),
        ("listen = ", "farm.toml is not TOML"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_remedy(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableFile) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)


def test_a_farm_does_not_start_with_a_file_that_it_does_not_understand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.toml"
    assert main(["serve", "--config", str(missing)]) == 2
    assert f"{missing} cannot be read: No such file or directory" in capsys.readouterr().err


def test_every_flag_is_described() -> None:
    for flag in flags_of(ServeConfig):
        assert flag.meaning, flag
        assert flag.kind == "switch" or flag.choices or flag.metavar, flag
