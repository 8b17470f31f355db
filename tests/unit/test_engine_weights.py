"""Checkpoints: mapped, not copied; problems named; digests that tell models apart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from bootstrap.errors import ConfigError
from bootstrap.sampling import SamplingParams
from engine.arena import torch_dtype
from engine.contract import layout_for
from engine.loader import load_model
from engine.runner import ModelRunner
from engine.step import NumericalFault, SampleAt, SampledToken, SequenceChunk
from tests.support.tiny_model import make_tiny_model

WEIGHTS = "model.safetensors"


def change(folder: Path, edit) -> Path:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def shard(folder: Path) -> Path:
    """The same tensors in two files with an index."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in parts.items():
        save_file({n: tensors[n] for n in members}, folder / file, metadata={"format": "pt"})
    index = {"weight_map": {n: file for file, members in parts.items() for n in members}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    (folder / WEIGHTS).unlink()
    return folder


def all_tensors(weights):
    for layer in weights.layers:
        yield layer.query.weight
        yield layer.down.weight
        yield layer.mlp_norm
    yield weights.embedding
    yield weights.norm
    yield weights.head


def mapped_ranges(name: str):
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(name):
            low, high = line.split()[0].split("-")
            yield int(low, 16), int(high, 16)


def test_parameters_of_the_stored_type_are_the_file_itself(tmp_path):
    folder = make_tiny_model(tmp_path)
    loaded = load_model(folder, "float32", "cpu")
    ranges = list(mapped_ranges(str(folder / WEIGHTS)))
    for tensor in all_tensors(loaded.weights):
        assert any(low <= tensor.data_ptr() < high for low, high in ranges)


def test_tied_embeddings_are_one_tensor(tmp_path):
    weights = load_model(
        make_tiny_model(tmp_path, tie_word_embeddings=True), "float32", "cpu"
    ).weights
    assert weights.head is weights.embedding


def test_another_dtype_is_converted(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path), "bfloat16", "cpu")
    assert {t.dtype for t in all_tensors(loaded.weights)} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda t: t.update(foo=np.zeros(3, np.float32)), "foo is unexpected"),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(3, np.float32)}),
            r"model.norm.weight is \[3\], allowed is \[64\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(64, np.int8)}),
            "model.norm.weight is of type I8, allowed are F32, BF16, F16",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, edit, words):
    with pytest.raises(ConfigError, match=words):
        load_model(change(make_tiny_model(tmp_path), edit), "float32", "cpu")


def test_many_problems_are_counted(tmp_path):
    folder = change(make_tiny_model(tmp_path), lambda t: [t.pop(n) for n in sorted(t)[:9]])
    with pytest.raises(ConfigError, match="and 4 more"):
        load_model(folder, "float32", "cpu")


def test_stored_rotary_frequencies_and_a_tied_head_are_ignored(tmp_path):
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32),
        "lm_head.weight": np.zeros((300, 64), np.float32),
    }
    folder = make_tiny_model(tmp_path, tie_word_embeddings=True)
    load_model(change(folder, lambda t: t.update(extra)), "float32", "cpu")


@pytest.mark.parametrize("num_bytes", [0, 5, 100, 50_000])
def test_a_truncated_file_is_a_config_error(tmp_path, num_bytes):
    folder = make_tiny_model(tmp_path)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:num_bytes])
    with pytest.raises(ConfigError, match=WEIGHTS):
        load_model(folder, "float32", "cpu")


def test_a_missing_shard_is_named(tmp_path):
    folder = shard(make_tiny_model(tmp_path))
    (folder / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"b\.safetensors, which is missing"):
        load_model(folder, "float32", "cpu")


def test_shards_are_the_same_model(tmp_path):
    one = load_model(make_tiny_model(tmp_path / "one"), "float32", "cpu")
    two = load_model(shard(make_tiny_model(tmp_path / "two")), "float32", "cpu")
    assert one.digest == two.digest
    for a, b in zip(all_tensors(one.weights), all_tensors(two.weights), strict=True):
        assert torch.equal(a, b)


def test_digests_tell_models_apart(tmp_path):
    def digest(name, **overrides):
        return load_model(make_tiny_model(tmp_path / name, **overrides), "float32", "cpu").digest

    base = digest("base")
    assert digest("again") == base
    assert digest("eos", eos_token_id=[0, 2]) == base
    others = {
        digest("seed", seed=1),
        digest("theta", rope_theta=2e4),
        digest("eps", rms_norm_eps=1e-6),
    }
    assert len(others | {base}) == 4
    assert len(base) == 32


def test_unknown_settings_name_what_is_allowed(tmp_path):
    folder = make_tiny_model(tmp_path)
    with pytest.raises(ConfigError, match="device='tpu': allowed are cpu"):
        load_model(folder, "float32", "tpu")
    with pytest.raises(ConfigError, match="dtype='int8': allowed are float64, float32, bfloat16"):
        load_model(folder, "int8", "cpu")


def test_progress_counts_every_tensor(tmp_path):
    seen = []
    load_model(make_tiny_model(tmp_path), "float32", "cpu", lambda *report: seen.append(report))
    assert seen[0] == ("weights", 1, len(seen))
    assert seen[-1] == ("weights", len(seen), len(seen))


def test_one_request_that_overflows_fails_alone(tmp_path):
    """Token 7's embedding is NaN; requests that do not use it do not notice, also when pages move."""
    broken = change(
        make_tiny_model(tmp_path), lambda t: t["model.embed_tokens.weight"][7].fill(np.nan)
    )
    loaded = load_model(broken, "float32", "cpu")
    layout = layout_for(loaded.config, "float32", 4, 6)
    runner = ModelRunner(loaded, layout, torch.zeros(layout.shape, dtype=torch_dtype("float32")))
    at = SampleAt(SamplingParams(seed=0, max_tokens=9, temperature=0.0), 0)
    bad, good = SequenceChunk([5, 7, 9], 0, [0, 1], at), SequenceChunk([5, 6], 0, [2, 3], at)
    alone = runner.step([good])
    both = runner.step([bad, good, SequenceChunk([5, 6, 8], 0, [4])])
    assert isinstance(both[0], NumericalFault)
    assert isinstance(both[1], SampledToken)
    assert both[1].token_id == alone[0].token_id
    assert both[2] is None
    reused = runner.step([SequenceChunk([5, 6], 0, [0, 1], at), SequenceChunk([5], 2, [2, 3], at)])
    assert reused[0].token_id == alone[0].token_id
    assert isinstance(reused[1], SampledToken)


def test_an_empty_step_is_nothing(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path), "float32", "cpu")
    layout = layout_for(loaded.config, "float32", 4, 2)
    assert ModelRunner(loaded, layout, torch.zeros(layout.shape)).step([]) == []
