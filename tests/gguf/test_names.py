"""Names of files."""

import pytest

from localspec.gguf.names import choose, models_among, parts_of, quant_of


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("llama-2-7b.Q5_K_S.gguf", "Q5_K_S"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("model_IQ2_XXS.gguf", "IQ2_XXS"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gemma-3-4b-it-BF16.gguf", "BF16"),
        ("phi-fp16.gguf", "F16"),
        ("BitNet-TQ1_0.gguf", "TQ1_0"),
        ("mistral-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Q6_K/GLM-4.5-Q6_K-00001-of-00006.gguf", "Q6_K"),
        ("Q3_K_L/part-00001-of-00002.gguf", "Q3_K_L"),
        ("aQ4_K_M.gguf", ""),
        ("tale.gguf", ""),
    ],
)
def test_quantization_of_a_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


def test_parts_of_a_split_model() -> None:
    parts = tuple(f"a/m-0000{n}-of-00003.gguf" for n in (1, 2, 3))
    assert parts_of(parts[1]) == parts
    for whole in ("m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf"):
        assert parts_of(whole) == (whole,)


def test_models_among_files() -> None:
    names = ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf", "m.imatrix.gguf"]
    found = models_among([*names, "big-00003-of-00003.gguf", "big-00001-of-00003.gguf"])
    assert [(m.name, m.quant, m.missing) for m in found] == [
        ("big-00001-of-00003.gguf", "", ("big-00002-of-00003.gguf",)),
        ("m-Q4_K_M.gguf", "Q4_K_M", ()),
        ("m-Q8_0.gguf", "Q8_0", ()),
    ]


MANY = ["m-Q8_0", "m-Q4_K_M", "m-F16", "m-8bit", "m-UD-Q4_K_M", "m-UD-Q5_K_XL", "a-IQ1_S"]


@pytest.mark.parametrize(
    ("names", "quant", "file", "taken"),
    [
        (MANY, None, None, "m-Q4_K_M"),
        (MANY, "q8_0", None, "m-Q8_0"),
        (MANY, "q5_k_xl", None, "m-UD-Q5_K_XL"),
        (MANY, "fp16", None, "m-F16"),
        (MANY, "8bit", None, "m-8bit"),
        (MANY, "Q4_K", None, None),
        (MANY, "Q2_K", None, None),
        (MANY, None, "m-Q8_0.gguf", "m-Q8_0"),
        (MANY, None, "M-Q8_0.gguf", None),
        # Without the usual one, the one nearest to 4 bits is taken.
        (["a-Q8_0", "b-Q6_K"], None, None, "b-Q6_K"),
        (["a-IQ1_S", "b-Q3_K_M", "c-Q5_K_M", "m-BF16", "m"], None, None, "c-Q5_K_M"),
        # Heads and drafts of a model have names that are longer.
        (["m-MTP-Q4_K_M", "m-Q4_K_M"], None, None, "m-Q4_K_M"),
        (["BF16/m-BF16", "m-F16", "m-Q8_0"], None, None, "m-Q8_0"),
        (["BF16/m-BF16"], None, None, "BF16/m-BF16"),
        ([], None, None, None),
    ],
)
def test_choice(names: list[str], quant: str | None, file: str | None, taken: str | None) -> None:
    found = choose(models_among(f"{n}.gguf" for n in names), quant=quant, file=file)
    assert (found and found.name) == (taken and f"{taken}.gguf")
