"""Settings of a model: the CPU threads that compute it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from paddock.config.fields import Flag, Section, cpus_of_mask, cpus_of_range, number_or_default, one_or_zero
from paddock.control_groups import usable_cpus
from paddock.types import Numa

CpuMask = Annotated[str, AfterValidator(lambda text: cpus_of_mask(text) and text)]
CpuRange = Annotated[str, AfterValidator(lambda text: cpus_of_range(text) and text)]


class ThreadSettings(Section):
    """The CPU threads that compute a model."""

    n_threads: Annotated[int, Flag("-t", "--threads", convert=number_or_default)] = Field(
        default_factory=lambda: min(8, usable_cpus()), ge=1
    )
    """CPU threads. By default the number of cores that the process may use, which a container limits, at most 8. Never
    more than `cpu_mask` and `cpu_range` have CPUs.
    """
    n_threads_batch: Annotated[int | None, Flag("-tb", "--threads-batch", convert=number_or_default)] = Field(
        None, ge=1
    )
    """CPU threads for prompts. By default as `n_threads`."""
    numa: Annotated[Numa | None, Flag("--numa")] = None
    """Optimise for several NUMA nodes."""
    cpu_mask: Annotated[CpuMask | None, Flag("-C", "--cpu-mask", metavar="HEX")] = None
    """The CPUs that the threads may use, as a hexadecimal mask: `f0` stands for the CPUs 4 to 7."""
    cpu_range: Annotated[CpuRange | None, Flag("-Cr", "--cpu-range", metavar="FIRST-LAST")] = None
    """More CPUs that the threads may use, such as `4-7`."""
    cpu_strict: Annotated[bool, Flag("--cpu-strict", metavar="0|1", convert=one_or_zero)] = False
    """Bind each thread to one of these CPUs."""
    prio: Annotated[int, Flag("--prio", metavar="-1...3")] = Field(0, ge=-1, le=3)
    """The priority of the threads: -1 low, 0 normal, 1 medium, 2 high, 3 real-time. More than 0 needs CAP_SYS_NICE."""
    poll: Annotated[int | None, Flag("--poll", metavar="N")] = Field(None, ge=0, le=100)
    """How long the threads wait for each other without sleeping; 0: not at all. llama-server's default is 50."""
    cpu_mask_batch: Annotated[CpuMask | None, Flag("-Cb", "--cpu-mask-batch", metavar="HEX")] = None
    """As `cpu_mask`, while prompts are computed. By default the same CPUs."""
    cpu_range_batch: Annotated[CpuRange | None, Flag("-Crb", "--cpu-range-batch", metavar="FIRST-LAST")] = None
    """As `cpu_range`, while prompts are computed. By default the same CPUs."""
    cpu_strict_batch: Annotated[bool | None, Flag("--cpu-strict-batch", metavar="0|1", convert=one_or_zero)] = None
    """As `cpu_strict`, while prompts are computed. By default the same."""
    prio_batch: Annotated[int | None, Flag("--prio-batch", metavar="-1...3")] = Field(None, ge=-1, le=3)
    """As `prio`, while prompts are computed. By default the same."""
