"""Documents that sequences are packed with and that attention keeps apart: read, checked, and told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, NotYetError
from joulecast.model.cluster.extremes import slowest_of
from joulecast.model.framework.packing import packed
from joulecast.simulator.plan_file import names
from joulecast.simulator.plan_file.source import Source
from joulecast.tables import read_table

if TYPE_CHECKING:
    from joulecast.model.kernels.documents import Documents
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema_workload import WorkloadTable

TOKENS, PACKING = "workload.document_tokens", "workload.document_packing"
BACKEND = "implementation.attention_backend"
#: Longest document, and fewest and most documents of a file: beyond any, what follows from them stays finite.
LONGEST, FEWEST, MOST = 10**9, 1e-6, 1e15
#: Backends that go by lengths of documents (``cu_seqlens``) or by a list of squares, by whose code calls them.
APART = {
    "megatron": ("cudnn", "flash-attention-2", "flash-attention-3", "flash-attn-2"),
    "joint": ("flash-attention-2", "flash-attention-3", "flash-attn-2", "flex"),
    "transformers": ("flash-attention-3", "flash-attn-2", "flex"),
    "torchtitan": ("flash-attention-2", "flash-attention-3", "flex"),
}
#: Those to which documents are a mask of the whole square, which they compute.
SQUARE = {"megatron": ("unfused",), "joint": (), "transformers": ("cudnn", "unfused"), "torchtitan": ()}


def read_documents(table: WorkloadTable, source: Source) -> dict[str, Any]:
    """What the plan says of documents, and what they make of its sequences."""
    if table.document_tokens is None:
        if table.document_packing is not None:
            raise source.error(
                "how documents are packed says nothing without their lengths", PACKING, remedy=f"Give {TOKENS}."
            )
        return {}
    given, packing = table.document_tokens, table.document_packing or "cut"
    if isinstance(given, str):
        given = names.resolve_path(given, source, TOKENS)
        lengths, counts = _file(given)
    else:
        lengths = given if isinstance(given, list) else [given]
        counts = [1.0] * len(lengths)
    if not lengths or min(lengths) < 1:
        raise source.error("a document has one token at least", TOKENS, remedy="Give lengths of 1 or more.")
    if max(lengths) > LONGEST:
        raise source.error("no document is so long", TOKENS, remedy=f"Give lengths of at most {LONGEST} tokens.")
    if not FEWEST <= sum(counts) <= MOST:
        what = f"{given}: {sum(counts):.3g} documents in all"
        raise source.error(what, TOKENS, remedy="Give counts of documents, or leave out the column.")
    return {
        "document_tokens": tuple(given) if isinstance(given, list) else given,
        "document_packing": packing,
        "packed": packed(tuple(lengths), tuple(counts), table.sequence_length, packing),
    }


def _file(path: str) -> tuple[list[int], list[float]]:
    """Lengths, and how many documents are as long, of a CSV.

    Raises
    ------
    InputError
        It has no column of lengths, or a line of it no length.
    """
    table = read_table(path)
    if "tokens" not in table.columns:
        remedy = "Name it tokens, with a column count beside it where lengths repeat."
        raise InputError("no column of documents' lengths", file=path, line=1, remedy=remedy)
    lengths, counts = list[int](), list[float]()
    for line in table.lines:
        lengths.append(line.whole("tokens"))
        counts.append(line.positive("count") if "count" in table.columns else 1.0)
    if not lengths:
        raise InputError("no lengths of documents", file=path, remedy="Give one a line.")
    return lengths, counts


def slowest_documents(plan: Plan) -> Documents | None:
    """Documents of the rank with most to do, for which the others wait."""
    of = plan.workload.packed
    if of is None or of.documents is None:
        return None
    return replace(of.documents, load=imbalance(plan))


def imbalance(plan: Plan) -> float:
    """Pairs of positions that the slowest rank has, over the mean.

    Ranks that meet in every layer (FSDP, experts) wait for the slowest of each micro-batch, replicas otherwise for that
    of an iteration. Sums of sequences are taken to be normal, and no sequence has more pairs than one document.
    """
    of, split = plan.workload.packed, plan.parallelism
    if of is None or of.documents is None or of.spread == 0.0:
        return 1.0
    meets = split.fsdp or split.expert_model_parallel_size > 1
    sequences = plan.workload.micro_batch_size * (1 if meets else plan.microbatches)
    most = 0.5 * plan.workload.sequence_length**2 / of.documents.pairs()
    return min(1.0 + of.spread * slowest_of(plan.dp) / math.sqrt(sequences), most)


def check_documents(plan: Plan, source: Source) -> None:
    """Refuse documents where no kernel is known to keep them apart."""
    run = plan.implementation
    if run.attention_backend == "flex":
        _flex(plan, source)
    if plan.workload.packed is None or plan.workload.packed.documents is None:
        return
    code = _code(plan)
    known = (*APART[code], *SQUARE[code])
    if run.attention_backend not in known:
        raise source.error(
            f"documents of packed sequences in {run.attention_backend} under {_named(code)} are not known",
            BACKEND,
            remedy=f"Use one of {', '.join(known)}; or leave {TOKENS} out where attention sees all of a sequence.",
            kind=NotYetError,
        )
    model, square = plan.workload.model, run.attention_backend in SQUARE[code]
    split = plan.cp > 1 and (plan.parallelism.cp_comm_type == "all_gather" or run.modules == "torchtitan")
    gathered, way = "keys of split sequences that are gathered, or split by PyTorch,", 'Use "p2p" or "a2a" in megatron'
    tiled = any(name.startswith("attention") for name, _ in run.tiles)
    problems = (
        (model.chunked and not square, "chunks", "Use a model without", "workload.model"),
        (model.alibi and not square, "ALiBi", "Use a model without", "workload.model"),
        (model.delta_net is not None, "linear attention", "Use a model without", "workload.model"),
        (split, gathered, f"{way} or joint modules", "parallelism.cp_comm_type"),
        (run.deterministic, "deterministic attention", "Leave it out", "implementation.deterministic"),
        (run.dropout > 0, "dropout of attention", "Leave it out", "implementation.dropout"),
        (bool(run.attention_precision), "attention in FP8", "Leave it out", "implementation.attention_precision"),
        (tiled, "tiles of attention", "Leave attention out of it", "implementation.tiles"),
    )
    remedy = f"{{}}, or leave {TOKENS} out where attention sees all of a sequence."
    source.refuse(problems, what="documents of packed sequences with {} are not known", remedy=remedy, kind=NotYetError)


def _flex(plan: Plan, source: Source) -> None:
    """Flex attention is PyTorch's."""
    run = plan.implementation
    if run.framework == "megatron":
        raise source.error("flex attention is PyTorch's", BACKEND, remedy="Use another backend.")
    if plan.cp > 1:
        remedy = "Use another backend, or parallelism.context_parallel_size = 1."
        raise source.error("flex attention of split sequences is not known", BACKEND, remedy=remedy, kind=NotYetError)


