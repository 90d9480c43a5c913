"""`implementation="transformers"` against the package's own models: what autograd keeps of them, and their FLOPs."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.analysis.predict import predict
from costmodel.architectures.encoder_decoder import EncoderDecoder
from costmodel.architectures.vision_transformer import VisionTransformer
from costmodel.errors import SettingError
from costmodel.importers.files import build
from costmodel.importers.huggingface.families import FAMILIES
from costmodel.importers.torch.importing import from_torch

from .measure import measure
from .settings import DRAWN
from .test_published_configs import inputs_of, small_configurations

transformers = pytest.importorskip("transformers")
from transformers import CONFIG_MAPPING, masking_utils  # noqa: E402

from tests.profiles import examples  # noqa: E402

pytestmark = pytest.mark.oracle

WRITTEN = [name for name, family in FAMILIES.items() if family.written is not None]
"""Families of which it is known how the package writes them."""


class First(torch.nn.Module):
    """A model of the package, of what it makes the first result."""

    def __init__(self, model: torch.nn.Module, given: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.given = given

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The logits, or what else comes first."""
        plain = {name: value for name, value in self.given.items() if not isinstance(value, torch.Tensor)}
        names = [name for name, value in self.given.items() if isinstance(value, torch.Tensor)]
        return self.model(**dict(zip(names, inputs, strict=True)), **plain)[0]


def flash(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, **given: Any) -> torch.Tensor:
    """PyTorch's kernel that a GPU runs, which for tensors without data nothing chooses."""
    assert attn_mask is None
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    return kernel(q, k, v, dropout_p, given.get("is_causal", False), scale=given.get("scale"))[0]


def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Dropout as a GPU's kernel has it, with a mask of a byte for each element."""
    return torch.native_dropout(x, p, training)[0] if training and p else x


def kept(config: dict[str, Any], batch: int, seq: int, dtype: torch.dtype, attention: str) -> tuple[int, int]:
    """Parameters of the package's model, and bytes that it keeps for backward."""
    family = config["model_type"]
    name = config.get("architectures", list(FAMILIES[family].ends))[0]
    with torch.device("meta"):
        made = CONFIG_MAPPING[family](**config)
        model = getattr(transformers, name)._from_config(made, attn_implementation=attention).train().to(dtype)
    module = First(model, inputs_of(config, batch, seq))
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in module.given.values() if isinstance(x, torch.Tensor)]
    one_sequence = patch.object(masking_utils, "find_packed_sequence_indices", lambda positions: None)
    unwarned = patch.object(transformers.PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_: None)
    fused = patch.object(torch.nn.functional, "scaled_dot_product_attention", flash)
    masked = patch.object(torch.nn.functional, "dropout", dropped)
    unmasked = patch.object(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_, **__: True)
    with one_sequence, unwarned, fused, masked, unmasked:
        cost = measure(module, *inputs, held=True)
    return cost.params, cost.saved


REFUSED = {("bloom", "flash"), ("gemma2", "flash"), ("t5", "flash")}
"""Biases of the scores, and soft caps, that no fused kernel takes."""


@pytest.mark.parametrize(
    ("family", "kernel"),
    [(family, kernel) for family in WRITTEN for kernel in ("eager", "flash") if (family, kernel) not in REFUSED],
)
def test_the_package_keeps_what_is_said_of_it(family: str, kernel: str) -> None:
    @examples(max(1, DRAWN // 3))
    @given(small_configurations(family), st.integers(1, 2), st.integers(3, 7), st.sampled_from(["fp32", "bf16"]))
    def holds(config: dict[str, Any], batch: int, seq: int, precision: Any) -> None:
        if family == "gpt_neox":
            config.pop("partial_rotary_factor", None)  # its class takes rotary_pct
        model = build(config, "config")
        sizes: dict[str, Any] = {} if isinstance(model, VisionTransformer) else {"seq": seq}
        if isinstance(model, EncoderDecoder):
            sizes["target_seq"] = seq - 1
        question: dict[str, Any] = {
            "implementation": "transformers",
            "precision": precision,
            "attention": kernel,
            "loss": "none",
        }
        try:
            p = predict(model, batch=batch, **question, **sizes)
        except SettingError:
            assume(kernel == "eager")
            raise
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        attention = "eager" if kernel == "eager" else "sdpa"
        assert (p.params, p.memory.activations) == kept(config, batch, seq, dtype, attention)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("family", WRITTEN)
def test_it_is_what_is_read_off_the_package_s_own_module(family: str) -> None:
    """Memory at the peak too, with eager attention: a module that is exported brings masks to fused kernels."""
    config: dict[str, Any] = {"model_type": family, "vocab_size": 99, "pad_token_id": 0}
    if family == "t5":
        config |= {"num_layers": 2, "d_model": 32, "num_heads": 4, "d_ff": 48, "d_kv": 8}
    elif family != "bloom":
        config |= {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    else:
        config |= {"n_layer": 2, "hidden_size": 32, "n_head": 4}
    config |= {"image_size": 32, "patch_size": 8, "num_labels": 5} if family == "vit" else {}
    config |= {"num_key_value_heads": 2} if hasattr(CONFIG_MAPPING[family](), "num_key_value_heads") else {}
    made = CONFIG_MAPPING[family](**config)
    module = getattr(transformers, next(iter(FAMILIES[family].ends)))._from_config(made, attn_implementation="eager")
    wrapped = First(module.train(), inputs_of(config, 2, 12))
    if family == "t5":
        wrapped.given["decoder_input_ids"] = wrapped.given["input_ids"]
    inputs = [torch.zeros(x.shape, dtype=x.dtype) for x in wrapped.given.values() if isinstance(x, torch.Tensor)]
    sizes: dict[str, Any] = {"batch": 2} | ({} if family == "vit" else {"seq": 12})
    own = predict(from_torch(wrapped, tuple(inputs)), loss="cross_entropy", **sizes)
    said = predict(build(config, "config"), implementation="transformers", **sizes)
    quantities = ["params", "flops.forward", "flops.total", "memory.activations", "memory.buffers", "memory.peak"]
    if family == "bloom":  # backward of its own activation makes tensors that that of the same kind does not
        quantities.remove("memory.peak")
    for quantity in quantities:
        assert (quantity, said.number(quantity)) == (quantity, own.number(quantity))


def test_what_the_package_writes_is_refused_where_that_is_not_known() -> None:
    with pytest.raises(SettingError, match="how transformers writes mixtral is not known"):
        predict(build({"model_type": "mixtral", "num_hidden_layers": 2}, "config"), implementation="transformers")


def test_the_report_says_how_much_more_is_kept() -> None:
    model = build({"model_type": "llama", "num_hidden_layers": 2}, "config")
    plain, own = (predict(model, seq=64, implementation=by) for by in ("plain", "transformers"))
    factor = own.memory.activations / plain.memory.activations
    assert factor > 1.05
    assert f"it keeps {factor:.3g} times" in " ".join(str(own).split())
    assert "implementation" not in str(plain)
