"""From a GGUF file of the llama architecture to a Hugging Face folder with float32 weights.

It knows the two formats, not where files come from. Sources: the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and llama.cpp's `convert_hf_to_gguf.py`,
whose steps are undone here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bootstrap.errors import ConfigError
from engine.progress import Progress

_ALIGNMENT = 64  # bytes; a vector register never straddles two cache lines
_CONTROL_TOKEN = 3  # GGUF's token type for special tokens
_PRE_TOKENIZER = "smollm"

_TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Array = NDArray[np.float32]


def convert(source: Path, folder: Path, on_progress: Progress) -> None:
    """Write config, weights and tokenizer into `folder`; raises ConfigError for another kind of GGUF."""
    reader = gguf.GGUFReader(str(source))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for key, allowed in (("general.architecture", "llama"), ("tokenizer.ggml.pre", _PRE_TOKENIZER)):
        if fields.get(key) != allowed:
            raise ConfigError(f"{source}: {key}={fields.get(key)!r}: allowed is {allowed!r}")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _config(fields, tied))
    _write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
            "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
            "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        },
    )
    _write_tokenizer(fields, folder)
    _write_weights(reader, fields, folder / "model.safetensors", on_progress)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    num_heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // num_heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(fields["llama.rope.freq_base"]),
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def _shortest(value: float) -> float:
    """The decimal number that someone once wrote and float32 stored."""
    return float(str(np.float32(value)))


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Byte-level BPE that splits digits first, as SmolLM's tokenizer does."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
            "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
            "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": fields["tokenizer.chat_template"],
        },
    )


def _write_weights(
    reader: gguf.GGUFReader, fields: dict[str, Any], path: Path, on_progress: Progress
) -> None:
    """safetensors in the GGUF's order, one tensor in memory at a time, data aligned."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in reader.tensors:
        begin, end = end, end + int(tensor.n_elements) * 4
        header[_hugging_face_name(tensor.name)] = {
            "dtype": "F32",
            "shape": [int(size) for size in reversed(tensor.shape)],
            "data_offsets": [begin, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-(len(encoded) + 8) % _ALIGNMENT)
    total = len(reader.tensors)
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for done, values in enumerate(_dequantised(reader, fields)):
            on_progress("convert", done, total)
            assert values.dtype == np.float32
            stream.write(np.ascontiguousarray(values).data)
    on_progress("convert", total, total)


def _dequantised(reader: gguf.GGUFReader, fields: dict[str, Any]) -> Iterator[Array]:
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        for kind, num_heads in heads.items():
            if tensor.name.endswith(f".{kind}.weight"):
                values = _unpermute(values, num_heads)
        yield values


def _unpermute(weight: Array, num_heads: int) -> Array:
    """GGUF rotates neighbouring rows as pairs; Hugging Face pairs row i with row i + head_dim / 2."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    unpaired: Array = pairs.swapaxes(1, 2).reshape(rows, columns)
    return unpaired


def _hugging_face_name(name: str) -> str:
    if name in _TENSOR_NAMES:
        return _TENSOR_NAMES[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER_TENSOR_NAMES:
        raise ConfigError(f"GGUF tensor {name!r}: allowed are those of a llama without biases")
    return f"model.layers.{parts[1]}.{_LAYER_TENSOR_NAMES[parts[2]]}.weight"
