"""What every published configuration is: strict fields, and a place for each of those that a family does not have."""

from __future__ import annotations

from abc import abstractmethod
from difflib import get_close_matches
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from costmodel.architectures.base import Architecture
from costmodel.architectures.description import explain_validation
from costmodel.architectures.transformer import Transformer
from costmodel.errors import SpecError, shown, unknown

PRECISION = ("dtype", "torch_dtype", "quantization_config", "compression_config")
"""What a question's setting `precision` says instead."""


def words(text: str) -> frozenset[str]:
    """The words in a text."""
    return frozenset(text.split())


IDLE = words(
    "_attn_implementation _attn_implementation_autoset _name_or_path attn_implementation auto_map "
    "begin_suppress_tokens bos_token_id classifier_dropout cls_token_id decoder_start_token_id "
    "diversity_penalty do_sample early_stopping embd_layer_norm_epsilon encoder_no_repeat_ngram_size "
    "eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing id2label init_std initializer_range is_decoder "
    "keys_to_ignore_at_inference label2id layer_norm_eps layer_norm_epsilon length_penalty mask_token_id "
    "max_length min_length no_repeat_ngram_size norm_epsilon num_beam_groups num_beams num_labels "
    "num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix "
    "pretraining_tp problem_type remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate rms_norm_eps sep_token_id sharding_strategy suppress_tokens "
    "task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p "
    "torchscript transformers.js_config transformers_version typical_p unk_token_id use_bfloat16 "
    "use_cache"
)
"""Fields of every family that no cost depends on: tokens, text generation, labels, small constants, bookkeeping."""

FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
}
"""Fields of every family that would change the cost, and the values at which they do not."""


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "leaky_relu": "leaky_relu",
}
"""Activations by the names that published configurations use."""


class Published(BaseModel):
    """Abstract: a family's published configuration; defaults are those of the published configuration class."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    MODEL_TYPE: ClassVar[str]
    """What the family calls itself in `model_type`."""
    HEADED: ClassVar[tuple[str, ...]]
    """Names in `architectures` of the model with a head over the vocabulary."""
    HEADLESS: ClassVar[tuple[str, ...]]
    """Names in `architectures` of the model without one."""
    ALIASES: ClassVar[dict[str, str]] = {}
    """Other names of fields."""
    IDLE: ClassVar[frozenset[str]] = frozenset()
    """The family's own fields that no cost depends on."""
    FIXED: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """The family's own fields that would change the cost, and the values at which they do not."""

    model_type: str
    architectures: list[str] | None = None

    @classmethod
    def read(cls, data: dict[str, Any]) -> Architecture:
        """The model that a configuration describes. Raises SpecError or UnknownNameError."""
        fields = {cls.ALIASES.get(name, name): value for name, value in data.items()}
        if len(fields) < len(data):
            twice = next(n for n in data if n in cls.ALIASES and cls.ALIASES[n] in data)
            raise SpecError(
                f"{cls.MODEL_TYPE}: {twice} and {cls.ALIASES[twice]} are the same field: keep one", (twice,)
            )
        try:
            config = cls(**fields)
        except ValidationError as error:
            message = explain_validation(cls, error).replace(cls.__name__, cls.MODEL_TYPE, 1)
            raise SpecError(message, error.errors()[0]["loc"]) from None
        config.check_others()
        fields = {"name": config.title, "notes": config.note, **config.fields()}
        try:
            return config.model(fields)
        except SpecError as error:
            raise SpecError(f"{cls.MODEL_TYPE} config, as a model: {error}") from None

    def model(self, fields: dict[str, Any]) -> Architecture:
        """The model with these fields: a transformer, with a head or without."""
        without = {"tied": False, "head_bias": False, "logit_scale": None, "logit_cap": None}
        fields = {"head": self.headed, **fields, **({} if self.headed else without)}
        return Transformer.of({Transformer.RENAMED.get(name, name): value for name, value in fields.items()})

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The model's fields."""

    def check_others(self) -> None:
        """Raise SpecError for a field that is not the family's and may change the cost."""
        fixed = {**FIXED, **self.FIXED}
        for name, value in (self.model_extra or {}).items():
            if name in fixed:
                if value not in fixed[name] or isinstance(value, bool) not in {
                    isinstance(v, bool) for v in fixed[name]
                }:
                    only = " or ".join(map(shown, fixed[name]))
                    raise SpecError(
                        f"{self.MODEL_TYPE}: {name}={shown(value)} changes the cost in a way that is not understood: "
                        f"only {only} is",
                        (name,),
                    )
            elif name not in IDLE and name not in self.IDLE and name not in PRECISION:
                known = [*type(self).model_fields, *fixed, *self.ALIASES]
                near = get_close_matches(name, known, n=2, cutoff=0.75)
                meant = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
                raise SpecError(
                    f"{self.MODEL_TYPE}: field {shown(name)} is not understood{meant} and may change the cost: "
                    "leave it out if it does not",
                    (name,),
                )

    @cached_property
    def headed(self) -> bool:
        """Whether the model ends in logits over the vocabulary, as it does where no architecture is named."""
        if not self.architectures:
            return True
        known = [*self.HEADED, *self.HEADLESS]
        for name in self.architectures:
            if name not in known:
                raise SpecError(
                    f"architectures: {shown(name)} is not one of model_type {self.MODEL_TYPE!r}: known are "
                    f"{', '.join(known)}",
                    ("architectures",),
                )
        return self.architectures[0] in self.HEADED

    @property
    def title(self) -> str:
        """Name for reports: what the configuration was saved as, else its family's."""
        saved = (self.model_extra or {}).get("_name_or_path")
        name = saved.rstrip("/").rpartition("/")[2] if isinstance(saved, str) else ""
        return (name or self.MODEL_TYPE)[:200]

    @property
    def note(self) -> str:
        """What was read, and which of the fields given have no cost."""
        extra = self.model_extra or {}
        idle = sorted(name for name in extra if name not in PRECISION)
        left = [name for name in PRECISION if name in extra]
        said = f"Read from a published configuration of model_type {self.MODEL_TYPE}."
        if idle:
            said += f" Without effect on the cost: {', '.join(idle)}."
        if left:
            said += f" Left to the setting precision: {', '.join(left)}."
        return said if len(said) <= 4000 else said[:3997] + "..."


def activation_named(name: str) -> str:
    """Our name of a published activation. Raises UnknownNameError."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def cycle_of(values: list[bool], layers: int) -> tuple[bool, ...]:
    """The shortest pattern that gives each layer its value, over and over; none where all layers are alike and true."""
    used = values[:layers]
    length = next(n for n in range(1, len(used) + 1) if all(v == used[i % n] for i, v in enumerate(used)))
    return () if used[:length] == [True] else tuple(used[:length])
