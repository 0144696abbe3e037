"""Checks of the records of model calls (semantics.md, section 6): table `calls`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gyre.store.checks.data import Breach, CallNode, RunData

ROLES = ("main", "main-summary", "sub-agent", "sub-agent-summary", "side")
PROVENANCES = ("policy", "evaluator")
FINISH_REASONS = ("stop", "length", "abort")
MIXED_VERSION = -1
"""Version of a span whose tokens an engine could not attribute to one version over its whole context."""
LOGPROB_SLACK = 1e-5
"""A log-probability may exceed 0 by rounding in float32."""


def check_trees(data: RunData) -> Iterator[Breach]:
    """Check that each attempt's nodes are numbered 0, 1, 2, … and each hangs below an earlier one of the same attempt."""
    for (execution_id, attempt), nodes in data.trees.items():
        execution = data.execution.get(execution_id)
        key = f"{execution_id} attempt {attempt}"
        if execution is None:
            yield Breach("calls", key, "is of an execution that was never dispatched")
        elif attempt > max(execution["attempts"], 1):
            yield Breach("calls", key, f"is of an attempt that never was; there were {execution['attempts']}")
        for column in ("node_id", "call_index"):
            numbers = sorted(node.row[column] for node in nodes)
            if numbers != list(range(len(nodes))):
                yield Breach("calls", key, f"has the {column}s {numbers[:20]}: one is missing or there twice")
        for node in nodes:
            parent = node.row["parent_node_id"]
            if parent is not None and not 0 <= parent < node.row["node_id"]:
                yield Breach("calls", node.key, f"hangs below node {parent}, which is no earlier node of its tree")


def check_calls(data: RunData) -> Iterator[Breach]:
    """Check each call by itself: words, log-probabilities, and version spans that cover its output."""
    # An engine serves the newest version from the moment before its confirmation is noted.
    published = {0, data.version, MIXED_VERSION} | {row["version"] for row in data.publications}
    for node in data.calls:
        for sentence in (*_words(node), *_tokens(node), *_spans(data, node, published)):
            yield Breach("calls", node.key, sentence)


def _words(node: CallNode) -> Iterator[str]:
    known = {"role": ROLES, "provenance": PROVENANCES, "finish_reason": FINISH_REASONS}
    for column, words in known.items():
        if node.row[column] not in words:
            yield f"has the {column} {node.row[column]!r}, which is none of {', '.join(words)}"
    if node.row["finished_at_s"] < node.row["started_at_s"]:
        yield "ended before it began"


def _tokens(node: CallNode) -> Iterator[str]:
    if len(node.logprobs) != len(node.output_ids):
        yield f"has {len(node.output_ids)} sampled tokens but {len(node.logprobs)} log-probabilities"
    if not np.all(np.isfinite(node.logprobs)) or np.any(node.logprobs > LOGPROB_SLACK):
        yield "has a log-probability that is not a number of at most 0"
    if np.any(node.output_ids < 0) or np.any(node.input_ids < 0):
        yield "has a token id below 0"


def _spans(data: RunData, node: CallNode, published: set[int]) -> Iterator[str]:
    position = 0
    for span in node.row["weight_versions"]:
        if span["start"] != position or span["end"] <= span["start"]:
            yield f"has version spans that do not follow each other at sampled token {position}"
            return
        position = span["end"]
        if span["version"] not in published:
            yield f"was sampled under version {span['version']}, which was never published"
    if position != len(node.output_ids):
        yield f"has version spans over {position} of {len(node.output_ids)} sampled tokens"
    execution = data.execution.get(node.row["execution_id"])
    versions = [span["version"] for span in node.row["weight_versions"] if span["version"] != MIXED_VERSION]
    if versions != sorted(versions):
        yield "went back to an older version in the middle of its output"
    if execution is not None and versions and versions[0] < execution["dispatch_version"]:
        yield f"was sampled under version {versions[0]}, older than v_d {execution['dispatch_version']}"
