"""Generates the code for the protocol: `python proto/generate.py`; with --check it only says what is not current.

It needs uv on PATH, which `python3 dev.py setup` installs, and fetches the generator into an environment of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROTO = Path(__file__).resolve().parent
# Code from this generator imports with protobuf 4.25 to 7 and asks for no recent grpcio in a pod.
GENERATOR = ("grpcio-tools==1.62.3", "mypy-protobuf==3.6.0", "setuptools<81")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the code is not current")
    if parser.parse_args(arguments).check:
        return check()
    generate(PROTO)
    return 0


def check() -> int:
    """Says which files of generated code are not current; returns 1 if there are some."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "proto"
        shutil.copytree(PROTO, fresh, ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
        generate(fresh)
        committed = {path.name: path.read_bytes() for path in generated_files(PROTO)}
        expected = {path.name: path.read_bytes() for path in generated_files(fresh)}
    stale = sorted(name for name in committed.keys() | expected.keys() if committed.get(name) != expected.get(name))
    if stale:
        print(f"generated code is not current: {', '.join(stale)}; run: python proto/generate.py")
    return 1 if stale else 0


def generated_files(proto: Path) -> list[Path]:
    return sorted((proto / "compilefarm" / "v1").glob("*_pb2*.py*"))


def generate(proto: Path) -> None:
    """Generates code beside the .proto files in that folder, in place of what is there."""
    sources = sorted((proto / "compilefarm" / "v1").glob("*.proto"))
    services = [source for source in sources if source.stem.endswith("_service")]
    # What cannot be parsed leaves the code as it was.
    protoc(proto, [f"--descriptor_set_out={os.devnull}"], sources)
    for path in generated_files(proto):
        path.unlink()
    protoc(proto, [f"--python_out={proto}", f"--mypy_out=quiet:{proto}"], sources)
    protoc(proto, [f"--grpc_python_out={proto}", f"--mypy_grpc_out=quiet:{proto}"], services)


def protoc(proto: Path, outputs: Sequence[str], sources: Sequence[Path]) -> None:
    packages = [argument for package in GENERATOR for argument in ("--with", package)]
    compiler = ["uv", "run", "--quiet", "--no-project", *packages, "python", "-m", "grpc_tools.protoc"]
    subprocess.run([*compiler, f"-I{proto}", *outputs, *map(str, sources)], check=True)


if __name__ == "__main__":
    sys.exit(main())
