"""The rule of attention in one call: composed of its parts, or in one kernel that never stores the scores."""

from __future__ import annotations

import math

from costmodel.errors import SettingError
from costmodel.graph.tensor import Tensor, transposed
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.site import Site, rule, strides_of
from costmodel.layers.arithmetic import Add, Dropout, Scale
from costmodel.layers.attention import FusedAttention, Softmax
from costmodel.layers.leaf import Made
from costmodel.layers.linear import Matmul
from costmodel.layers.resize import Padded
from costmodel.layers.shape import Copied
from costmodel.symbolic.sizes import ceil_div, exact_div, value_of


@rule("scaled_dot_product_attention")
def attention(site: Site) -> Tensor:
    """As the question's setting `attention` says; fused where all heads are of one size and there are four axes."""
    query, key, value = (site.tensor(name) for name in ("query", "key", "value"))
    with site.run.part("core"):
        if len(query.shape) != 4 or key.shape != value.shape or not _fuses(site):
            return _composed(site, query, key, value)
        return _fused(site, query, key, value)


def _fuses(site: Site) -> bool:
    """Whether a kernel was asked for that can do it: the CPU's has no dropout, nor masks of three axes or trained."""
    kernel = site.replay.attention.kernel
    if kernel == "eager" or not site.has("attn_mask"):
        return kernel != "eager" and not (site.run.device == "cpu" and _dropout(site))
    mask = site.tensor("attn_mask")
    if site.run.device == "cpu":
        return len(mask.shape) in (2, 4) and not mask.requires_grad and not _dropout(site)
    if kernel == "flash":
        where = ".".join((*site.step.path, site.step.name))
        raise SettingError(f"attention='flash' takes no mask, as {where} has: use 'efficient' or 'eager'")
    return True


def _dropout(site: Site) -> float:
    return site.value("dropout_p", 0.0) if site.run.training else 0.0


def _fused(site: Site, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kernel = site.replay.attention.kernel
    assert kernel != "eager"
    scale = site.constant("scale") if site.has("scale") else None
    kind = FusedAttention("cpu" if site.run.device == "cpu" else kernel, _dropout(site), scale=scale)
    mask = _mask(site, query, key) if site.has("attn_mask") else None
    if mask is None:
        return site.layer(kind, query, key, value)
    return site.layer(kind, query, key, value, mask if site.run.device == "cpu" else _aligned(site, mask))


def _aligned(site: Site, mask: Tensor) -> Tensor:
    """A mask as the efficient kernel takes it: rows of memory are multiples of eight long (``at::pad_bias``)."""
    *rest, keys = mask.shape
    padded = (*rest, 8 * ceil_div(keys, 8))
    if mask.has(padded):
        return mask
    whole = site.layer(Padded(padded), mask, name=f"{site.step.name}.mask_padded")
    return site.part(whole, mask.shape, strides_of(whole))


def _composed(site: Site, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As ``aten::_scaled_dot_product_attention_math``: both sides are scaled by a root, the mask is added."""
    mask = _mask(site, query, key)
    if key.shape[-3:-2] != query.shape[-3:-2] and site.value("enable_gqa", False):
        key, value = (_repeated(site, x, query.shape[-3]) for x in (key, value))
    name = site.step.name
    scale = site.constant("scale", 1 / math.sqrt(value_of(query.shape[-1])))
    root = math.sqrt(abs(scale))
    query = site.layer(Scale(math.copysign(root, scale)), query, name=f"{name}.scale_query")
    key = site.layer(Scale(root), transposed(key, len(key.shape) - 2, len(key.shape) - 1), name=f"{name}.scale_key")
    batch = site.shape[:-2]
    query, key, value = (expanded(site, x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    scores = site.layer(Matmul(), query, key, name=f"{name}.scores")
    if mask is not None:
        scores = site.layer(Add(), scores, mask, name=f"{name}.mask")
    weights = site.layer(Softmax(), scores, name=f"{name}.softmax")
    if p := _dropout(site):
        weights = site.layer(Dropout(p), weights, name=f"{name}.dropout")
    return site.layer(Matmul(), weights, value, name=f"{name}.mix")


def _mask(site: Site, query: Tensor, key: Tensor) -> Tensor | None:
    """What is added to the scores: a mask of truth values becomes one of numbers."""
    name = f"{site.step.name}.mask_numbers"
    if site.value("is_causal", False):
        return site.layer(Made((query.shape[-2], key.shape[-2])), name=name)
    if not site.has("attn_mask"):
        return None
    mask = site.tensor("attn_mask")
    return site.layer(Made(mask.shape), mask, name=name) if mask.storage.role == "mask" else mask


def _repeated(site: Site, x: Tensor, heads: int) -> Tensor:
    shape = (*x.shape[:-3], exact_div(heads, x.shape[-3]) * x.shape[-3], *x.shape[-2:])
    return site.layer(Copied(shape), x, name=f"{site.step.name}.repeat")
