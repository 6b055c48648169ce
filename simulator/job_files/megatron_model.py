"""The shape of a Megatron job's model: its flags, and Megatron's defaults where there are none."""

from __future__ import annotations

import ast
import re
from typing import Any

from joulecast.files import is_whole
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.state_space import MIXERS
from joulecast.model.framework.vocabulary import padded_vocabulary
from joulecast.simulator.job_files.draft import Draft, Setting
from joulecast.simulator.job_files.flags import Flags
from joulecast.simulator.job_files.hub_names import hub_model
from joulecast.simulator.job_files.model_shape import put_model

#: Rows of tables of tokens that are the same in every file of their kind (GPT-2's, Llama's and Llama 2's).
_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
#: Flags that say a model's shape, and that a model given by name stands in place of.
SHAPE = (
    *("--num-layers", "--encoder-num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads"),
    *("--kv-channels", "--group-query-attention", "--num-query-groups", "--position-embedding-type"),
    *("--use-rotary-position-embeddings", "--no-position-embedding", "--rotary-percent", "--normalization", "--swiglu"),
    *("--squared-relu", "--quick-geglu", "--disable-bias-linear", "--add-qkv-bias", "--qk-layernorm", "--qk-l2-norm"),
    *("--untie-embeddings-and-output-weights", "--num-experts", "--moe-layer-freq", "--moe-ffn-hidden-size"),
    *("--moe-shared-expert-intermediate-size", "--moe-router-topk", "--moe-router-num-groups"),
    *("--moe-router-score-function", "--moe-router-group-topk"),
    *("--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim"),
    *("--qk-nope-head-dim", "--qk-rope-head-dim"),
    *("--qk-pos-emb-head-dim", "--v-head-dim", "--vocab-size", "--padded-vocab-size", "--tokenizer-type"),
    *("--tokenizer-model", "--make-vocab-size-divisible-by", "--hybrid-override-pattern", "--hybrid-layer-pattern"),
    *("--mamba-state-dim", "--mamba-head-dim", "--mamba-num-groups", "--mamba-num-heads"),
)
#: Flags of a hybrid's layers, an older and a newer one, and those that a pattern stands in place of.
PATTERNS = ("--hybrid-override-pattern", "--hybrid-layer-pattern")
RATIOS = ("--hybrid-attention-ratio", "--hybrid-mlp-ratio")
#: Most layers of a pattern, far above any model's.
MOST_LAYERS = 10_000


def read_model(flags: Flags, draft: Draft) -> None:
    """Put the job's model into the plan.

    Raises
    ------
    InputError
        A size that is missing, or that cannot be.
    """
    sizes = _Sizes(flags)
    _widths(sizes)
    _attention(sizes)
    experts = flags.whole("--num-experts", least=0) or 0
    if experts > flags.on("--deepspeed"):  # there, one expert is an ordinary MLP
        _experts(sizes, experts)
    _state_spaces(sizes)
    vocabularies = _vocabularies(flags)
    if vocabularies:
        names = ("--padded-vocab-size", "--vocab-size", "--tokenizer-type", "--vocab-file", "--merge-file")
        given = next(name for name in names if flags.line(name))
        if given == "--tokenizer-type" and flags.text(given) not in _TOKENIZERS:
            given = "--tokenizer-model"
        sizes.put("vocab_size", vocabularies[-1], given)
        if vocabularies[-1] > vocabularies[0]:
            how = f"{given}, padded by Megatron"
            sizes.found["vocab_size"] = Setting(vocabularies[-1], how, flags.line(given))
    put_model(draft, sizes.found, vocabularies)


class _Sizes:
    """Keys of a model in a plan as they are read."""

    def __init__(self, flags: Flags) -> None:
        self.flags, self.found = flags, dict[str, Setting]()

    def put(self, key: str, value: Any, flag: str) -> None:
        """A key that a flag says, or Megatron's default where it is not given."""
        line = self.flags.line(flag)
        self.found[key] = Setting(value, flag if line else f"Megatron's default without {flag}", line)


def _widths(sizes: _Sizes) -> None:
    """Widths, the MLP, norms and biases."""
    flags, put = sizes.flags, sizes.put
    layers = "--num-layers" if flags.line("--num-layers") else "--encoder-num-layers"
    pattern = _pattern(flags)
    if pattern and not flags.line(layers):
        put("num_hidden_layers", len(pattern[1]), pattern[0])
    else:
        put("num_hidden_layers", flags.needed("--num-layers", flags.whole(layers)), layers)
    hidden = flags.needed("--hidden-size", flags.whole("--hidden-size"))
    put("hidden_size", hidden, "--hidden-size")
    gated = flags.on("--swiglu")
    quick, squared = flags.on("--quick-geglu"), flags.on("--squared-relu")
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    put("intermediate_size", flags.whole("--ffn-hidden-size", usual), "--ffn-hidden-size")
    put("gated_mlp", gated or quick, "--quick-geglu" if quick else "--swiglu")
    activation = "silu" if gated else "relu2" if squared else "gelu"
    put("activation", activation, "--squared-relu" if squared else "--swiglu")
    norm = flags.text("--normalization", ("LayerNorm", "RMSNorm")) or "LayerNorm"
    put("norm", norm.lower(), "--normalization")
    bias = not flags.on("--disable-bias-linear")
    put("bias", bias, "--disable-bias-linear")
    if flags.on("--add-qkv-bias") and not bias:
        put("qkv_bias", True, "--add-qkv-bias")
    tied = not flags.on("--untie-embeddings-and-output-weights")
    put("tie_word_embeddings", tied, "--untie-embeddings-and-output-weights")
    _positions(sizes)


