"""Looks for requests or request files that do what none may, guided by coverage: `python tests/fuzz/run.py requests`.

What it has learnt stays in build/fuzz, with what it has found; with a FILE after the subject it tries a find again.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from random import Random

import atheris

ROOT = Path(__file__).resolve().parents[2]
# In place of this folder: what lies in it is a package.
sys.path[0] = str(ROOT / "tests")

with atheris.instrument_imports(include=["compilefarm"]):
    from fuzz import watch
    from fuzz.damage import change_file, change_request, damage
    from fuzz.properties import check_request, check_request_file
    from fuzz.seeds import seeds

    from compilefarm.core.digests import digest_of
    from compilefarm.core.requests import pack_request

SUBJECTS = {
    "requests": (check_request, change_request, [request.job.SerializeToString() for request in seeds()]),
    "files": (check_request_file, change_file, [pack_request(request) for request in seeds()]),
}


def main(subject: str, *options: str) -> None:
    """Fuzzes one subject.

    Args:
        subject: "requests" or "files".
        options: of libFuzzer, which win over those given here; or files that are tried once.
    """
    check, change, examples = SUBJECTS[subject]
    folder = ROOT / "build" / "fuzz" / subject
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for content in examples:
        (corpus / digest_of(content)).write_bytes(content)

    def mutate(content: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        ways = (change, change, change, damage) if random.random() < 0.9 else (_by_libfuzzer,)
        for _ in range(random.randrange(1, 4)):
            content = random.choice(ways)(content, random=random)
        return content[:max_size]

    def _by_libfuzzer(content: bytes, *, random: Random) -> bytes:
        mutated: bytes = atheris.Mutate(content, len(content) + random.randrange(64))
        return mutated

    # What torch says about graphs that it refuses would be most of the output.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    limits = [f"-timeout={int(watch.SECONDS) + 10}", "-rss_limit_mb=8192", "-max_len=65536", "-max_total_time=600"]
    places = [f"-artifact_prefix={folder}/", *([] if any(Path(option).is_file() for option in options) else [corpus])]
    atheris.Setup(
        [sys.argv[0], *limits, *options, *map(str, places)],
        lambda content: check(content),
        custom_mutator=mutate,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