def _code(plan: Plan) -> str:
    return "megatron" if plan.implementation.framework == "megatron" else plan.implementation.modules


def _named(code: str) -> str:
    return "modules of one's own" if code == "joint" else code


def document_assumptions(plan: Plan) -> tuple[str, ...]:
    """How documents lie in sequences, which kernels keep them apart, and for whom others wait."""
    of, w = plan.workload.packed, plan.workload
    if of is None:
        return ()
    if of.documents is None:
        return (f"documents fill sequences of {w.sequence_length} tokens, one each",)
    share = 2.0 * of.documents.pairs() / w.sequence_length**2
    count = f"{of.documents.count:.3g} documents a sequence" + (", padding among them" if of.filled < 1.0 else "")
    if w.document_packing == "cut":
        how = f"documents are joined in random order and cut every {w.sequence_length} tokens"
    else:
        how = f"whole documents are packed where they leave the least room, and fill {of.filled:.1%} of a sequence"
    said = [f"{how}: {count}, with {share:.3g} of the pairs of positions of one that fills it"]
    if isinstance(w.document_tokens, int):
        said[0] += "; all have one length, and of lengths that vary about it attention does more"
    run = plan.implementation
    if run.attention_backend in SQUARE[_code(plan)]:
        said.append(
            "attention takes documents as a mask and computes the whole square: a kernel for lengths of documents, or "
            "one for packed sequences such as flash-attn-2, would not"
        )
        return tuple(said)
    if (more := imbalance(plan)) > 1.0:
        said.append(f"every rank is forecast as the one with most pairs, {more:.3g} times as many as the mean")
    if plan.pp > 1 and of.spread > 0.0:
        said.append("stages of a pipeline that wait for a micro-batch of longer documents are not forecast to")
    return tuple(said)
