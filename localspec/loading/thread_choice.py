"""Thread counts of passes, and whether two may run at once."""

from __future__ import annotations

from localspec.llama import library, thread_counts
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.policy.other_processes import OtherProcesses
from localspec.policy.threads import Threads


def thread_choice(options: ModelOptions, target: Model, others: OtherProcesses) -> Threads:
    cores = library.default_threads()
    asked, reason = options.fixed_threads, "as asked for"
    if asked is None and target.on_device:
        # Trials would teach nothing: no count makes its passes faster.
        asked, reason = cores, "as a device computes the model's layers"
    counts = thread_counts.thread_counts() if asked is None else [asked]
    if asked is None:
        reason = "no other program needs a core" if len(counts) > 1 else "the only core"
    if asked is None and options.rpc:
        # What its passes take says nothing about the processor of this machine.
        counts, reason = [cores], "the passes run on other machines"
    return Threads(
        counts,
        others=others,
        draft=options.draft_threads is None,
        whole_prompts=library.accelerated(),
        reason=reason,
    )


def side_by_side(options: ModelOptions) -> bool:
    """Whether target and draft model have devices, or cores, of their own."""
    if options.rpc:
        return True  # its passes keep other machines busy
    if options.draft_gpu_layers not in (None, options.gpu_layers):
        return library.accelerated()
    if options.draft_threads is None or options.fixed_threads is None:
        return False  # "auto" gives the target all cores that are free
    return options.fixed_threads + options.draft_threads <= library.default_threads()
