"""Trainer."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from tests.corpus.programs.architectures import LENGTH
from tests.wild.program import Compiler, Program, require_module

from .models import GROUPED, build_model, tokens

_STEPS = 3


def _trains(compiler: Compiler) -> Any:
    transformers = require_module("transformers")
    with compiler.device:
        model = build_model("LlamaForCausalLM", {**GROUPED, "use_cache": False}).train()
    compiler.in_place(model)
    texts = tokens(batch=2 * _STEPS, length=LENGTH)
    examples = [{"input_ids": text, "labels": text} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            max_steps=_STEPS,
            learning_rate=1e-3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=compiler.device.type == "cpu",
        )
        trained = transformers.Trainer(model=model, args=arguments, train_dataset=examples).train()
    # A number is compared in all its digits, a tensor in those that its dtype has.
    return torch.tensor(trained.training_loss), dict(model.named_parameters())


PROGRAMS = (Program(name="trainer llama", run=_trains, training=True, precision=torch.float32),)