def _positions(sizes: _Sizes) -> None:
    flags = sizes.flags
    flag = "--position-embedding-type"
    kinds = ("learned_absolute", "rope", "mrope", "yarn", "relative", "none")
    kind = flags.text(flag, kinds) or "learned_absolute"
    if flags.on("--use-rotary-position-embeddings"):
        kind, flag = "rope", "--use-rotary-position-embeddings"
    if flags.on("--no-position-embedding") and kind == "learned_absolute":
        kind, flag = "none", "--no-position-embedding"
    flags.number("--rotary-percent")
    if kind == "relative":
        raise flags.error("relative positions of attention are not known", flag, "Use a model with rotary embedding.")
    sizes.put("rotary", kind in ("rope", "mrope", "yarn"), flag)
    if kind == "learned_absolute":
        rows = flags.whole("--max-position-embeddings") or flags.whole("--seq-length")
        if rows:
            sizes.put("learned_positions", rows, "--max-position-embeddings")


def _attention(sizes: _Sizes) -> None:
    flags, put = sizes.flags, sizes.put
    heads = flags.needed("--num-attention-heads", flags.whole("--num-attention-heads"))
    put("num_attention_heads", heads, "--num-attention-heads")
    groups = flags.whole("--num-query-groups", 1)
    if flags.on("--multi-latent-attention"):
        for key, flag, default in (
            ("kv_lora_rank", "--kv-lora-rank", 32),
            ("q_lora_rank", "--q-lora-rank", 0),
            ("qk_nope_head_dim", "--qk-head-dim", 128),
            ("qk_rope_head_dim", "--qk-pos-emb-head-dim", 64),
            ("v_head_dim", "--v-head-dim", 128),
        ):
            other = f"--{key.replace('_', '-')}"  # Pai-Megatron-Patch's name of the first two of a head
            said = other if flags.line(other) else flag
            put(key, flags.whole(said, default, least=0), said)
        flags.on("--qk-layernorm"), flags.on("--group-query-attention"), flags.whole("--kv-channels")
        return
    if flags.on("--group-query-attention"):  # without this switch Megatron does not regard the number of groups
        put("num_key_value_heads", groups, "--num-query-groups")
    width = flags.whole("--kv-channels")
    if width:
        put("head_dim", width, "--kv-channels")
    if flags.on("--qk-layernorm"):
        put("qk_norm", True, "--qk-layernorm")
    if flags.on("--qk-l2-norm"):
        remedy = "Give the model by its name or config.json: --model."
        raise flags.error("norms without weights are not known of a model in a plan", "--qk-l2-norm", remedy)


def _pattern(flags: Flags) -> tuple[str, str] | None:
    """The flag of a hybrid's pattern of layers, and the pattern."""
    given = next((flag for flag in PATTERNS if flags.line(flag)), None)
    if given is None:
        return None
    text = (flags.text(given) or "").strip("\"'")
    if not text or set(text) - set(MIXERS[:4]):
        remedy = f"Write one of {' '.join(MIXERS[:4])} for each layer, without marks of stages."
        raise flags.error(f"{text!r} is no pattern of layers that is known", given, remedy)
    for ratio in RATIOS:
        flags.number(ratio)
    flags.on("--is-hybrid-model")
    spec = flags.given.get("--spec")
    if spec is not None and any("mamba" in value for value in spec.values):  # the layers that the pattern names
        flags.known.add("--spec")
    return given, text


def _state_spaces(sizes: _Sizes) -> None:
    """A hybrid's layers, and the sizes of its state spaces; Megatron's scan takes 128 positions at once."""
    flags, put = sizes.flags, sizes.put
    pattern = _pattern(flags)
    if pattern is None:
        return
    put("hybrid_override_pattern", pattern[1], pattern[0])
    if "M" not in pattern[1]:
        return
    for key, flag, default in (
        ("mamba_head_dim", "--mamba-head-dim", 64),
        ("ssm_state_size", "--mamba-state-dim", 128),
        ("mamba_n_groups", "--mamba-num-groups", 8),
    ):
        put(key, flags.whole(flag, default), flag)
    usual = 2 * sizes.found["hidden_size"].value // sizes.found["mamba_head_dim"].value
    put("mamba_num_heads", flags.whole("--mamba-num-heads", usual), "--mamba-num-heads")


