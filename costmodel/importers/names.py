"""Names that people type for ready models: ids of model hubs, names of other libraries, and releases tuned from one.

A tuned release (instruct, chat) has the architecture of the model that it was tuned from, and so its costs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

OTHER_NAMES: Final = {
    "gpt2": "gpt2-small",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "distilbert-base-uncased": "distilbert-base",
    "bloom": "bloom-176b",
    "c4ai-command-r-v01": "command-r-35b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "mistral-nemo-base-2407": "mistral-nemo-12b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "mistral-large-instruct-2407": "mistral-large-123b",
    "mistral-small-instruct-2409": "mistral-small-22b",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "phi-3-medium-4k-instruct": "phi-3-medium",
    "phi-3-small-8k-instruct": "phi-3-small",
    "tinyllama-1.1b-chat-v1.0": "tinyllama-1.1b",
    "olmo-2-0425-1b": "olmo-2-1b",
    "olmo-2-1124-7b": "olmo-2-7b",
    "olmo-2-1124-13b": "olmo-2-13b",
    "olmo-2-0325-32b": "olmo-2-32b",
    "falcon-180b-chat": "falcon-180b",
    "vit-base-patch16-224": "vit-b-16",
    "vit-base-patch32-224": "vit-b-32",
    "vit-large-patch16-224": "vit-l-16",
    "vit-large-patch32-224": "vit-l-32",
    "vit-huge-patch14-224": "vit-h-14",
    "vit-small-patch16-224": "vit-s-16",
    "vit-small-patch32-224": "vit-s-32",
    "vit-tiny-patch16-224": "vit-ti-16",
    "deit-tiny-patch16-224": "deit-tiny",
    "deit-small-patch16-224": "deit-small",
    "deit-base-patch16-224": "deit-base",
    "deit-tiny-distilled-patch16-224": "deit-tiny-distilled",
    "deit-small-distilled-patch16-224": "deit-small-distilled",
    "deit-base-distilled-patch16-224": "deit-base-distilled",
    "mobilenetv1-100": "mobilenet_v1",
    "mobilenetv2-100": "mobilenet_v2",
    "mobilenetv3-large-100": "mobilenet_v3_large",
    "mobilenetv3-small-100": "mobilenet_v3_small",
    "lenet": "lenet-5",
    "lenet5": "lenet-5",
}
"""What repositories and other libraries call a ready model, where no rule leads from that name to ours."""

# Words that tell a tuned or repackaged release from the model it was made of; none of them changes an architecture.
TUNED = r"-(hf|base|instruct|chat|it|sft|dpo|pt|deduped|bf16|fp16|unsloth|\d{4}|in1k|224)(?=-|$)"
_SPACING = str.maketrans("", "", "-_ ")


def plain(name: str) -> str:
    """A name without what people write in several ways: case, "-", "_" and spaces."""
    return name.lower().translate(_SPACING)


def ready_name(name: str, ready: Mapping[str, str]) -> str | None:
    """The ready model that a name means, or None. `ready` gives the ready models' names by their plain form.

    A hub's id (``owner/name``) means what its last part means. ``meta-llama/Llama-3.1-8B-Instruct`` is llama-3.1-8b.
    """
    own = released_name(name)
    other = {plain(given): of for given, of in OTHER_NAMES.items()}
    forms = [own, untuned(own)]
    # Underscores for dots: phi-1_5 is phi-1.5, and stablelm-2-1_6b is stablelm-2-1.6b.
    forms += [re.sub(r"(?<=\d)-(?=\d)", ".", own), re.sub(r"(?<=\d)-(?=\d+[a-z]*$)", ".", own)]
    found = (ready.get(plain(form)) or other.get(plain(form)) for form in forms)
    return next(filter(None, found), None)


def released_name(name: str) -> str:
    """The last part of a hub's id, in lower case."""
    return name.rstrip("/").rpartition("/")[2].lower().replace("_", "-").removeprefix("meta-")


def untuned(name: str) -> str:
    """A released name without the words of tuned releases; without the recipe too, as in ``resnet50.a1-in1k``."""
    return re.sub(TUNED, "", re.sub(r"\.[a-z]\w*-in1k$", "", name))
