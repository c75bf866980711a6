"""Encoders of text, at lengths that differ."""

from __future__ import annotations

import torch

from tests.corpus.program import Call, call

from .models import SMALL, TOKENS, text_program, tokens, training_program

# Of the positions, RoBERTa's begin behind the padding token's number.
_BERT = {**SMALL, "max_position_embeddings": 64}


def _classified() -> list[Call]:
    return [call(input_ids=tokens(length=length), labels=torch.tensor([0, 1])) for length in (12, 17)]


def _token_labels() -> list[Call]:
    return [call(input_ids=tokens(), labels=torch.randint(0, 2, (2, 12)))]


def _spans() -> list[Call]:
    return [call(input_ids=tokens(), start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([3, 4]))]


PROGRAMS = (
    text_program("bert", "BertModel", _BERT),
    text_program("roberta", "RobertaModel", _BERT),
    text_program("xlm_roberta", "XLMRobertaForMaskedLM", _BERT),
    text_program("camembert", "CamembertForTokenClassification", _BERT),
    text_program(
        "distilbert",
        "DistilBertModel",
        {"vocab_size": TOKENS, "dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 4, "max_position_embeddings": 64},
    ),
    text_program("albert", "AlbertModel", {**_BERT, "embedding_size": 16}),
    text_program("electra", "ElectraModel", {**_BERT, "embedding_size": 16}),
    text_program("mpnet", "MPNetModel", _BERT),
    text_program("deberta", "DebertaModel", {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    text_program("deberta_v2", "DebertaV2Model", {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    text_program("modernbert", "ModernBertModel", {**_BERT, "num_hidden_layers": 2, "local_attention": 8}),
    text_program(
        "xlnet", "XLNetModel", {"vocab_size": TOKENS, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 64}
    ),
    text_program("roformer", "RoFormerModel", {**_BERT, "embedding_size": 32}),
    text_program("ernie", "ErnieModel", _BERT),
    training_program("bert classified", "BertForSequenceClassification", _BERT, inputs=_classified),
    training_program("roberta tokens classified", "RobertaForTokenClassification", _BERT, inputs=_token_labels),
    training_program("electra answers", "ElectraForQuestionAnswering", _BERT, inputs=_spans),
)
