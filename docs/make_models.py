"""Measure how near each model is to its reference, and write the table into docs/models.md.

    python docs/make_models.py [-]        # - prints the table instead; needs the extra `peers`

The cases are those of the tests: the comparisons in tests/models are run, for every variant, with and without padding,
and what they compare is noted on the way.
"""

import datetime
import importlib
import itertools
import platform
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "models")]

import numpy  # noqa: E402
import reference  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import minigrad as mg  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- Written by docs/make_models.py; do not edit. -->", "<!-- End of what docs/make_models.py wrote. -->"

# Model, reference, and where the test is: its module, and how the names of its cases begin.
ROWS = [
    ("Transformer", "MarianMTModel", "test_encoder_decoders", ("Marian",)),
    ("GPT1", "OpenAIGPTLMHeadModel", "test_gpt_published", ("GPT-1",)),
    ("GPT", "GPT2LMHeadModel", "test_gpt_published", ("GPT-2", "un", "scaled", "narrow", "exact")),
    ("LLaMA", "LlamaForCausalLM", "test_llama", ("LLaMA", "tied", "wide", "linear", "llama3")),
    ("Mistral", "MistralForCausalLM", "test_llama", ("Mistral",)),
    ("BERT", "BertModel, …ForMaskedLM, …ForPreTraining", "test_bert", ("",)),
    ("BART", "BartForConditionalGeneration", "test_encoder_decoders", ("BART",)),
    ("BART (mBART)", "MBartForConditionalGeneration", "test_encoder_decoders", ("mBART",)),
    ("T5", "T5ForConditionalGeneration", "test_encoder_decoders", ("T5",)),
    ("T5 (mT5)", "MT5ForConditionalGeneration", "test_encoder_decoders", ("mT5",)),
    ("Whisper", "WhisperForConditionalGeneration", "test_whisper", ("",)),
    ("ViT", "CLIPVisionModel, …WithProjection", "test_vit", ("",)),
    ("LLaVA", "LlavaForConditionalGeneration", "test_llava", ("",)),
    ("Flamingo", "IdeficsForVisionText2Text", "test_flamingo", ("",)),
    ("RETRO", "a composition in PyTorch", "test_retro", ("",)),
]
OUTPUTS = ("", "logits", "state", "pooled")  # what a test calls what a model gives
Errors = dict[tuple[str, str], float]


def runs(module: str) -> tuple[Any, list[dict[str, Any]]]:
    """The test of equality in a module, and the arguments of each of its runs."""
    found = importlib.import_module(module)
    test = getattr(found, "test_as_in_transformers", None) or found.test_as_composed_in_pytorch
    choices = []
    for mark in test.pytestmark:
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
            choices.append([dict(zip(names, value, strict=True)) for value in values])
    return test, [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*choices)]


def measure(module: str, begins: tuple[str, ...]) -> tuple[int, Errors]:
    """How many runs there were, and the largest relative error of each kind by dtype."""
    test, arguments = runs(module)
    chosen = [given for given in arguments if str(given.get("case", "")).startswith(begins)]
    errors: Errors = defaultdict(float)
    close = reference.close

    def noted(ours: Any, theirs: Any, dtype: str, what: str = "") -> None:
        close(ours, theirs, dtype, what)  # as in the tests: it raises for what is not near enough
        ours = ours.numpy() if isinstance(ours, mg.Tensor) else numpy.asarray(ours)
        theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else numpy.asarray(theirs)
        largest = max(float(numpy.max(numpy.abs(theirs), initial=0.0)), 1e-3)
        kind = "logits" if what in OUTPUTS else "loss" if what == "loss" else "gradients"
        error = float(numpy.max(numpy.abs(ours - theirs), initial=0.0)) / largest
        errors[dtype, kind] = max(errors[dtype, kind], error)

    reference.close = noted
    try:
        for given in chosen:
            mg.random.seed(0)
            test(**given)
    finally:
        reference.close = close
    return len(chosen), errors


def _short(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def _code(name: str) -> str:
    """``"T5 (mT5)"`` with the class as code."""
    kind, *rest = name.split(" ")
    return " ".join([f"`{kind}`", *rest])


def table() -> str:
    mg.set_backend("numpy")
    lines = [
        "| model | reference | runs | float64: logits, loss, gradients | float32: logits, loss, gradients |",
        "|---|---|---|---|---|",
    ]
    measured: dict[str, int] = defaultdict(int)
    for name, theirs, module, begins in ROWS:
        count, errors = measure(module, begins)
        numbers = [
            ", ".join(_short(errors[dtype, kind]) for kind in ("logits", "loss", "gradients"))
            for dtype in ("float64", "float32")
        ]
        lines.append(f"| {_code(name)} | {theirs} | {count} | {' | '.join(numbers)} |")
        print(lines[-1], file=sys.stderr)
        measured[module] += count
    for module, count in measured.items():
        if count != len(runs(module)[1]):
            raise SystemExit(f"{module}: {len(runs(module)[1])} runs, {count} of them in a row of the table")
    versions = f"transformers {transformers.__version__}, PyTorch {torch.__version__}, NumPy {numpy.__version__}"
    today = datetime.date.today().isoformat()
    note = f"Measured on {today} with {versions}, Python {platform.python_version()}, on a CPU ({platform.machine()})."
    return "\n".join([BEGIN, "", note, "", *lines, "", END])


if __name__ == "__main__":
    made = table()
    if sys.argv[1:] == ["-"]:
        print(made)
    else:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + made + rest.partition(END)[2], encoding="utf-8")