def _experts(sizes: _Sizes, count: int) -> None:
    flags, put = sizes.flags, sizes.put
    put("num_experts", count, "--num-experts")
    put("num_experts_per_tok", flags.whole("--moe-router-topk", 2), "--moe-router-topk")
    width = flags.whole("--moe-ffn-hidden-size", sizes.found["intermediate_size"].value)
    put("moe_intermediate_size", width, "--moe-ffn-hidden-size")
    shared = flags.whole("--moe-shared-expert-intermediate-size", least=0)
    if shared:
        put("shared_expert_intermediate_size", shared, "--moe-shared-expert-intermediate-size")
    groups, chosen = flags.whole("--moe-router-num-groups"), flags.whole("--moe-router-group-topk")
    if groups:
        put("n_group", groups, "--moe-router-num-groups")
        put("topk_group", chosen or groups, "--moe-router-group-topk")
    if flags.text("--moe-router-score-function", ("softmax", "sigmoid", "sqrtsoftplus")) == "sigmoid":
        put("moe_router_score_function", "sigmoid", "--moe-router-score-function")
    _frequency(sizes)


def _frequency(sizes: _Sizes) -> None:
    """Which layers have experts: some first ones have none, or one in so many has."""
    flags, flag = sizes.flags, "--moe-layer-freq"
    text = flags.text(flag)
    if text is None:
        return
    remedy = 'Write a number, or a list such as "([0]*3+[1]*58)".'
    if is_whole(text) and int(text):
        if int(text) > 1:
            sizes.put("moe_layer_freq", int(text), flag)
        return
    pattern = layer_pattern(text)
    layers = sizes.found["num_hidden_layers"].value
    if pattern is None or set(pattern) - {0, 1}:
        raise flags.error(f"{text!r} is no pattern of layers", flag, remedy)
    if len(pattern) != layers:
        raise flags.error(f"the pattern has {len(pattern)} layers, the model {layers}", flag, remedy)
    dense = pattern.index(1) if 1 in pattern else layers
    if all(pattern[dense:]):
        sizes.put("first_k_dense_replace", dense, flag)
        return
    every = next((n for n in range(2, layers) if pattern == [int(place % n == 0) for place in range(layers)]), None)
    if every is None:
        what = "layers with and without experts take turns in a way that a model in a plan cannot say"
        raise flags.error(what, flag, "Give the model by its name or config.json: --model.")
    sizes.put("moe_layer_freq", every, flag)


def layer_pattern(text: str) -> list[int] | None:
    """A list of numbers from an expression of lists, sums and multiples; ``None`` if it is none.

    >>> layer_pattern("([0]*2+[1]*3)")
    [0, 0, 1, 1, 1]
    """
    if re.search(r"[^,\d\[\]()+* ]", text) or len(text) > 10_000:
        return None
    try:
        found = _list(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, list) else None


def _list(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value <= MOST_LAYERS:
        return node.value
    if isinstance(node, ast.List):
        return [value for item in node.elts if isinstance(value := _list(item), int)]
    if isinstance(node, ast.BinOp):
        left, right = _list(node.left), _list(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            found = left + right
        elif isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            found = left * min(right, MOST_LAYERS)
        else:
            raise ValueError("not a list of layers")
        if len(found) > MOST_LAYERS:
            raise ValueError("more layers than any model has")
        return found
    raise ValueError("not a list of layers")


def _divisor(flags: Flags) -> int:
    return flags.whole("--make-vocab-size-divisible-by", 128) or 128


def _vocabularies(flags: Flags) -> tuple[int, ...]:
    """Rows of the embedding before and after Megatron pads them; none if the job does not say them."""
    padded, size = flags.whole("--padded-vocab-size"), flags.whole("--vocab-size")
    kind = flags.text("--tokenizer-type")
    divisor, split = _divisor(flags), flags.whole("--tensor-model-parallel-size", 1) or 1
    if padded:
        return (padded,)
    if kind is None and (flags.line("--vocab-file") or flags.line("--merge-file")):
        kind = "GPT2BPETokenizer"
    size = size or _TOKENIZERS.get(kind or "") or _rows_of_named(flags)
    if size is None:
        return ()
    rows = size + (kind == "NullTokenizer")  # a row for the end of a document
    return tuple(sorted({size, rows, padded_vocabulary(rows, split, divisor)}))


def _rows_of_named(flags: Flags) -> int | None:
    """Rows of the embedding of the model whose tokenizer a job names, by the hub's name or the folder's."""
    given = flags.given.get("--tokenizer-model")
    name = re.sub(r"/tokenizer\.(?:model|json)$", "", given.values[-1].strip("\"'")) if given and given.values else ""
    model = hub_model(name) if name else None
    if model is None:
        return None
    flags.known.add("--tokenizer-model")
    return load_model(model).vocab
